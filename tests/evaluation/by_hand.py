"""Scores built by hand, for the tests of metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unlearn.evaluation import metrics
from unlearn.evaluation.scores import SETS, Scores, complete
from unlearn.evaluation.values import Value

TEACHER_FORCED = {
    **{"nll": 0.2, "nll_paraphrase": 0.3, "nll_perturbed": (1.0, 2.0), "paraphrased_prob": 0.5, "chosen": 1.0},
    **{"exact_memorization": 1.0, "extraction_strength": 1.0, "min_k": 0.5, "min_k_plus_plus": -1.0},
}
GENERATED = {
    **{"rouge_1_recall": 1.0, "rouge_l_recall": 1.0, "rouge_l_f1": 1.0, "rouge_l_f1_unstemmed": 1.0},
    **{"paraphrased_rouge_l_recall": 1.0, "generated_nll": 1.0, "hit_limit": False},
}
TEXTS = {"prompt": "Is it?", "answer": "yes it is", "generated": "yes it is"}


def make(n: int = 60, **changed: object) -> Scores:
    """Scores of all sets, n equal rows each, with fields changed in every row."""
    row = complete({"id": "", **TEXTS, **TEACHER_FORCED, **GENERATED, **changed})
    return Scores({name: {f"{name}/{i}": replace(row, id=f"{name}/{i}") for i in range(n)} for name in SETS})


def with_rows(scores: Scores, name: str, **columns: Sequence[object]) -> Scores:
    """The same scores with columns of one set replaced; the set takes the columns' length."""
    base = scores.rows(name)[0]
    rows = [replace(base, id=f"{name}/{i}", **dict(zip(columns, cells, strict=True)))
            for i, cells in enumerate(zip(*columns.values(), strict=True))]  # fmt: skip
    return Scores({**scores.sets, name: {row.id: row for row in rows}})


def evaluate(scores: Scores, reference: Scores | None, reason: str = "", intervals: bool = False) -> dict[str, Value]:
    """Metrics, without intervals unless they are what is tested."""
    return metrics.evaluate(scores, reference, reason, intervals)


def number(value: Value) -> float:
    """The value of a scored metric."""
    assert value["value"] is not None, value
    return value["value"]
