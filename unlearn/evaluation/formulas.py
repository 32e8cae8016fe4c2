"""Formulas of single examples and of whole samples, on plain numbers and arrays. No file, no model, no record.

Legend of shapes: T answer tokens of one example. Logarithms are natural unless a name says log10.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import sys
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Sample = Sequence[float] | np.ndarray

MIN_K_SHARE = 0.4  # of the content tokens: MUSE's and open-unlearning's choice for TOFU and MUSE
MIN_VOCAB_STD = 1e-3  # open-unlearning's floor of 1e-6 under the variance in Min-K%++
REPEATED_RUN = 20  # characters, three or four words: answers repeat names of that length, but no more
GIBBERISH_REPETITION = 0.5  # text that is said twice has exactly half; what goes on for longer is a loop
GIBBERISH_NLL = 6.0  # nats a token: prose costs a language model 1 to 4, random tokens log V = 8.3 (4k) to 10.4 (32k)
_CACHED_TEXTS = 20_000
_MAX_EXPONENT = 700.0  # keeps exp() and its reciprocal finite and non-zero in float64


def _exp(x: float) -> float:
    return math.exp(max(-_MAX_EXPONENT, min(_MAX_EXPONENT, x)))


def mean_nll(logp_T: np.ndarray) -> float | None:
    """Mean negative log-probability per token; None without tokens or with a non-finite one."""
    logp_T = np.asarray(logp_T, dtype=np.float64)
    return -float(logp_T.mean()) if logp_T.size and np.isfinite(logp_T).all() else None


def prob(nll: float) -> float:
    """exp(-nll): the geometric mean of the tokens' probabilities."""
    return _exp(-nll)


def truth_ratio(nll_paraphrase: float, nll_perturbed: Sequence[float]) -> float:
    """R = wrong / correct with the geometric mean over the wrong answers: exp(nll_paraphrase - mean(nll_perturbed)).

    TOFU's aggregate_eval_stat.py and open-unlearning agree; the TOFU paper writes the arithmetic mean.
    """
    return _exp(nll_paraphrase - float(np.mean(nll_perturbed)))


def truth_ratio_arithmetic(nll_paraphrase: float, nll_perturbed: Sequence[float]) -> float:
    """R = wrong / correct with the arithmetic mean: mean(exp(-nll_perturbed)) / exp(-nll_paraphrase) (TOFU, eq. 1)."""
    return float(np.mean([_exp(nll_paraphrase - wrong) for wrong in nll_perturbed]))


def closeness_to_one(ratio: float) -> float:
    """min(R, 1/R): 1 where wrong and correct are equally likely."""
    return ratio if ratio <= 1 else 1 / ratio


def truth_margin(ratio: float) -> float:
    """max(0, 1 - R): 1 where the wrong answers are impossible."""
    return max(0.0, 1 - ratio)


def truth_share(ratio: float) -> float:
    """correct / (correct + wrong) = 1 / (1 + R)."""
    return 1 / (1 + ratio)


def option_prob(nll: float, nll_wrong: Sequence[float]) -> float:
    """p / (p + sum of p_wrong) with p = exp(-nll), each p length-normalised."""
    return 1 / (1 + sum(_exp(nll - wrong) for wrong in nll_wrong))


def exact_memorization(greedy_T: np.ndarray) -> float | None:
    """Share of tokens that greedy decoding picks, given the true tokens before; None without tokens."""
    return float(np.mean(greedy_T)) if len(greedy_T) else None


def extraction_strength(greedy_T: np.ndarray) -> float | None:
    """Length of the longest suffix that greedy decoding reproduces, over T; 0 where even the last token differs."""
    if not len(greedy_T):
        return None
    misses = np.flatnonzero(~np.asarray(greedy_T, dtype=bool))
    first_of_suffix = int(misses[-1]) + 1 if misses.size else 0
    return 1 - first_of_suffix / len(greedy_T)


def zlib_score(nll: float, text: str) -> float:
    """Mean NLL over the number of bytes of the zlib-compressed text (Carlini et al. 2021)."""
    return nll / len(zlib.compress(text.encode("utf-8")))


def min_k(logp_T: np.ndarray, share: float = MIN_K_SHARE) -> float | None:
    """Mean NLL of the max(1, int(share * T)) least likely tokens (Min-K% Prob, Shi et al. 2024).

    None without tokens or with a non-finite one. Lower for members of the training set.
    """
    logp_T = np.asarray(logp_T, dtype=np.float64)
    if not logp_T.size or not np.isfinite(logp_T).all():
        return None
    n_lowest = max(1, int(share * logp_T.size))
    return -float(np.sort(logp_T)[:n_lowest].mean())


def min_k_plus_plus(
    logp_T: np.ndarray, vocab_mean_T: np.ndarray, vocab_std_T: np.ndarray, share: float = MIN_K_SHARE
) -> float | None:
    """Min-K% of (log p - mean) / std, mean and standard deviation of log p under p over the vocabulary.

    Min-K%++, Zhang et al. 2025. None under the same conditions as `min_k`.
    """
    std_T = np.maximum(np.asarray(vocab_std_T, dtype=np.float64), MIN_VOCAB_STD)
    return min_k((np.asarray(logp_T, dtype=np.float64) - np.asarray(vocab_mean_T, dtype=np.float64)) / std_T, share)


def auc(members: Sample, non_members: Sample) -> float:
    """P(score of a non-member > score of a member), ties count half: the attack's area under the ROC curve."""
    from scipy.stats import mannwhitneyu

    u_statistic = mannwhitneyu(non_members, members, method="asymptotic").statistic
    return float(u_statistic) / (len(members) * len(non_members))


def privleak(auc_model: float, auc_reference: float) -> float:
    """100 * ((1 - AUC) - (1 - AUC_ref)) / (1 - AUC_ref); the 1e-10 is MUSE's and open-unlearning's. 0 is best."""
    return 100 * ((1 - auc_model) - (1 - auc_reference)) / ((1 - auc_reference) + 1e-10)


def ks_p_value(ratios: Sample, reference_ratios: Sample) -> float:
    """p-value of the two-sided two-sample Kolmogorov-Smirnov test on raw (unfolded) ratios."""
    from scipy.stats import ks_2samp

    return float(ks_2samp(ratios, reference_ratios).pvalue)


def log10_p(p_value: float) -> float:
    """log10 of a p-value, clipped at the smallest positive normal float so that it stays finite."""
    return math.log10(max(p_value, sys.float_info.min))


def attack_score(auc_model: float, auc_reference: float) -> float:
    """1 - |AUC - AUC_ref| / max(AUC_ref, 1 - AUC_ref): 1 as the reference, 0 as far from it as an AUC can be."""
    return 1 - abs(auc_model - auc_reference) / max(auc_reference, 1 - auc_reference)


class Rouge(NamedTuple):
    """ROUGE of a generated text against a reference, each in [0, 1]."""

    rouge_1_recall: float
    rouge_l_recall: float
    rouge_l_f1: float


def has_ascii_word(text: str) -> bool:
    """Whether rouge-score sees any word in the text: it drops everything but ASCII letters and digits."""
    return re.search("[a-z0-9]", text.lower()) is not None


@functools.lru_cache(_CACHED_TEXTS)
def rouge(reference: str, generated: str, stem: bool = True) -> Rouge | None:
    """ROUGE-1 and ROUGE-L by rouge-score; None where the reference has no ASCII word.

    TOFU and open-unlearning stem, MUSE does not.
    """
    if not has_ascii_word(reference):
        return None
    if reference == generated:  # as rouge-score says, too, but only after a table of all pairs of words
        return Rouge(1.0, 1.0, 1.0)
    scores = _scorer(stem).score(reference, generated)
    return Rouge(scores["rouge1"].recall, scores["rougeL"].recall, scores["rougeL"].fmeasure)


@functools.cache
def _scorer(stem: bool) -> Any:
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    class Cached(DefaultTokenizer):  # type: ignore[misc]
        """Stemming is slow, and a reference answer is compared with what every model of a run has generated."""

        @functools.lru_cache(_CACHED_TEXTS)  # noqa: B019
        def tokenize(self, text: str) -> list[str]:
            return list(super().tokenize(text))

    return RougeScorer(["rouge1", "rougeL"], tokenizer=Cached(stem))


def distinct(text: str) -> float | None:
    """Distinct pairs of neighbouring words / all of them (distinct-2, Li et al. 2016); None under two words.

    Words are runs of letters and digits, and single other signs; case does not count.
    """
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    pairs = list(itertools.pairwise(words))
    return len(set(pairs)) / len(pairs) if pairs else None


def repetition(text: str) -> float:
    """Share of the characters that lie in a run of REPEATED_RUN characters which has begun before in the text.

    Blanks are folded and case does not count. (k - 1) / k for k times the same words, (n - 1) / n for n times the same
    letter, 0 for texts of up to REPEATED_RUN characters. Characters, since a broken model repeats what has no blanks.
    """
    text = " ".join(text.lower().split())
    starts = range(len(text) - REPEATED_RUN + 1)
    if len({text[i : i + REPEATED_RUN] for i in starts}) == len(starts):
        return 0.0
    seen: set[str] = set()
    n_repeated = end = 0
    for i in starts:
        run = text[i : i + REPEATED_RUN]
        if run in seen:
            n_repeated += i + REPEATED_RUN - max(i, end)
            end = i + REPEATED_RUN
        seen.add(run)
    return n_repeated / len(text)


def is_gibberish(generated: str, repeated: float, generated_nll: float | None) -> bool:
    """Whether a generation says nothing: no word, mostly repetition, or unlikely text under the reference model."""
    unlikely = generated_nll is not None and generated_nll > GIBBERISH_NLL
    return unlikely or repeated > GIBBERISH_REPETITION or re.search(r"\w", generated) is None
