"""The registry of metrics: one name, one definition. Reports, tables and docs render what stands here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from unlearn.evaluation import formulas, values
from unlearn.evaluation.scores import Scores
from unlearn.evaluation.values import Value

Direction = Literal["higher", "lower", "reference"]

UTILITY_SETS = ("retain", "real_authors", "world_facts")
UTILITY_TERMS = tuple(f"{name}.{term}" for name in UTILITY_SETS for term in ("prob", "rouge_l_recall", "truth_ratio"))


@dataclass(frozen=True)
class Inputs:
    """What a metric sees: the model's scores, and the reference's or the reason why there are none."""

    scores: Scores
    reference: Scores | None
    no_reference: str


@dataclass(frozen=True)
class Metric:
    """What a name means. `direction` "reference": closest to the reference model's value is best."""

    name: str
    title: str
    group: str
    direction: Direction
    range: tuple[float, float]
    formula: str
    source: str
    compute: Callable[[Inputs], Value] = field(repr=False, compare=False)


def evaluate(scores: Scores, reference: Scores | None, reason_without_reference: str = "") -> dict[str, Value]:
    """Every metric of METRICS, in its order. `reference` is the model trained on the retain set alone.

    Without a reference, what needs one is None with `reason_without_reference` as reason.
    """
    inputs = Inputs(scores, reference, reason_without_reference or "no reference scores")
    return {name: metric.compute(inputs) for name, metric in METRICS.items()}


TOFU = "TOFU (Maini et al. 2024)"
OPEN_UNLEARNING = "OpenUnlearning (Dorna et al. 2025)"
UNIT = (0.0, 1.0)


def _model_utility(inputs: Inputs) -> Value:
    return values.harmonic_mean({name: METRICS[name].compute(inputs) for name in UTILITY_TERMS})


def _privleak(inputs: Inputs) -> Value:
    if inputs.reference is None:
        return values.unscored(inputs.no_reference)
    return values.privleak(inputs.scores, inputs.reference)


def _compared(statistic: values.Statistic) -> Callable[[Inputs], Value]:
    def compute(inputs: Inputs) -> Value:
        if inputs.reference is None:
            return values.unscored(inputs.no_reference)
        return values.compare_truth_ratios(inputs.scores, inputs.reference, statistic)

    return compute


HEADLINE = (
    Metric(
        name="model_utility",
        title="Model utility",
        group="headline",
        direction="higher",
        range=UNIT,
        formula="harmonic mean of prob, rouge_l_recall and truth_ratio on retain, real_authors and world_facts",
        source=f"{TOFU}; its code and open-unlearning agree",
        compute=_model_utility,
    ),
    Metric(
        name="forget_quality",
        title="Forget quality (KS p-value)",
        group="headline",
        direction="higher",
        range=UNIT,
        formula="two-sample Kolmogorov-Smirnov p-value of the raw truth ratios R on forget against the reference's",
        source=f"{TOFU}; its code and open-unlearning agree (they test 1/R, which has the same p-value)",
        compute=_compared(formulas.ks_p_value),
    ),
    Metric(
        name="forget_quality_log10",
        title="Forget quality (log10 p)",
        group="headline",
        direction="higher",
        range=(-math.inf, 0.0),
        formula="log10(forget_quality), p clipped at the smallest normal float (about -307.7)",
        source=f"{TOFU} plots log p; kept apart from the p-value, because published tables mix the two",
        compute=_compared(values.log10_ks_p_value),
    ),
    Metric(
        name="forget_quality_shift",
        title="Forget quality (shift of the median)",
        group="headline",
        direction="reference",
        range=(-math.inf, math.inf),
        formula="median R on forget minus the reference's; > 0 forgotten more than never seen, < 0 less",
        source="ours: the sign that the two-sided p-value hides",
        compute=_compared(values.median_shift),
    ),
    Metric(
        name="privleak",
        title="PrivLeak",
        group="headline",
        direction="reference",
        range=(-100.0, math.inf),
        formula="100 * ((1 - AUC) - (1 - AUC_ref)) / (1 - AUC_ref + 1e-10), AUC = forget.min_k_auc",
        source="MUSE (Shi et al. 2024); open-unlearning agrees, but takes AUC_ref = 0.5 where it has no reference",
        compute=_privleak,
    ),
)


@dataclass(frozen=True)
class _Mean:
    """The metrics `<set>.<suffix>` that are the mean of one score, folded, over each of these sets."""

    suffix: str
    score: str
    title: str
    formula: str
    source: str
    sets: tuple[str, ...] = ("forget", *UTILITY_SETS)
    fold: Callable[[float], float] = float
    forget_direction: Direction = "lower"
    utility_direction: Direction = "higher"

    def metric(self, name: str) -> Metric:
        def compute(inputs: Inputs) -> Value:
            return values.mean_of(inputs.scores, name, self.score, self.fold)

        return Metric(
            name=f"{name}.{self.suffix}",
            title=f"{name.replace('_', ' ').capitalize()}: {self.title}",
            group=name,
            direction=self.forget_direction if name == "forget" else self.utility_direction,
            range=UNIT,
            formula=self.formula,
            source=self.source,
            compute=compute,
        )


GEOMETRIC = "R = exp(nll(paraphrase) - mean nll(perturbed)); a set without paraphrases takes the answer's own nll"
ARITHMETIC = "R = mean(exp(-nll(perturbed))) / exp(-nll(paraphrase))"
GEOMETRIC_SOURCE = (
    "TOFU's aggregate_eval_stat.py and open-unlearning; the latter adds 1e-10 to the denominator, which lowers R where "
    "p(paraphrase) is of that order"
)
ARITHMETIC_SOURCE = (
    f"{TOFU} and utils.py of its code; its aggregate_eval_stat.py and open-unlearning take the geometric mean"
)
ROUGE_SOURCE = (
    "rouge-score with stemmer, as TOFU's code and open-unlearning; it drops non-ASCII text: a reference without an "
    "ASCII word is unscored here, 0 there"
)
PROB_SOURCE = f"{TOFU}; its code and open-unlearning agree"
CONTENT_ONLY = "content tokens only, end marker and template tail excluded"

MEANS = (
    _Mean("prob", "prob", "probability", "mean exp(-nll), nll per answer token, end marker included", PROB_SOURCE,
          sets=("forget", "retain")),
    _Mean("prob", "prob_options", "probability among the options",
          "mean p / (p + sum of p(wrong)), p = exp(-nll) length-normalised",
          "TOFU's code and open-unlearning (the TOFU paper writes p without length normalisation)",
          sets=("real_authors", "world_facts")),
    _Mean("prob_raw", "prob", "probability", "mean exp(-nll), nll per answer token, end marker included", PROB_SOURCE,
          sets=("real_authors", "world_facts")),
    _Mean("rouge_l_recall", "rouge_l_recall", "ROUGE-L recall", "mean ROUGE-L recall of the greedy generation",
          ROUGE_SOURCE),
    _Mean("rouge_l_f1", "rouge_l_f1", "ROUGE-L F1", "mean ROUGE-L F1 of the greedy generation", ROUGE_SOURCE),
    _Mean("rouge_1_recall", "rouge_1_recall", "ROUGE-1 recall", "mean ROUGE-1 recall of the greedy generation",
          ROUGE_SOURCE),
    _Mean("hit_limit", "hit_limit", "generations cut by the length limit",
          "share of generations that end at max_new_tokens", "ours: recall does not see text after the answer",
          utility_direction="lower"),
    _Mean("truth_ratio", "truth_ratio", "truth ratio", f"mean min(R, 1/R), {GEOMETRIC}", GEOMETRIC_SOURCE,
          sets=("forget",), fold=formulas.closeness_to_one, forget_direction="higher"),
    _Mean("truth_ratio", "truth_ratio", "truth ratio", f"mean max(0, 1 - R), {GEOMETRIC}", GEOMETRIC_SOURCE,
          sets=UTILITY_SETS, fold=formulas.truth_margin),
    _Mean("truth_ratio_arithmetic", "truth_ratio_arithmetic", "truth ratio, arithmetic",
          f"mean min(R, 1/R), {ARITHMETIC}", ARITHMETIC_SOURCE,
          sets=("forget",), fold=formulas.closeness_to_one, forget_direction="higher"),
    _Mean("truth_ratio_arithmetic", "truth_ratio_arithmetic", "truth ratio, arithmetic",
          f"mean max(0, 1 - R), {ARITHMETIC}", ARITHMETIC_SOURCE, sets=UTILITY_SETS, fold=formulas.truth_margin),
    _Mean("truth_ratio_prob", "truth_ratio", "preference for the truth",
          f"mean correct / (correct + wrong) = 1 / (1 + R), {GEOMETRIC}",
          f"{OPEN_UNLEARNING}, whose code offers it as prob_mean", fold=formulas.truth_share),
    _Mean("exact_memorization", "exact_memorization", "exact memorization",
          f"mean share of tokens that greedy decoding picks, given the true tokens before; {CONTENT_ONLY}",
          f"{OPEN_UNLEARNING}; open-unlearning drops the last label whatever it is", sets=("forget",)),
    _Mean("extraction_strength", "extraction_strength", "extraction strength",
          f"mean length share of the longest suffix that greedy decoding reproduces; {CONTENT_ONLY}",
          f"Carlini et al. 2021, {OPEN_UNLEARNING}; open-unlearning gives 1/T where no suffix matches, 0 here",
          sets=("forget",)),
)  # fmt: skip


def _attack(score: str, title: str, formula: str, source: str) -> Metric:
    def compute(inputs: Inputs) -> Value:
        return values.attack_auc(inputs.scores, score)

    return Metric(
        name=f"forget.{'loss' if score == 'nll' else score}_auc",
        title=f"{title} attack AUC",
        group="privacy",
        direction="reference",
        range=UNIT,
        formula=f"P(score of a holdout row > score of a forget row), ties half; score = {formula}",
        source=source,
        compute=compute,
    )


LOWEST_40 = "of the max(1, int(0.4 T)) least likely content tokens"
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


def _registry() -> Iterator[Metric]:
    yield from HEADLINE
    for name in ("forget", *UTILITY_SETS):
        yield from (mean.metric(name) for mean in MEANS if name in mean.sets)
    yield from ATTACKS


METRICS: dict[str, Metric] = {metric.name: metric for metric in _registry()}
