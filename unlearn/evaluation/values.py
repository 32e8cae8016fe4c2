"""Scores of all examples -> one value, with its count of rows and what a reader must know. No name, no metadata."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NotRequired, TypedDict

import numpy as np

from unlearn.evaluation import formulas
from unlearn.evaluation.scores import Row, Scores

# Below this the Kolmogorov-Smirnov test sees gross differences only: with 40 rows against 40 the two distribution
# functions must be about 0.3 apart before p falls under 0.05.
SMALL_N = 50
MATCHED_P = 0.05


class Value(TypedDict):
    """A metric's value, ready for JSON: `value` is None where unscored, and then `reason` says why.

    n        rows that entered (terms, for a mean of metrics)
    dropped  rows without a finite score, where there are any
    note     what a reader must know to read the value
    """

    value: float | None
    n: int
    dropped: NotRequired[int]
    reason: NotRequired[str]
    note: NotRequired[str]


def unscored(reason: str, n: int = 0) -> Value:
    """The Value of a metric that has none."""
    return {"value": None, "n": n, "reason": reason}


def mean_of(scores: Scores, name: str, score: str, fold: Callable[[float], float] = float) -> Value:
    """Mean of fold(score) over the rows of a set that have the score."""
    present, missing = _column(scores, name, score)
    if not present:
        return unscored(_why_empty(name, missing))
    value: Value = {"value": float(np.mean([fold(x) for x in present])), "n": len(present)}
    return _annotate(value, missing)


def harmonic_mean(terms: Mapping[str, Value]) -> Value:
    """Harmonic mean of metrics: 0 where one is 0, None where one is None (never the mean of the others)."""
    values = [term["value"] for term in terms.values() if term["value"] is not None]
    if len(values) < len(terms):
        reasons = [f"{name} ({term['reason']})" for name, term in terms.items() if term["value"] is None]
        return unscored("unscored: " + ", ".join(reasons), len(values))
    return {"value": statistics.harmonic_mean(values), "n": len(values)}


def attack_auc(scores: Scores, score: str) -> Value:
    """AUC of telling forget rows (members) from holdout rows by a score that is lower for members."""
    members, missing_members = _column(scores, "forget", score)
    non_members, missing_non_members = _column(scores, "holdout", score)
    if not members or not non_members:
        empty = ("holdout", missing_non_members) if members else ("forget", missing_members)
        return unscored(_why_empty(*empty))
    value: Value = {"value": formulas.auc(members, non_members), "n": len(members) + len(non_members)}
    return _annotate(value, [*missing_members, *missing_non_members])


def privleak(scores: Scores, reference: Scores) -> Value:
    """Relative difference between the model's and the reference's Min-K% AUC, in percent."""
    auc, auc_reference = attack_auc(scores, "min_k"), attack_auc(reference, "min_k")
    if auc["value"] is None:
        return unscored(auc["reason"])
    if auc_reference["value"] is None:
        return unscored(f"reference: {auc_reference['reason']}")
    if auc_reference["value"] == 1:
        return unscored("the attack separates forget from holdout fully on the reference model: nothing to divide by")
    auc["value"] = formulas.privleak(auc["value"], auc_reference["value"])
    return auc


Statistic = Callable[[Sequence[float], Sequence[float]], float]


def compare_truth_ratios(scores: Scores, reference: Scores, statistic: Statistic) -> Value:
    """A statistic of the model's and the reference's raw truth ratios on the forget set, with a verdict as note."""
    ratios, missing = _column(scores, "forget", "truth_ratio")
    reference_ratios, missing_reference = _column(reference, "forget", "truth_ratio")
    if not ratios:
        return unscored(_why_empty("forget", missing))
    if not reference_ratios:
        return unscored(f"reference: {_why_empty('forget', missing_reference)}")
    notes = [_verdict(ratios, reference_ratios)]
    if min(len(ratios), len(reference_ratios)) < SMALL_N:
        notes.append("small n")
    n_rows, n_reference = len(ratios) + len(missing), len(reference_ratios) + len(missing_reference)
    if n_rows != n_reference:
        notes.append(f"{n_rows} forget rows against the reference's {n_reference}")
    value: Value = {"value": statistic(ratios, reference_ratios), "n": len(ratios)}
    return _annotate(value, missing, notes)


def log10_ks_p_value(ratios: Sequence[float], reference_ratios: Sequence[float]) -> float:
    """log10 of the Kolmogorov-Smirnov p-value, finite even where the p-value underflows."""
    return formulas.log10_p(formulas.ks_p_value(ratios, reference_ratios))


def median_shift(ratios: Sequence[float], reference_ratios: Sequence[float]) -> float:
    """Median ratio of the model minus that of the reference; above 0 the model prefers wrong answers more."""
    return float(np.median(ratios) - np.median(reference_ratios))


def _verdict(ratios: Sequence[float], reference_ratios: Sequence[float]) -> str:
    """The two-sided test punishes forgetting too much as well as too little: say which."""
    if formulas.ks_p_value(ratios, reference_ratios) >= MATCHED_P:
        return "matched"
    shift = median_shift(ratios, reference_ratios)
    if shift == 0:
        return "same median, different distribution"
    return "over-forgotten" if shift > 0 else "under-forgotten"


def _column(scores: Scores, name: str, score: str) -> tuple[list[float], list[str]]:
    """The finite values of one score over a set, and why the other rows have none."""
    present, missing = [], []
    for row in scores.rows(name):
        value = getattr(row, score)
        if value is None or not math.isfinite(value):
            missing.append(_why_missing(row, score))
        else:
            present.append(float(value))
    return present, missing


def _why_missing(row: Row, score: str) -> str:
    if score == "hit_limit" or score.startswith("rouge"):
        if row.generated is None:
            return "no generated text"
        if row.answer is not None and not formulas.has_ascii_word(row.answer):
            return "the reference answer has no ASCII word, and rouge-score reads no other"
    elif row.fault is not None:
        return row.fault
    elif score.startswith(("truth_ratio", "prob_options")) and not row.nll_perturbed:
        return "no perturbed answers"
    return f"no {score} in the scores"


def _why_empty(name: str, missing: Sequence[str]) -> str:
    if not missing:
        return f"no {name} rows"
    return f"none of {len(missing)} {name} rows is scored: {Counter(missing).most_common(1)[0][0]}"


def _annotate(value: Value, missing: Sequence[str], notes: Sequence[str] = ()) -> Value:
    """Add the count of dropped rows, and the notes followed by the reasons for dropping."""
    reasons = [f"{count} dropped: {reason}" for reason, count in Counter(missing).items()]
    if missing:
        value["dropped"] = len(missing)
    if notes or reasons:
        value["note"] = "; ".join([*notes, *reasons])
    return value
