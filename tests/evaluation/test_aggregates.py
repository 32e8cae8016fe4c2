"""OpenUnlearning's aggregates: harmonic means of metrics, null where one is missing and 0 where one is 0."""

from __future__ import annotations

import math

import pytest

from tests.evaluation.by_hand import evaluate, make, number, with_rows
from unlearn.evaluation.metrics import METRICS
from unlearn.evaluation.scores import Scores


def harmonic(*terms: float) -> float:
    return len(terms) / sum(1 / term for term in terms)


def attacked(forget: float) -> Scores:
    """Holdout rows with scores 0 to 1, forget rows all at `forget`: every attack has AUC 1 - forget."""
    columns = ("nll", "zlib", "min_k", "min_k_plus_plus")
    scores = with_rows(make(), "holdout", **{name: [(i + 0.5) / 100 for i in range(100)] for name in columns})
    return with_rows(scores, "forget", **{name: [forget] * 100 for name in columns})


def test_memorization_is_the_harmonic_mean_of_four_complements() -> None:
    scores = make(extraction_strength=0.2, exact_memorization=0.6, nll_paraphrase=-math.log(0.3), truth_ratio=0.25)
    values = evaluate(scores, None)
    # truth ratio R = 0.25 is a preference for the truth of 1 / (1 + 0.25) = 0.8
    assert number(values["memorization"]) == pytest.approx(harmonic(0.8, 0.4, 0.7, 0.2))
    assert values["memorization"]["n"] == 4
    for name in ("extraction_strength", "exact_memorization"):
        assert evaluate(with_rows(scores, "forget", **{name: [1.0]}), None)["memorization"]["value"] == 0


def test_privacy_is_the_harmonic_mean_of_four_attack_scores() -> None:
    reference = attacked(0.6)  # AUC 0.4; the farthest AUC is 1, 0.6 away
    assert number(evaluate(attacked(0.6), reference)["privacy"]) == pytest.approx(1)
    assert number(evaluate(attacked(0.3), reference)["privacy"]) == pytest.approx(1 - (0.7 - 0.4) / 0.6)
    assert number(evaluate(attacked(-1.0), reference)["privacy"]) == pytest.approx(0, abs=1e-12)
    assert number(evaluate(attacked(2.0), reference)["privacy"]) == pytest.approx(1 - 0.4 / 0.6)
    one_leaks = with_rows(reference, "forget", nll=[0.3] * 100)  # the other scores stay as they are
    assert number(evaluate(one_leaks, reference)["privacy"]) == pytest.approx(harmonic(1 - 0.3 / 0.6, 1, 1, 1))


def test_utility_and_overall() -> None:
    texts = ["It is Hina Ameen"] * 3 + [""]
    scores = with_rows(make(), "forget", generated=texts, extraction_strength=[0.5] * 4, exact_memorization=[0.5] * 4)
    values = evaluate(scores, scores)
    assert number(values["fluency"]) == pytest.approx(3 / 4)
    assert number(values["utility"]) == pytest.approx(harmonic(number(values["model_utility"]), 3 / 4))
    parts = [number(values[name]) for name in ("memorization", "privacy", "utility")]
    assert number(values["overall"]) == pytest.approx(harmonic(*parts))
    # 3 / (1 / 0.9 + 1 / 0.9 + 1 / 1e-9): a harmonic mean follows its smallest term
    assert harmonic(0.9, 0.9, 1e-9) == pytest.approx(3e-9, rel=1e-6)


def test_a_zero_makes_zero_and_a_missing_part_makes_null() -> None:
    silent = with_rows(make(), "forget", generated=["", ""])
    values = evaluate(silent, silent, intervals=True)
    assert values["fluency"] == {"value": 0, "n": 2, "interval": [0, 0]}
    assert values["utility"]["value"] == values["overall"]["value"] == 0
    assert values["overall"]["interval"] == [0, 0]
    alone = evaluate(make(), None, "no reference")
    assert alone["privacy"] == {"value": None, "n": 0, "reason": "no reference"}
    assert alone["overall"] == {"value": None, "n": 2, "reason": "unscored: privacy (no reference)"}
    partial = evaluate(make(), Scores({"forget": {}}))["privacy"]
    assert partial["value"] is None
    assert partial["reason"].startswith("unscored: forget.loss_auc (reference: no forget rows)")
    without = evaluate(make(nll_paraphrase=None, truth_ratio=0.5), None)["memorization"]
    assert without["value"] is None
    assert "forget.paraphrase_prob" in without["reason"]


def test_what_the_authors_did_not_publish_is_labelled() -> None:
    for name in ("fluency", "privacy"):
        assert "ours" in METRICS[name].source
    assert "max(AUC_ref, 1 - AUC_ref)" in METRICS["privacy"].formula
