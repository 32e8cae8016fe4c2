"""The end of a run in the terminal, and the rows and sentences that the terminal and the report page share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from unlearn.evaluation.metrics import Metric

STAGES = ("before", "after", "reference")
ARROWS = {"higher": "↑", "lower": "↓", "reference": "≈ ref"}
UNSCORED = "–"
# What the terminal shows; the page has every row.
TERMINAL_METRICS = (
    "model_utility",
    "forget_quality",
    "privleak",
    "forget.prob",
    "forget.rouge_l_recall",
    "forget.extraction_strength",
    "retain.prob",
    "retain.rouge_l_recall",
    "forget.min_k_auc",
)
SHORT_REMARK = 24


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
        data = " ".join(str(config["data"][key]) for key in ("name", "split") if config.get("data", {}).get(key))
        name = {group: config.get(group, {}).get("name", "?") for group in ("method", "model")}
        return f"{name['method']} on {data or '?'}, model {name['model']}"

    @property
    def status(self) -> str:
        return str(self.run.get("status", "unknown"))


@dataclass(frozen=True)
class Cell:
    """One score: value (None: not scored), n examples behind it, and what a reader must know about it."""

    value: float | None
    n: int
    remarks: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return format_value(self.value)


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
        Row(name, metrics.get(name), {stage: _cell(scores.get(name)) for stage, scores in stages.items()})
        for name in [*(name for name in metrics if name in found), *sorted(found - set(metrics))]
    ]
    groups = list(dict.fromkeys(["headline", *(row.group for row in rows)]))
    return sorted(rows, key=lambda row: groups.index(row.group))


def _cell(score: Mapping[str, Any] | None) -> Cell:
    if score is None:
        return Cell(None, 0, ("not scored at this stage",))
    remarks = [str(score[key]) for key in ("reason", "note") if score.get(key)]
    if score["value"] is None and not score.get("reason"):
        remarks.append("not scored")
    if score.get("dropped") and "dropped" not in score.get("note", ""):
        remarks.append(f"{score['dropped']} of {score['n'] + score['dropped']} examples could not be scored")
    return Cell(score["value"], score["n"], tuple(remarks))


def footnotes(rows: list[Row]) -> dict[str, int]:
    """Every distinct remark with its number, in the order in which a reader meets it."""
    remarks = dict.fromkeys(remark for row in rows for cell in row.cells.values() for remark in cell.remarks)
    return {remark: number for number, remark in enumerate(remarks, start=1)}


def verdict(folder: RunFolder) -> list[str]:
    """What the numbers say, in sentences: what fell, what it cost, how it compares with the reference."""
    results = folder.results
    before, after, reference = (results.get(stage) or {} for stage in STAGES)
    sentences = []
    if folder.status in ("diverged", "failed", "preempted"):
        when = f" after {results['steps']} optimizer steps" if "steps" in results else ""
        sentences.append(f"The run ended as {folder.status}{when}.")
    if not after:
        sentences.append("The model was not evaluated after unlearning, so nothing here says what it forgot.")
        return sentences
    if "forget.prob" in after:
        sentences.append(
            _changed("The mean probability of the forget answers", "forget.prob", before, after, reference)
        )
    kept = {"retain.prob": "The mean probability of the retain answers", "model_utility": "Model utility"}
    sentences += [_changed(subject, name, before, after, None) for name, subject in kept.items() if name in after]
    if "forget_quality" in after:
        sentences.append(_forget_quality(after["forget_quality"]))
    if not reference:
        sentences.append(
            "There is no reference in this run, so nothing here says how a model that never saw the forget set answers."
        )
    return sentences


def _changed(
    subject: str, name: str, before: Mapping[str, Any], after: Mapping[str, Any], reference: Mapping[str, Any] | None
) -> str:
    """One sentence on one metric; `reference` None: say the share that was kept instead of the reference's value."""
    now, start = after[name]["value"], before.get(name, {}).get("value")
    if now is None:
        return f"{subject} was not scored after unlearning ({after[name].get('reason', 'no reason given')})."
    if start is None:
        return f"{subject} is {format_value(now)}; there is no value from before to compare it with."
    if format_value(start) == format_value(now):
        return f"{subject} stayed at {format_value(now)}."
    sentence = f"{subject} {'fell' if now < start else 'rose'} from {format_value(start)} to {format_value(now)}"
    if reference is None:
        return f"{sentence} ({100 * now / start:.0f} % of before)." if start > 0 else f"{sentence}."
    expected = reference.get(name, {}).get("value")
    if expected is None:
        return f"{sentence}."
    return f"{sentence}; the reference, which never saw them, has {format_value(expected)}."


def _forget_quality(score: Mapping[str, Any]) -> str:
    value, n = score["value"], score["n"]
    if value is None:
        return f"Forget quality was not scored ({score.get('reason', 'no reason given')})."
    told = "differ from the reference's" if value < 0.05 else "cannot be told apart from the reference's"
    notes = str(score.get("note", "")).split("; ")
    judged = f" ({notes[0]})" if notes[0].endswith("-forgotten") else ""
    weak = "; with so few rows the test sees only gross differences" if "small n" in notes else ""
    return f"By forget quality (p = {format_value(value)}, n = {n}) the truth ratios {told}{judged}{weak}."


def print_summary(console: Console, run_dir: Path) -> None:
    """Print what was forgotten, what was kept, why the run ended, and where everything is."""
    folder = read_run_folder(run_dir)
    colour = "green" if folder.status == "done" else "yellow" if folder.status in ("running", "preempted") else "red"
    console.print()
    console.print(f"[bold]{_plain(folder.title)}[/]  [{colour}]{_plain(folder.status)}[/]", highlight=False)
    for label in folder.results.get("labels") or []:
        console.print(f"[yellow]{_plain(label)}[/]", highlight=False)
    rows = table_rows(folder.results)
    shown = [row for row in rows if row.name in TERMINAL_METRICS]
    if shown:
        long = dict.fromkeys(remark for row in shown for remark in _told(row) if len(remark) > SHORT_REMARK)
        numbers = {remark: number for number, remark in enumerate(long, start=1)}
        console.print(_table(shown, numbers))
        for remark, number in numbers.items():
            console.print(f"{number}) {_plain(remark)}", highlight=False, style="dim")
        console.print()
    for line in [*verdict(folder), *ending(folder.results)]:
        console.print(_plain(line), highlight=False)
    if len(rows) > len(shown):
        console.print(f"{len(rows) - len(shown)} more metrics are in the report.", highlight=False)
    console.print()
    shown_dir = run_dir.relative_to(Path.cwd()) if run_dir.is_relative_to(Path.cwd()) else run_dir
    for what, path in _places(shown_dir):
        # Never wrapped, so that it can be copied.
        console.print(f"  {what:<11}{_plain(str(path))}", highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _table(rows: list[Row], numbers: Mapping[str, int]) -> Table:
    """`numbers` holds the remarks that are too long for the note column and stand under the table."""
    from rich import box
    from rich.table import Table

    stages = [stage for stage in STAGES if stage in rows[0].cells]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("metric", no_wrap=True)
    table.add_column("", no_wrap=True)
    for stage in stages:
        table.add_column(stage, justify="right", no_wrap=True)
    notes = [_note(row, numbers) for row in rows]
    if any(notes):
        table.add_column("note", overflow="fold", style="dim")
    colours = {"better": "green", "worse": "red", "": ""}
    for position, row in enumerate(rows):
        texts = [_plain(row.title), row.arrow]
        for stage in stages:
            colour = colours[row.change] if stage == "after" else ""
            texts.append(f"[{colour}]{row.cells[stage].text}[/]" if colour else row.cells[stage].text)
        if any(notes):
            texts.append(_plain(notes[position]))
        last_of_group = position + 1 < len(rows) and rows[position + 1].group != row.group
        table.add_row(*texts, end_section=last_of_group)
    return table


def _told(row: Row) -> dict[str, list[str]]:
    """The remarks that a reader of the terminal needs, on the value after and on missing ones, with their stages."""
    told: dict[str, list[str]] = {}
    for stage, cell in row.cells.items():
        if stage == "after" or cell.value is None:
            for remark in cell.remarks:
                told.setdefault(remark, []).append(stage)
    return told


def _note(row: Row, numbers: Mapping[str, int]) -> str:
    """Short remarks in full, long ones by their number, and the stage where that is not the one after."""
    notes = []
    for remark, stages in _told(row).items():
        text = f"{numbers[remark]})" if remark in numbers else remark
        notes.append(text if "after" in stages else f"{', '.join(stages)}: {text}")
    return "; ".join(notes)


def ending(results: Mapping[str, Any]) -> list[str]:
    """Why the run stopped, what became of each removal request, and how far the weights moved, one sentence each."""
    lines = []
    if stop := results.get("stop"):
        lines.append(f"Stopped at step {stop['step']}: {stop['reason']}.")
    lines += [
        f"After removal request {done['request']} the {done['rows']} rows asked for until then had a mean probability "
        f"of {done['prob']:.3f}."
        for done in results.get("requests") or ()
    ]
    if weights := results.get("weights"):
        lines.append(
            f"The trained weights moved by {weights['relative_l2']:.2%} of their norm; "
            f"{weights['changed_tensors']} of {weights['tensors']} tensors changed."
        )
    return lines


def _places(run_dir: Path) -> list[tuple[str, Path | str]]:
    """What the folder holds, as a person looks for it; only what exists."""
    names = {
        "report": "report.html",
        "numbers": "results.json",
        "steps": "metrics.jsonl",
        "records": "records",
        "model": "model",
        "config": "config.yaml",
    }
    places: list[tuple[str, Path | str]] = [
        (what, run_dir / name) for what, name in names.items() if (run_dir / name).exists()
    ]
    online, offline = run_dir / "wandb" / "url", sorted((run_dir / "wandb").glob("offline-run-*"))
    if online.exists():
        places.append(("W&B", online.read_text().strip()))
    elif offline:
        places.append(("W&B", f"offline; upload with: wandb sync {offline[-1]}"))
    return places
