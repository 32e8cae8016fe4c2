"""The registry, and the metrics on scores built by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from unlearn.evaluation.metrics import METRICS, UTILITY_TERMS, evaluate
from unlearn.evaluation.scores import SETS, Row, Scores, complete
from unlearn.evaluation.values import Value, harmonic_mean

GOOD = {"nll": 0.2, "nll_paraphrase": 0.3, "nll_perturbed": (1.0, 2.0), "answer": "yes", "generated": "yes"}
ROUGE = {"rouge_1_recall": 1.0, "rouge_l_recall": 1.0, "rouge_l_f1": 1.0, "hit_limit": False}
CONTENT = {"exact_memorization": 1.0, "extraction_strength": 1.0, "min_k": 0.5, "min_k_plus_plus": -1.0}


def make(n: int = 60, **changed: object) -> Scores:
    """Scores of all sets, n equal rows each, with fields changed in every row."""
    row = complete({"id": "", **GOOD, **ROUGE, **CONTENT, **changed})
    return Scores({name: {f"{name}/{i}": replace(row, id=f"{name}/{i}") for i in range(n)} for name in SETS})


def with_rows(scores: Scores, name: str, **columns: Sequence[object]) -> Scores:
    """The same scores with columns of one set replaced; the set takes the columns' length."""
    base = scores.rows(name)[0]
    rows = [replace(base, id=f"{name}/{i}", **dict(zip(columns, cells, strict=True)))
            for i, cells in enumerate(zip(*columns.values(), strict=True))]  # fmt: skip
    return Scores({**scores.sets, name: {row.id: row for row in rows}})


def test_every_metric_is_documented_and_valued() -> None:
    values = evaluate(make(), make())
    assert list(values) == list(METRICS)
    for name, metric in METRICS.items():
        assert metric.name == name
        assert all((metric.title, metric.group, metric.formula, metric.source)), name
        assert metric.direction in ("higher", "lower", "reference")
        value = values[name]["value"]
        assert value is not None, (name, values[name])
        low, high = metric.range
        assert low - 1e-9 <= value <= high + 1e-9, (name, value)
    assert len({metric.title for metric in METRICS.values()}) == len(METRICS)


def test_the_registry_is_light_to_import() -> None:
    """Help texts and tables read it: no torch, and scipy, rouge-score and pyarrow only where they are used."""
    code = (
        "import sys, unlearn.evaluation.metrics; print({'torch', 'scipy', 'rouge_score', 'pyarrow'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"


def test_directions() -> None:
    """Arrows of the tables."""
    arrows = {direction: sorted(n for n, m in METRICS.items() if m.direction == direction) for direction in
              ("higher", "lower", "reference")}  # fmt: skip
    assert arrows["reference"] == [
        "forget.loss_auc", "forget.min_k_auc", "forget.min_k_plus_plus_auc", "forget.zlib_auc", "forget_quality_shift",
        "privleak",
    ]  # fmt: skip
    assert arrows["lower"] == [
        "forget.exact_memorization", "forget.extraction_strength", "forget.hit_limit", "forget.prob",
        "forget.rouge_1_recall", "forget.rouge_l_f1", "forget.rouge_l_recall", "forget.truth_ratio_prob",
        "real_authors.hit_limit", "retain.hit_limit", "world_facts.hit_limit",
    ]  # fmt: skip


@pytest.mark.parametrize("scores", [Scores(), Scores({"forget": {}}), Scores({name: {"0": Row("0")} for name in SETS})])
def test_without_scores_every_value_is_null_with_a_reason(scores: Scores) -> None:
    for name, value in evaluate(scores, scores).items():
        assert value["value"] is None, name
        assert value["reason"], name
        assert value["n"] == 0


def test_truth_ratios_by_set_and_definition() -> None:
    scores = make(nll_paraphrase=-math.log(0.2), nll_perturbed=tuple(-math.log(p) for p in (0.1, 0.4, 0.1)))
    values = {name: value["value"] for name, value in evaluate(scores, None).items()}
    geometric, arithmetic = 0.004 ** (1 / 3) / 0.2, 1.0
    assert values["forget.truth_ratio"] == pytest.approx(geometric)
    assert values["forget.truth_ratio_arithmetic"] == pytest.approx(arithmetic)
    assert values["forget.truth_ratio_prob"] == pytest.approx(1 / (1 + geometric))
    for name in ("retain", "real_authors", "world_facts"):
        assert values[f"{name}.truth_ratio"] == pytest.approx(1 - geometric)
        assert values[f"{name}.truth_ratio_arithmetic"] == pytest.approx(0, abs=1e-12)
        assert values[f"{name}.truth_ratio_prob"] == pytest.approx(1 / (1 + geometric))


def test_probability_among_options_and_raw() -> None:
    values = evaluate(make(nll=1.0, nll_perturbed=(0.75,)), None)
    assert values["real_authors.prob"]["value"] == pytest.approx(0.438, abs=5e-4)
    assert values["real_authors.prob_raw"]["value"] == pytest.approx(math.exp(-1))
    assert values["retain.prob"]["value"] == pytest.approx(math.exp(-1))


def test_model_utility_is_the_harmonic_mean_of_nine_terms() -> None:
    values = evaluate(make(), None)
    terms = [values[name]["value"] for name in UTILITY_TERMS]
    assert len(terms) == 9
    assert values["model_utility"]["value"] == pytest.approx(9 / sum(1 / term for term in terms if term))
    assert values["model_utility"]["n"] == 9


def test_model_utility_of_a_zero_and_of_a_missing_term() -> None:
    zero = with_rows(make(), "world_facts", rouge_l_recall=[0.0, 0.0])
    assert evaluate(zero, None)["model_utility"]["value"] == 0
    missing = Scores({name: rows for name, rows in make().sets.items() if name != "world_facts"})
    utility = evaluate(missing, None)["model_utility"]
    assert utility["value"] is None
    assert utility["reason"].startswith("unscored: world_facts.prob (no world_facts rows)")


def test_harmonic_mean_follows_its_smallest_term() -> None:
    def terms(*numbers: float) -> dict[str, Value]:
        return {str(i): {"value": x, "n": 1} for i, x in enumerate(numbers)}

    # 9 / (8 / 0.9 + 1 / 1e-9)
    assert harmonic_mean(terms(*[0.9] * 8, 1e-9))["value"] == pytest.approx(9e-9, rel=1e-7)
    assert harmonic_mean(terms(*[0.9] * 8, 0))["value"] == 0
    missing: dict[str, Value] = terms(0.9, 0.9) | {"x": {"value": None, "n": 0, "reason": "lost"}}
    assert harmonic_mean(missing) == {"value": None, "n": 2, "reason": "unscored: x (lost)"}


def test_a_model_compared_with_itself() -> None:
    scores = with_rows(make(), "forget", truth_ratio=list(np.linspace(0.1, 3, 80)))
    values = evaluate(scores, scores)
    assert values["forget_quality"] == {"value": 1, "n": 80, "note": "matched"}
    assert values["forget_quality_log10"]["value"] == 0
    assert values["forget_quality_shift"]["value"] == 0
    assert values["privleak"]["value"] == 0


@pytest.mark.parametrize(
    ("ratio", "shift", "word"),
    [(0.48, -0.22, "under-forgotten"), (0.99, 0.29, "over-forgotten"), (0.7, 0, "matched")],
)
def test_the_side_on_which_forget_quality_misses(ratio: float, shift: float, word: str) -> None:
    reference = make(truth_ratio=0.7)
    values = evaluate(make(truth_ratio=ratio), reference)
    assert values["forget_quality_shift"]["value"] == pytest.approx(shift)
    assert values["forget_quality_shift"]["note"] == word
    p = values["forget_quality"]["value"]
    assert p is not None
    assert (p == 1) if word == "matched" else (p < 1e-30)


def test_disjoint_ratios_have_a_tiny_p_value_and_a_finite_logarithm() -> None:
    values = evaluate(make(400, truth_ratio=2.0), make(400, truth_ratio=0.5))
    assert values["forget_quality"]["value"] == pytest.approx(1.1e-239, rel=0.05)
    assert values["forget_quality_log10"]["value"] == pytest.approx(-238.97, abs=0.01)


def test_few_rows_and_unequal_forget_sets_are_noted() -> None:
    assert evaluate(make(49), make(49))["forget_quality"]["note"] == "matched; small n"
    note = evaluate(make(60), make(50))["forget_quality"].get("note")
    assert note == "matched; 60 forget rows against the reference's 50"


def test_without_reference_the_reason_is_the_callers() -> None:
    values = evaluate(make(), None, "run: unlearn-run method=none")
    for name in ("forget_quality", "forget_quality_log10", "forget_quality_shift", "privleak"):
        assert values[name] == {"value": None, "n": 0, "reason": "run: unlearn-run method=none"}
    assert evaluate(make(), Scores())["privleak"]["reason"] == "reference: no forget rows"


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("nll", "forget.loss_auc"),
        ("zlib", "forget.zlib_auc"),
        ("min_k", "forget.min_k_auc"),
        ("min_k_plus_plus", "forget.min_k_plus_plus_auc"),
    ],
)
def test_attacks_take_low_scores_for_members(column: str, name: str) -> None:
    scores = with_rows(make(), "holdout", **{column: [2.0, 3.0, 4.0]})
    assert evaluate(with_rows(scores, "forget", **{column: [0.0, 1.0]}), None)[name] == {"value": 1, "n": 5}
    assert evaluate(with_rows(scores, "forget", **{column: [5.0, 6.0]}), None)[name]["value"] == 0
    assert evaluate(with_rows(scores, "forget", **{column: [3.0, 3.0]}), None)[name]["value"] == 0.5
    assert evaluate(make(), None)[name]["value"] == 0.5


def test_privleak_compares_with_the_reference_model() -> None:
    reference = with_rows(with_rows(make(), "holdout", min_k=[1.0, 2.0]), "forget", min_k=[1.5, 1.5])  # AUC 0.5
    leaking = with_rows(reference, "forget", min_k=[0.5, 1.5])  # pairs above: 2 + 1 of 4, AUC 0.75
    assert evaluate(leaking, reference)["privleak"]["value"] == pytest.approx(100 * (0.25 - 0.5) / 0.5)
    separated = with_rows(reference, "forget", min_k=[0.5, 0.5])
    assert evaluate(leaking, separated)["privleak"]["value"] is None
    assert "fully" in evaluate(leaking, separated)["privleak"]["reason"]


def test_unscored_rows_are_dropped_and_counted_with_their_reason() -> None:
    scores = make()
    scores = with_rows(scores, "forget", prob=[0.2, None, 0.4], fault=[None, "no answer token", None])
    scores = with_rows(scores, "retain", answer=["yes", "東京"], rouge_l_recall=[0.5, None])
    values = evaluate(scores, None)
    assert values["forget.prob"] == {
        "value": pytest.approx(0.3),
        "n": 2,
        "dropped": 1,
        "note": "1 dropped: no answer token",
    }
    assert values["retain.rouge_l_recall"]["value"] == 0.5
    assert values["retain.rouge_l_recall"]["dropped"] == 1
    assert "no ASCII word" in values["retain.rouge_l_recall"]["note"]


def test_values_are_json_without_nan() -> None:
    scores = with_rows(make(), "forget", nll=[math.nan, 0.2], truth_ratio=[math.inf, 0.5], min_k=[math.nan, math.nan])
    values = evaluate(scores, make())
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["forget_quality"]["dropped"] == 1
    assert values["forget.min_k_auc"]["value"] is None
