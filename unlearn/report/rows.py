"""A run folder as rows of metrics: what the terminal and the report page show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unlearn.evaluation.metrics import Metric

SETS = {
    "forget": "Forget set",
    "retain": "Retain set",
    "forget_knowmem": "Questions about the forget texts",
    "forget_verbmem": "Beginnings of the forget texts",
    "retain_knowmem": "Questions about the retain texts",
    "wmdp_bio": "WMDP bio",
    "wmdp_cyber": "WMDP cyber",
    "wmdp_chem": "WMDP chem",
}
STAGES = ("before", "after", "reference")
ARROWS = {"higher": "↑", "lower": "↓", "reference": "≈ ref"}
UNSCORED = "–"


@dataclass(frozen=True)
class RunFolder:
    """What a run folder says about its run; a file that is not there yet reads as empty."""

    path: Path
    results: dict[str, Any]
    run: dict[str, Any]
    config: dict[str, Any]

    @property
    def title(self) -> str:
        """Such as "ngdiff on tofu forget10, model tiny"."""
        config = self.config
        names = (config.get("data", {}).get(key) for key in ("name", "subset", "split"))
        data = " ".join(str(name) for name in names if name)
        name = {group: config.get(group, {}).get("name", "?") for group in ("method", "model")}
        return f"{name['method']} on {data or '?'}, model {name['model']}"

    @property
    def status(self) -> str:
        return str(self.run.get("status", "unknown"))


@dataclass(frozen=True)
class Cell:
    """One score: value (None: not scored), n examples behind it, what a reader must know about it, and its bootstrap
    95 % interval where there is one.
    """

    value: float | None
    n: int
    remarks: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None

    @property
    def text(self) -> str:
        return format_value(self.value)

    @property
    def interval_text(self) -> str:
        """Such as "[0.840, 0.880]"; "" without an interval."""
        return f"[{', '.join(map(format_value, self.interval))}]" if self.interval else ""


@dataclass(frozen=True)
class Row:
    """One metric with its scores by stage; `metric` is None for a name that has no definition."""

    name: str
    metric: Metric | None
    cells: dict[str, Cell]

    @property
    def title(self) -> str:
        return self.metric.title if self.metric else self.name

    @property
    def group(self) -> str:
        return self.metric.group if self.metric else "other"

    @property
    def arrow(self) -> str:
        return ARROWS[self.metric.direction] if self.metric else ""

    @property
    def n(self) -> str:
        """How many examples stand behind the values: one number, or one per stage where they differ."""
        counts = dict.fromkeys(cell.n for cell in self.cells.values() if cell.value is not None)
        return " / ".join(map(str, counts)) or "0"

    @property
    def change(self) -> str:
        """How after compares with before: "better", "worse", or "" where the shown digits do not tell."""
        before, after, reference = (self.cells.get(stage, Cell(None, 0)).value for stage in STAGES)
        if self.metric is None or before is None or after is None or format_value(before) == format_value(after):
            return ""
        if self.metric.direction == "reference":
            if reference is None or abs(after - reference) == abs(before - reference):
                return ""
            return "better" if abs(after - reference) < abs(before - reference) else "worse"
        return "better" if (after > before) == (self.metric.direction == "higher") else "worse"


def read_run_folder(run_dir: Path) -> RunFolder:
    """Read results.json, run.json and config.yaml."""
    from omegaconf import OmegaConf

    def read(name: str) -> dict[str, Any]:
        path = run_dir / name
        if not path.exists():
            return {}
        if path.suffix == ".json":
            return dict(json.loads(path.read_text(encoding="utf-8")))
        loaded = OmegaConf.to_container(OmegaConf.load(path))
        return {str(key): value for key, value in loaded.items()} if isinstance(loaded, dict) else {}

    return RunFolder(run_dir, read("results.json"), read("run.json"), read("config.yaml"))


def set_title(name: str) -> str:
    """How a reader calls a set, or a group of metrics."""
    return SETS.get(name, name.replace("_", " ").capitalize())


def format_value(value: float | None) -> str:
    """Three decimals or three significant digits, so that a small p-value is not shown as 0; None as a dash."""
    if value is None:
        return UNSCORED
    if float(value).is_integer() and abs(value) < 1000:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:,.1f}"
    return f"{value:.3f}" if abs(value) >= 0.001 else f"{value:.1e}"


def table_rows(results: Mapping[str, Any], metrics: Mapping[str, Metric] | None = None) -> list[Row]:
    """One row per metric that any stage has: the headline group first, then the order of `metrics` (METRICS)."""
    if metrics is None:
        from unlearn.evaluation.metrics import METRICS

        metrics = METRICS
    stages = {stage: results[stage] for stage in STAGES if results.get(stage)}
    found = {name for scores in stages.values() for name in scores}
    rows = [
        Row(name, metrics.get(name), {stage: cell(scores.get(name)) for stage, scores in stages.items()})
        for name in [*(name for name in metrics if name in found), *sorted(found - set(metrics))]
    ]
    groups = list(dict.fromkeys(["headline", *(row.group for row in rows)]))
    return sorted(rows, key=lambda row: groups.index(row.group))


def cell(score: Mapping[str, Any] | None) -> Cell:
    """From a Value of results.json; None: the stage does not have the metric."""
    if score is None:
        return Cell(None, 0, ("not scored at this stage",))
    remarks = [str(score[key]) for key in ("reason", "note") if score.get(key)]
    if score["value"] is None and not score.get("reason"):
        remarks.append("not scored")
    if score.get("dropped") and "dropped" not in score.get("note", ""):
        remarks.append(f"{score['dropped']} of {score['n'] + score['dropped']} examples could not be scored")
    low, high = score.get("interval") or (None, None)
    interval = None if low is None or high is None or score["value"] is None else (low, high)
    return Cell(score["value"], score["n"], tuple(remarks), interval)


def footnotes(rows: list[Row]) -> dict[str, int]:
    """Every distinct remark with its number, in the order in which a reader meets it."""
    remarks = dict.fromkeys(remark for row in rows for cell in row.cells.values() for remark in cell.remarks)
    return {remark: number for number, remark in enumerate(remarks, start=1)}
