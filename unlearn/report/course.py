"""How the main numbers went over the epochs and the removal requests of one run: a small table each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearn.report.rows import ARROWS, Cell, cell

COLUMNS = (
    "knowmem_f",
    "verbmem_f",
    "privleak",
    "knowmem_r",
    "model_utility",
    "forget_quality",
    "forget.prob",
    "forget.rouge_l_recall",
    "retain.prob",
)
MOST_COLUMNS = 5


@dataclass(frozen=True)
class Line:
    """The model at one time; `kept` marks the one whose weights are the run's result."""

    label: str
    cells: dict[str, Cell]
    kept: bool = False


@dataclass(frozen=True)
class Course:
    """A table: `columns` are (metric, title, arrow)."""

    title: str
    text: str
    columns: list[tuple[str, str, str]]
    lines: list[Line]


def courses(results: Mapping[str, Any]) -> list[Course]:
    """The tables that the run has values for: evaluations during training, and one per removal request."""
    kept = results.get("kept") or {}
    epochs = [
        Line(f"epoch {one['epoch']:g}", _cells(one["values"]), kept.get("step") == one["step"])
        for one in results.get("epochs") or ()
        if one.get("values")
    ]
    requests = [
        Line(f"request {one['request']} ({one['rows']} rows)", _cells(one["values"]))
        for one in results.get("requests") or ()
        if one.get("values")
    ]
    rule = f" The rule for the weights that were kept: the best {kept['rule']}." if kept else ""
    found = [
        ("Epoch by epoch", f"The model as it was evaluated during training.{rule}", epochs),
        (
            "Request by request",
            "The model after each removal request. A method is sustainable where what is to be kept survives them all.",
            requests,
        ),
    ]
    return [_course(title, text, lines, results) for title, text, lines in found if lines]


def _course(title: str, text: str, lines: Sequence[Line], results: Mapping[str, Any]) -> Course:
    from unlearn.evaluation.metrics import METRICS

    lines = [*_stage("before", results), *lines, *_stage("reference", results)]
    names = [name for name in COLUMNS if any(_scored(line, name) for line in lines)][:MOST_COLUMNS]
    columns = [
        (name, METRICS[name].title, ARROWS[METRICS[name].direction]) if name in METRICS else (name, name, "")
        for name in names
    ]
    return Course(title, text, columns, list(lines))


def _stage(stage: str, results: Mapping[str, Any]) -> list[Line]:
    return [Line(stage, _cells(results[stage]))] if results.get(stage) else []


def _cells(values: Mapping[str, Any]) -> dict[str, Cell]:
    return {name: cell(values.get(name)) for name in COLUMNS}


def _scored(line: Line, name: str) -> bool:
    return line.cells[name].value is not None
