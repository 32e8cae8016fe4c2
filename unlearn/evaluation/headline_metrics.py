"""Metrics of a whole model: the benchmarks' headline numbers, membership inference, and aggregates of metrics."""

from __future__ import annotations

import math
from collections.abc import Callable

from unlearn.evaluation import formulas, values
from unlearn.evaluation.metric import MUSE, OPEN_UNLEARNING, TOFU, UNIT, UTILITY_SETS, Direction, Inputs, Metric
from unlearn.evaluation.values import Estimate

UTILITY_TERMS = tuple(f"{name}.{term}" for name in UTILITY_SETS for term in ("prob", "rouge_l_recall", "truth_ratio"))
PRIVACY_TERMS = tuple(f"forget.{attack}_auc" for attack in ("loss", "zlib", "min_k", "min_k_plus_plus"))

Compute = Callable[[Inputs], Estimate]


def _of_metrics(*names: str) -> Compute:
    return lambda inputs: values.harmonic_mean_of({name: inputs.estimate(name) for name in names})


def _one_minus(inputs: Inputs, name: str) -> Estimate:
    found = inputs.estimate(name)
    return found if found.value["value"] is None else values.combine(lambda x: 1 - x, found)


def _forget_quality(inputs: Inputs) -> Estimate:
    if inputs.reference is None:
        return values.unscored(inputs.no_reference)
    return values.forget_quality(inputs.model, inputs.reference)


def _forget_quality_log10(inputs: Inputs) -> Estimate:
    quality = inputs.estimate("forget_quality")
    return quality if quality.value["value"] is None else values.combine(formulas.log10_p, quality)


def _forget_quality_shift(inputs: Inputs) -> Estimate:
    quality = inputs.estimate("forget_quality")
    if inputs.reference is None or quality.value["value"] is None:
        return quality
    return values.median_shift(inputs.model, inputs.reference, quality)


def _privleak(inputs: Inputs) -> Estimate:
    if inputs.reference is None:
        return values.unscored(inputs.no_reference)
    return values.privleak(inputs.estimate("forget.min_k_auc"), values.attack_auc(inputs.reference, "min_k"))


def _muse(name: str, set_name: str, title: str, direction: Direction, asked: str) -> Metric:
    return Metric(
        name=name,
        title=title,
        group="headline",
        direction=direction,
        range=UNIT,
        formula=f"mean ROUGE-L F1, without stemming, of the greedy generation on {set_name}: {asked}",
        source=f"{MUSE}, which prints it times 100; open-unlearning stems ({set_name}.rouge_l_f1)",
        sets=(set_name,),
        compute=lambda inputs: values.mean_of(inputs.model, set_name, "rouge_l_f1_unstemmed"),
    )


KNOWMEM = "questions behind solved examples, 32 new tokens, cut at a blank line or the next question"

HEADLINE = (
    Metric(
        name="model_utility",
        title="Model utility",
        group="headline",
        direction="higher",
        range=UNIT,
        formula="harmonic mean of prob, rouge_l_recall and truth_ratio on retain, real_authors and world_facts",
        source=f"{TOFU}; its code and open-unlearning agree",
        sets=UTILITY_SETS,
        compute=_of_metrics(*UTILITY_TERMS),
    ),
    Metric(
        name="forget_quality",
        title="Forget quality (KS p-value)",
        group="headline",
        direction="higher",
        range=UNIT,
        formula="two-sample Kolmogorov-Smirnov p-value of the raw truth ratios R on forget against the reference's; "
        "resampling moves it down, so that the interval reaches up to the value where it would end below",
        source=f"{TOFU}; its code and open-unlearning agree (they test 1/R, which has the same p-value)",
        sets=("forget",),
        compute=_forget_quality,
    ),
    Metric(
        name="forget_quality_log10",
        title="Forget quality (log10 p)",
        group="headline",
        direction="higher",
        range=(-math.inf, 0.0),
        formula="log10(forget_quality), p clipped at the smallest normal float (about -307.7)",
        source=f"{TOFU} plots log p; kept apart from the p-value, because published tables mix the two",
        sets=("forget",),
        compute=_forget_quality_log10,
    ),
    Metric(
        name="forget_quality_shift",
        title="Forget quality (shift of the median)",
        group="headline",
        direction="reference",
        range=(-math.inf, math.inf),
        formula="median R on forget minus the reference's; > 0 forgotten more than never seen, < 0 less",
        source="ours: the sign that the two-sided p-value hides",
        sets=("forget",),
        compute=_forget_quality_shift,
    ),
    _muse("verbmem_f", "forget_verbmem", "Verbatim memorization (VerbMem)", "lower",
          "excerpts of the forget texts continued, 128 new tokens"),
    _muse("knowmem_f", "forget_knowmem", "Knowledge of the forget texts (KnowMem)", "lower", KNOWMEM),
    _muse("knowmem_r", "retain_knowmem", "Knowledge of the retain texts (KnowMem)", "higher", KNOWMEM),
    Metric(
        name="privleak",
        title="PrivLeak",
        group="headline",
        direction="reference",
        range=(-100.0, math.inf),
        formula="100 * ((1 - AUC) - (1 - AUC_ref)) / (1 - AUC_ref + 1e-10), AUC = forget.min_k_auc",
        source=f"{MUSE}, which writes 100 * (AUC' - AUC'_ref) / AUC'_ref with AUC' = 1 - AUC: the same; the AUC'_ref "
        "in its code, 0.4772 (news) and 0.5393 (books), are those of its retrained Llama-2 models and of no other. "
        "open-unlearning agrees, but takes AUC_ref = 0.5 where it has no reference",
        sets=("forget", "holdout"),
        compute=_privleak,
        prompted=False,
    ),
)  # fmt: skip


def _attack(score: str, title: str, formula: str, source: str) -> Metric:
    return Metric(
        name=f"forget.{'loss' if score == 'nll' else score}_auc",
        title=f"{title} attack AUC",
        group="privacy",
        direction="reference",
        range=UNIT,
        formula=f"P(score of a holdout row > score of a forget row), ties half; score = {formula}",
        source=source,
        sets=("forget", "holdout"),
        compute=lambda inputs: values.attack_auc(inputs.model, score),
        prompted=False,
    )


LOWEST_40 = "of the max(1, int(0.4 T)) least likely content tokens"
SCORES_OF_ATTACKS = {
    "forget.loss_auc": "nll",
    "forget.zlib_auc": "zlib",
    "forget.min_k_auc": "min_k",
    "forget.min_k_plus_plus_auc": "min_k_plus_plus",
}
ATTACKS = (
    _attack("nll", "LOSS", "mean NLL, end marker included", "Yeom et al. 2018, open-unlearning"),
    _attack("zlib", "zlib", "mean NLL / bytes of the zlib-compressed answer", "Carlini et al. 2021, open-unlearning"),
    _attack("min_k", "Min-K%", f"mean NLL {LOWEST_40}", "Shi et al. 2024, open-unlearning; MUSE on whole texts"),
    _attack(
        "min_k_plus_plus",
        "Min-K%++",
        f"minus the mean of (log p - mean) / std {LOWEST_40}, mean and std of log p under p over the vocabulary",
        "Zhang et al. 2025, open-unlearning",
    ),
)


def _memorization(inputs: Inputs) -> Estimate:
    terms = ("extraction_strength", "exact_memorization", "paraphrase_prob", "truth_ratio_prob")
    return values.harmonic_mean_of({f"forget.{term}": _one_minus(inputs, f"forget.{term}") for term in terms})


def _privacy(inputs: Inputs) -> Estimate:
    if inputs.reference is None:
        return values.unscored(inputs.no_reference)
    terms = {}
    for name, score in SCORES_OF_ATTACKS.items():
        auc_reference = values.attack_auc(inputs.reference, score)
        terms[name] = values.compare_aucs(formulas.attack_score, inputs.estimate(name), auc_reference)
    return values.harmonic_mean_of(terms)


def _aggregate(
    name: str, title: str, formula: str, source: str, sets: tuple[str, ...], compute: Compute, prompted: bool = True
) -> Metric:
    return Metric(name, title, "aggregates", "higher", UNIT, formula, source, sets, compute, prompted)


AGGREGATES = (
    _aggregate(
        "fluency", "Fluency on forget", "1 - forget.gibberish",
        "ours, in place of open-unlearning's classifier of gibberish", ("forget",),
        lambda inputs: _one_minus(inputs, "forget.gibberish"),
    ),
    _aggregate(
        "memorization", "Memorization score",
        "harmonic mean of 1 - extraction_strength, 1 - exact_memorization, 1 - paraphrase_prob and "
        "1 - truth_ratio_prob on forget; high is little memorized",
        f"{OPEN_UNLEARNING}, whose truth ratio is correct / (correct + wrong) here; the code that made its tables is "
        "lost (open-unlearning issue 150), and its published logs give other numbers than its table",
        ("forget",), _memorization,
    ),
    _aggregate(
        "privacy", "Privacy score",
        "harmonic mean over the LOSS, zlib, Min-K% and Min-K%++ attacks of "
        "1 - |AUC - AUC_ref| / max(AUC_ref, 1 - AUC_ref)",
        f"harmonic mean: {OPEN_UNLEARNING}; the score of one attack is ours: theirs, 1 where the model is as the "
        "reference, was never published (open-unlearning issue 172)",
        ("forget", "holdout"), _privacy, prompted=False,
    ),
    _aggregate(
        "utility", "Utility score", "harmonic mean of model_utility and fluency",
        f"{OPEN_UNLEARNING} with our fluency; in its tables the start model has 1.00, so it seems to be divided by the "
        "start model's there, and is not here", ("forget", *UTILITY_SETS), _of_metrics("model_utility", "fluency"),
    ),
    _aggregate(
        "overall", "Overall score", "harmonic mean of memorization, privacy and utility",
        f"{OPEN_UNLEARNING}; open-unlearning issue 150. See the three for what is ours",
        ("forget", "holdout", *UTILITY_SETS), _of_metrics("memorization", "privacy", "utility"),
    ),
)  # fmt: skip
