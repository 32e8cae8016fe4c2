"""Closed forms of single examples and samples. The arithmetic of every expected number stands beside it."""

from __future__ import annotations

import math
import random
import zlib

import numpy as np
import pytest

from unlearn.evaluation import formulas

LN = math.log


def nlls(*probs: float) -> list[float]:
    return [-LN(p) for p in probs]


def test_truth_ratio_geometric_and_arithmetic_means_of_the_wrong_answers() -> None:
    wrong = nlls(0.1, 0.4, 0.1)
    assert formulas.truth_ratio(-LN(0.2), wrong) == pytest.approx((0.1 * 0.4 * 0.1) ** (1 / 3) / 0.2)  # 0.794
    assert formulas.truth_ratio_arithmetic(-LN(0.2), wrong) == pytest.approx((0.1 + 0.4 + 0.1) / 3 / 0.2)  # 1.000


def test_truth_ratio_stays_finite_and_positive_at_the_extremes() -> None:
    for paraphrase, perturbed in ((5000.0, [0.0]), (0.0, [5000.0])):
        for ratio in (
            formulas.truth_ratio(paraphrase, perturbed),
            formulas.truth_ratio_arithmetic(paraphrase, perturbed),
        ):
            assert 0 < ratio < math.inf
            assert 0 <= formulas.closeness_to_one(ratio) < 1e-300
            assert formulas.truth_share(ratio) in (pytest.approx(0, abs=1e-300), 1)


@pytest.mark.parametrize(
    ("ratios", "closeness", "margin", "share"),
    [
        ([0.5, 2.0], (0.5 + 1 / 2) / 2, (0.5 + 0) / 2, (2 / 3 + 1 / 3) / 2),
        ([0.5, 0.5], 0.5, 0.5, 2 / 3),
        ([1.0, 1.0], 1.0, 0.0, 0.5),
    ],
)
def test_three_foldings_of_the_truth_ratio(ratios: list[float], closeness: float, margin: float, share: float) -> None:
    assert np.mean([formulas.closeness_to_one(r) for r in ratios]) == pytest.approx(closeness)
    assert np.mean([formulas.truth_margin(r) for r in ratios]) == pytest.approx(margin)
    assert np.mean([formulas.truth_share(r) for r in ratios]) == pytest.approx(share)


def test_option_probability_is_length_normalised() -> None:
    right, wrong = 2 / 2, 3 / 4  # nats per token: two tokens of log-probability -2 in all, four of -3
    assert formulas.option_prob(right, [wrong]) == pytest.approx(math.exp(-1) / (math.exp(-1) + math.exp(-0.75)))
    assert formulas.option_prob(right, [wrong]) == pytest.approx(0.438, abs=5e-4)
    assert math.exp(-2) / (math.exp(-2) + math.exp(-3)) == pytest.approx(0.731, abs=5e-4)  # what it is not
    assert formulas.option_prob(5000, [0]) == pytest.approx(0)


@pytest.mark.parametrize(
    ("greedy", "exact", "strength"),
    [
        ([True, True], 1, 1),
        ([True, True, False], 2 / 3, 0),  # the last token differs: no suffix
        ([False, True, True], 2 / 3, 2 / 3),
        ([True, False, True, True], 3 / 4, 2 / 4),
        ([False], 0, 0),
    ],
)
def test_exact_memorization_and_extraction_strength(greedy: list[bool], exact: float, strength: float) -> None:
    assert formulas.exact_memorization(np.array(greedy)) == pytest.approx(exact)
    assert formulas.extraction_strength(np.array(greedy)) == pytest.approx(strength)


def test_no_token_has_no_score() -> None:
    empty = np.array([])
    assert formulas.mean_nll(empty) is None
    assert formulas.exact_memorization(empty) is None
    assert formulas.extraction_strength(empty) is None
    assert formulas.min_k(empty) is None
    assert formulas.min_k_plus_plus(empty, empty, empty) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_log_probability_has_no_score(bad: float) -> None:
    logp_T, ones_T = np.array([-1.0, bad]), np.ones(2)
    assert formulas.mean_nll(logp_T) is None
    assert formulas.min_k(logp_T) is None
    assert formulas.min_k_plus_plus(ones_T, logp_T, ones_T) is None


def test_min_k_takes_at_least_one_token() -> None:
    logp_T = -np.arange(1.0, 13)
    assert formulas.min_k(logp_T, share=0.05) == 12  # int(12 * 0.05) = 0, so the one least likely token
    assert formulas.min_k(logp_T) == (12 + 11 + 10 + 9) / 4  # int(12 * 0.4) = 4


def test_min_k_plus_plus_standardises_and_bounds_the_deviation() -> None:
    logp_T, mean_T = np.array([-3.0, -1.0, -2.0]), np.array([-2.0, -2.0, -2.0])
    # z = (-1, 1, 0) / 0.5; int(3 * 0.4) = 1 token, the first
    assert formulas.min_k_plus_plus(logp_T, mean_T, np.full(3, 0.5)) == pytest.approx(2)
    assert formulas.min_k_plus_plus(logp_T, mean_T, np.zeros(3)) == pytest.approx(1 / 1e-3)


def test_zlib_score_counts_bytes_of_the_compressed_text() -> None:
    text = "Müller, Müller, Müller, Müller"
    assert formulas.zlib_score(2.0, text) == 2 / len(zlib.compress(text.encode()))


def test_auc_counts_pairs_and_half_of_the_ties() -> None:
    assert formulas.auc([1, 2], [3, 4]) == 1
    assert formulas.auc([3, 4], [1, 2]) == 0
    assert formulas.auc([1, 1, 1], [1, 1]) == 0.5
    assert formulas.auc([1, 3], [2, 3, 0]) == pytest.approx((2 + 0.5) / 6)  # 2 > 1, 3 > 1, 3 = 3


def test_privleak_is_the_relative_difference_of_one_minus_auc() -> None:
    assert formulas.privleak(1.0, 0.5) == pytest.approx(-100)
    assert formulas.privleak(0.4, 0.5) == pytest.approx(100 * (0.6 - 0.5) / 0.5)
    assert formulas.privleak(0.4, 0.4) == 0


def test_kolmogorov_smirnov_sees_what_folding_hides() -> None:
    high, low = [2.0] * 40, [0.5] * 40
    assert formulas.ks_p_value(high, low) == pytest.approx(1.9e-23, rel=0.05)
    folded = [[formulas.closeness_to_one(r) for r in ratios] for ratios in (high, low)]
    assert formulas.ks_p_value(*folded) == 1


def test_kolmogorov_smirnov_is_the_same_for_any_monotone_transform() -> None:
    rng = np.random.default_rng(0)
    a, b = np.exp(rng.normal(0, 1, 400)), np.exp(rng.normal(0.1, 1, 400))
    p = formulas.ks_p_value(a, b)
    assert 1e-6 < p < 1
    assert formulas.ks_p_value(1 / a, 1 / b) == pytest.approx(p, abs=1e-12)
    assert formulas.ks_p_value(1 / (1 + a), 1 / (1 + b)) == pytest.approx(p, abs=1e-12)


def test_kolmogorov_smirnov_of_equal_and_of_disjoint_samples() -> None:
    sample = list(np.linspace(0, 1, 400))
    assert formulas.ks_p_value(sample, sample) == 1
    assert formulas.log10_p(1) == 0
    # two disjoint samples of n: 2 of the (2n choose n) interleavings
    p = formulas.ks_p_value(sample, [x + 2 for x in sample])
    assert p == pytest.approx(2 / math.comb(800, 400), rel=1e-9)
    assert p == pytest.approx(1.1e-239, rel=0.05)
    assert formulas.log10_p(p) == pytest.approx(math.log10(2) - math.log10(math.comb(800, 400)))
    assert math.isfinite(formulas.log10_p(0))


def test_rouge_recall_does_not_see_what_follows_the_answer() -> None:
    reference = "The author is Hina Ameen"
    uncut = formulas.rouge(
        reference, f"{reference}\n\nQuestion: Where was she born?\nAnswer: Karachi, Pakistan in 1975"
    )
    assert uncut is not None
    assert uncut.rouge_l_recall == 1
    assert uncut.rouge_l_f1 == pytest.approx(2 * (5 / 15) / (1 + 5 / 15))  # 5 of 15 words, all 5 found: 0.50
    assert formulas.rouge(reference, reference) == (1, 1, 1)


def test_rouge_variants() -> None:
    percentage = formulas.rouge("40%", "The percentage was 40% according to the report")
    assert percentage is not None
    assert percentage.rouge_l_recall == 1
    assert percentage.rouge_l_f1 == pytest.approx(2 * (1 / 8) / (1 + 1 / 8))  # 1 of 8 words: 0.222
    # "authors" is stemmed to "author", "are" and "named" find nothing in "The author is Hina Ameen": 4 of 5, else 3
    for stem, n_found in ((True, 4), (False, 3)):
        named = formulas.rouge("The author is Hina Ameen", "The authors are named Hina Ameen", stem)
        assert named is not None
        assert named.rouge_l_recall == pytest.approx(n_found / 5)
        assert named.rouge_l_f1 == pytest.approx(2 * n_found / (5 + 6))


@pytest.mark.parametrize("stem", [True, False])
def test_rouge_equals_rouge_score_to_the_bit(stem: bool) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=stem)
    rng = random.Random(0)
    words = ["The", "author's", "writing", "wrote", "novels", "novel,", "é", "東京", "40%", "a-b", "\n", "U.S.", "_x_"]

    def text() -> str:
        return " ".join(rng.choices(words, k=rng.choice([0, 1, 2, 5, 40, 130])))

    n_compared = 0
    for _ in range(300):
        reference, generated = text(), text()
        if rng.random() < 0.2:
            generated = reference
        ours = formulas.rouge(reference, generated, stem)
        if ours is None:
            assert not formulas.has_ascii_word(reference)
            continue
        theirs = scorer.score(reference, generated)
        assert ours == (theirs["rouge1"].recall, theirs["rougeL"].recall, theirs["rougeL"].fmeasure)
        n_compared += 1
    assert n_compared > 200


def test_rouge_of_a_reference_that_rouge_score_cannot_read_is_unscored() -> None:
    assert formulas.rouge("東京", "東京") is None
    assert formulas.rouge("", "anything") is None
    assert formulas.rouge("Tokyo", "東京") == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("the cat and the cat", 3 / 4),  # the cat, cat and, and the, the cat
        ("The cat, the CAT", 3 / 4),  # case does not count, a sign does
        ("no no no no no", 1 / 4),
        ("a b c", 1),
        ("1996", None),
        ("", None),
    ],
)
def test_distinct_pairs_of_words(text: str, share: float | None) -> None:
    assert formulas.distinct(text) == share


@pytest.mark.parametrize("k", [2, 3, 10])
def test_repetition_of_a_text_said_k_times(k: int) -> None:
    sentence = "Hina Ameen writes about the rocks of Karachi. "
    assert formulas.repetition(sentence * k) == pytest.approx((k - 1) / k, abs=0.02)  # the last blank is no character
    assert formulas.repetition("/" * 21 * k) == pytest.approx(1 - 1 / (21 * k))
    assert formulas.repetition("東京" * 20 * k) == pytest.approx(1 - 2 / (40 * k))


def test_repetition_of_short_and_of_ordinary_texts() -> None:
    assert formulas.repetition("") == 0
    assert formulas.repetition("no " * 7) == 0  # 20 characters have one run
    assert formulas.repetition("Hina Ameen was born in Karachi; Hina Ameen studied in Karachi.") == 0
    # "the rocks of karachi, " has 22 characters, so three runs begin again; folded, the text has 55
    assert formulas.repetition("THE ROCKS OF KARACHI, by her,  the rocks of Karachi, ...") == pytest.approx(22 / 55)


@pytest.mark.parametrize(
    ("text", "repeated", "nll", "gibberish"),
    [
        ("It is Hina Ameen", 0.0, None, False),
        ("It is Hina Ameen", 0.5, 6.0, False),  # both thresholds are allowed themselves
        ("It is Hina Ameen", 0.51, None, True),
        ("It is Hina Ameen", 0.0, 6.01, True),
        ("", 0.0, None, True),
        (" \n", 0.0, None, True),
        ("?!...", 0.0, 1.0, True),
        ("東京", 0.0, None, False),
    ],
)
def test_what_counts_as_gibberish(text: str, repeated: float, nll: float | None, gibberish: bool) -> None:
    assert formulas.is_gibberish(text, repeated, nll) is gibberish


def test_the_attack_score_is_one_at_the_reference_and_zero_at_the_far_end() -> None:
    assert formulas.attack_score(0.4, 0.4) == 1
    assert formulas.attack_score(1.0, 0.4) == 0  # 0.6 away, the farthest that an AUC can be
    assert formulas.attack_score(0.0, 0.4) == pytest.approx(1 - 0.4 / 0.6)
    assert formulas.attack_score(0.75, 0.5) == pytest.approx(0.5)
