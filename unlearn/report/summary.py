"""The end of a run in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unlearn.report.rows import STAGES, Row, read_run_folder, table_rows
from unlearn.report.verdict import burden, ending, verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# What the terminal shows where a run has any of them, and otherwise all its rows; the page has every row always.
TERMINAL_METRICS = (
    "knowmem_f",
    "verbmem_f",
    "knowmem_r",
    "model_utility",
    "forget_quality",
    "privleak",
    "forget.prob",
    "forget.rouge_l_recall",
    "forget.extraction_strength",
    "retain.prob",
    "retain.rouge_l_recall",
    "forget.min_k_auc",
    "wmdp_bio.accuracy",
    "wmdp_cyber.accuracy",
    "wmdp_chem.accuracy",
)
SHORT_REMARK = 24
WIDE = 110
"""Columns of a terminal in which the intervals have room."""


def print_summary(console: Console, run_dir: Path) -> None:
    """Print what was forgotten, what was kept, why the run ended, and where everything is."""
    folder = read_run_folder(run_dir)
    colour = "green" if folder.status == "done" else "yellow" if folder.status in ("running", "preempted") else "red"
    console.print()
    console.print(f"[bold]{_plain(folder.title)}[/]  [{colour}]{_plain(folder.status)}[/]", highlight=False)
    for label in folder.results.get("labels") or []:
        console.print(f"[yellow]{_plain(label)}[/]", highlight=False)
    rows = table_rows(folder.results)
    shown = [row for row in rows if row.name in TERMINAL_METRICS] or rows
    if shown:
        long = dict.fromkeys(remark for row in shown for remark in _told(row) if len(remark) > SHORT_REMARK)
        numbers = {remark: number for number, remark in enumerate(long, start=1)}
        console.print(_table(shown, numbers, console.width >= WIDE))
        for remark, number in numbers.items():
            console.print(f"{number}) {_plain(remark)}", highlight=False, style="dim")
        console.print()
    for line in [*verdict(folder), burden(folder.results), *ending(folder.results)]:
        if line:
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


def _table(rows: list[Row], numbers: Mapping[str, int], wide: bool) -> Table:
    """`numbers` holds the remarks that are too long for the note column and stand under the table; `wide` has room for
    the intervals of the values after.
    """
    from rich import box
    from rich.table import Table

    stages = [stage for stage in STAGES if stage in rows[0].cells]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    intervals = wide and any("after" in row.cells and row.cells["after"].interval for row in rows)
    table.add_column("metric", no_wrap=True)
    table.add_column("", no_wrap=True)
    for stage in stages:
        table.add_column(stage, justify="right", no_wrap=True)
        if stage == "after" and intervals:
            table.add_column("", no_wrap=True, style="dim")
    notes = [_note(row, numbers) for row in rows]
    if any(notes):
        table.add_column("note", overflow="fold", style="dim")
    colours = {"better": "green", "worse": "red", "": ""}
    for position, row in enumerate(rows):
        texts = [_plain(row.title), row.arrow]
        for stage in stages:
            colour = colours[row.change] if stage == "after" else ""
            texts.append(f"[{colour}]{row.cells[stage].text}[/]" if colour else row.cells[stage].text)
            if stage == "after" and intervals:
                texts.append(_plain(row.cells[stage].interval_text))
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
