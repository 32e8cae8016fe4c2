"""Scores of all examples -> one value, with its count of rows, its interval and what a reader must know. No name, no
metadata.

Legend of shapes: B resamples of a set's examples, N rows with a score.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import numpy as np

from unlearn.evaluation import formulas, intervals
from unlearn.evaluation.scores import Row, Scores

# Below this the Kolmogorov-Smirnov test sees gross differences only: with 40 rows against 40 the two distribution
# functions must be about 0.3 apart before p falls under 0.05.
SMALL_N = 50
MATCHED_P = 0.05


class Value(TypedDict):
    """A metric's value, ready for JSON: `value` is None where unscored, and then `reason` says why.

    n         rows that entered (terms, for a mean of metrics)
    dropped   rows without a finite score, where there are any
    interval  bootstrap 95 %, [low, high]
    note      what a reader must know to read the value
    """

    value: float | None
    n: int
    dropped: NotRequired[int]
    interval: NotRequired[list[float]]
    reason: NotRequired[str]
    note: NotRequired[str]


@dataclass(frozen=True)
class Estimate:
    """A value, and what it would be under each resample of the examples; no draws where no interval is wanted."""

    value: Value
    draws_B: np.ndarray | None = None

    def finish(self) -> Value:
        """The value with its interval."""
        point = self.value["value"]
        if point is None or self.draws_B is None:
            return self.value
        return {**self.value, "interval": intervals.interval(point, self.draws_B)}


@dataclass(frozen=True)
class Column:
    """One score over a set: the finite values, how often each is drawn, and why the other rows have none."""

    set_name: str
    x_N: np.ndarray
    counts_BN: np.ndarray | None
    missing: list[str]

    @property
    def why_empty(self) -> str:
        if not self.missing:
            return f"no {self.set_name} rows"
        reason, _ = Counter(self.missing).most_common(1)[0]
        return f"none of {len(self.missing)} {self.set_name} rows is scored: {reason}"


class Sample:
    """The scores of one model, and the resamples of each of its sets; `model` keeps two models' resamples apart."""

    def __init__(self, scores: Scores, model: str, with_intervals: bool) -> None:
        self.scores, self.model, self.with_intervals = scores, model, with_intervals
        self._counts: dict[str, np.ndarray] = {}

    def column(self, name: str, score: str, fold: Callable[[float], float] = float) -> Column:
        """fold(score) of the rows of a set."""
        rows = self.scores.rows(name)
        given = [getattr(row, score) for row in rows]
        present = [value is not None and math.isfinite(value) for value in given]
        x_N = np.array([fold(float(value)) for value, has in zip(given, present, strict=True) if has])
        missing = [_why_missing(row, score) for row, has in zip(rows, present, strict=True) if not has]
        counts = self._drawn(name, len(rows)) if self.with_intervals and len(x_N) else None
        return Column(name, x_N, counts[:, present] if counts is not None and missing else counts, missing)

    def _drawn(self, name: str, n: int) -> np.ndarray:
        if name not in self._counts:
            self._counts[name] = intervals.draw(n, f"{self.model}/{name}")
        return self._counts[name]


def unscored(reason: str, n: int = 0) -> Estimate:
    """The Estimate of a metric that has no value."""
    return Estimate({"value": None, "n": n, "reason": reason})


def mean_of(sample: Sample, name: str, score: str, fold: Callable[[float], float] = float) -> Estimate:
    """Mean of fold(score) over the rows of a set that have the score."""
    column = sample.column(name, score, fold)
    if not column.x_N.size:
        return unscored(column.why_empty)
    value: Value = {"value": float(column.x_N.mean()), "n": len(column.x_N)}
    draws = None if column.counts_BN is None else intervals.mean(column.x_N, column.counts_BN)
    return Estimate(_annotate(value, column.missing), draws)


def combine(formula: Callable[..., float], first: Estimate, *others: Estimate) -> Estimate:
    """formula(first, *others), all scored, with the count and notes of the first; nan leaves a resample out."""
    estimates = (first, *others)
    value: Value = {**first.value, "value": formula(*(one.value["value"] for one in estimates))}
    draws = [one.draws_B for one in estimates if one.draws_B is not None]
    if len(draws) < len(estimates):
        return Estimate(value)
    return Estimate(value, np.array([formula(*each) for each in zip(*(d.tolist() for d in draws), strict=True)]))


def harmonic_mean(terms: Mapping[str, Value]) -> Value:
    """Harmonic mean of metrics: 0 where one is 0, None where one is None (never the mean of the others)."""
    values = [term["value"] for term in terms.values() if term["value"] is not None]
    if len(values) < len(terms):
        reasons = [f"{name} ({term['reason']})" for name, term in terms.items() if term["value"] is None]
        return {"value": None, "n": len(values), "reason": "unscored: " + ", ".join(reasons)}
    return {"value": float(statistics.harmonic_mean(values)), "n": len(values)}


def harmonic_mean_of(terms: Mapping[str, Estimate]) -> Estimate:
    """The same with draws: those of one set belong together."""
    value = harmonic_mean({name: term.value for name, term in terms.items()})
    draws = [term.draws_B for term in terms.values() if term.draws_B is not None]
    if value["value"] is None or len(draws) < len(terms):
        return Estimate(value)
    with np.errstate(divide="ignore"):
        return Estimate(value, len(draws) / np.sum(1 / np.stack(draws), axis=0))


def attack_auc(sample: Sample, score: str) -> Estimate:
    """AUC of telling forget rows (members) from holdout rows by a score that is lower for members."""
    members, others = sample.column("forget", score), sample.column("holdout", score)
    for column in (members, others):
        if not column.x_N.size:
            return unscored(column.why_empty)
    value: Value = {"value": formulas.auc(members.x_N, others.x_N), "n": len(members.x_N) + len(others.x_N)}
    draws = None
    if members.counts_BN is not None and others.counts_BN is not None:
        draws = intervals.auc(members.x_N, members.counts_BN, others.x_N, others.counts_BN)
    return Estimate(_annotate(value, [*members.missing, *others.missing]), draws)


def compare_aucs(formula: Callable[[float, float], float], auc: Estimate, auc_reference: Estimate) -> Estimate:
    """formula(AUC of the model, AUC of the reference)."""
    if auc.value["value"] is None:
        return unscored(auc.value["reason"])
    if auc_reference.value["value"] is None:
        return unscored(f"reference: {auc_reference.value['reason']}")
    return combine(formula, auc, auc_reference)


def privleak(auc: Estimate, auc_reference: Estimate) -> Estimate:
    """Relative difference between the model's and the reference's Min-K% AUC, in percent."""
    if auc.value["value"] is not None and auc_reference.value["value"] == 1:
        return unscored("the attack separates forget from holdout fully on the reference model: nothing to divide by")
    return compare_aucs(lambda x, y: formulas.privleak(x, y) if y < 1 else math.nan, auc, auc_reference)


def forget_quality(sample: Sample, reference: Sample) -> Estimate:
    """KS p-value of the model's and the reference's raw truth ratios on the forget set, with a verdict as note."""
    ours, theirs = sample.column("forget", "truth_ratio"), reference.column("forget", "truth_ratio")
    if not ours.x_N.size:
        return unscored(ours.why_empty)
    if not theirs.x_N.size:
        return unscored(f"reference: {theirs.why_empty}")
    p_value = formulas.ks_p_value(ours.x_N, theirs.x_N)
    notes = [_verdict(p_value, float(np.median(ours.x_N) - np.median(theirs.x_N)))]
    if min(len(ours.x_N), len(theirs.x_N)) < SMALL_N:
        notes.append("small n")
    n_rows, n_reference = len(ours.x_N) + len(ours.missing), len(theirs.x_N) + len(theirs.missing)
    if n_rows != n_reference:
        notes.append(f"{n_rows} forget rows against the reference's {n_reference}")
    draws = None
    if ours.counts_BN is not None and theirs.counts_BN is not None:
        draws = intervals.ks_p_value(ours.x_N, ours.counts_BN, theirs.x_N, theirs.counts_BN)
    return Estimate(_annotate({"value": p_value, "n": len(ours.x_N)}, ours.missing, notes), draws)


def median_shift(sample: Sample, reference: Sample, quality: Estimate) -> Estimate:
    """Median ratio of the model minus that of the reference; above 0 the model prefers wrong answers more.

    Count and notes are those of the forget quality, which is scored.
    """
    ours, theirs = sample.column("forget", "truth_ratio"), reference.column("forget", "truth_ratio")
    value: Value = {**quality.value, "value": float(np.median(ours.x_N) - np.median(theirs.x_N))}
    if ours.counts_BN is None or theirs.counts_BN is None:
        return Estimate(value)
    draws = intervals.median(ours.x_N, ours.counts_BN) - intervals.median(theirs.x_N, theirs.counts_BN)
    return Estimate(value, draws)


def _verdict(p_value: float, shift: float) -> str:
    """The two-sided test punishes forgetting too much as well as too little: say which."""
    if p_value >= MATCHED_P:
        return "matched"
    if shift == 0:
        return "same median, different distribution"
    return "over-forgotten" if shift > 0 else "under-forgotten"


_GENERATED = ("hit_limit", "distinct", "repetition", "gibberish", "generated_nll")


def _why_missing(row: Row, score: str) -> str:
    if score.startswith("paraphrased_"):
        if row.paraphrased_prob is not None:
            return "no generated answer to the paraphrased question that rouge-score reads"
        return "no scored answer to a paraphrased question"
    if score in _GENERATED or score.startswith("rouge"):
        if row.generated is None:
            return "no generated text"
        if score == "distinct":
            return "fewer than two words"
        if score == "generated_nll":
            return "the generated text was not read by a reference model" if row.generated else "nothing was generated"
        if row.answer is not None and not formulas.has_ascii_word(row.answer):
            return "the reference answer has no ASCII word, and rouge-score reads no other"
    elif row.fault is not None:
        return row.fault
    elif score.startswith(("truth_ratio", "prob_options", "chosen")) and not row.nll_perturbed:
        return "no perturbed answers"
    return f"no {score} in the scores"


def _annotate(value: Value, missing: Sequence[str], notes: Sequence[str] = ()) -> Value:
    """Add the count of dropped rows, and the notes followed by the reasons for dropping."""
    reasons = [f"{count} dropped: {reason}" for reason, count in Counter(missing).items()]
    if missing:
        value["dropped"] = len(missing)
    if notes or reasons:
        value["note"] = "; ".join([*notes, *reasons])
    return value
