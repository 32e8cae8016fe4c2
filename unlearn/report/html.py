"""report.html: one self-contained page per run, without scripts and without anything from the network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from unlearn.evaluation import records
from unlearn.evaluation.damage import asked, shorten
from unlearn.report import brunt, course, plots
from unlearn.report.rows import STAGES, Row, RunFolder, footnotes, format_value, read_run_folder, set_title, table_rows
from unlearn.report.verdict import MUSE, ending, verdict

# Answers shown of each set for which any were generated.
SAMPLES = {"forget": 4, "forget_knowmem": 3, "forget_verbmem": 2, "retain": 3, "retain_knowmem": 3}
SAMPLE_TITLES = {"forget": "Questions to forget", "retain": "Questions to keep"}
# What the tiles under the title show: the first four that the run has, MUSE's where it has any of them.
TILES = ("forget.prob", "retain.prob", "model_utility", "forget_quality", "privleak")
MUSE_TILES = ("knowmem_f", "verbmem_f", "privleak", "knowmem_r")
LONGEST_TEXT = 600
"""Characters that the page shows of each text; records have the whole."""


@dataclass(frozen=True)
class Answer:
    """What one model said to a sample's question; prob is exp(mean log-probability) of the reference answer."""

    stage: str
    generated: str | None
    prob: float | None


@dataclass(frozen=True)
class Sample:
    """One question with its reference answer and what the models of the run generate."""

    id: str
    prompt: str
    answer: str
    answers: list[Answer]


def write_report(run_dir: Path) -> Path:
    """Write report.html into the run folder from what the folder holds, and return its path.

    Missing parts (a run that diverged, or failed early) are left out and said so.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = read_run_folder(run_dir)
    rows = table_rows(folder.results)
    intervals = {stage for row in rows for stage, cell in row.cells.items() if cell.interval}
    longest = max((len(cell.interval_text) for row in rows for cell in row.cells.values()), default=0)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((Path(__file__).parent / "report.html.j2").read_text(encoding="utf-8"))
    page = template.render(
        folder=folder,
        facts=_facts(folder),
        labels=folder.results.get("labels") or [],
        verdict=verdict(folder),
        ending=ending(folder.results),
        tiles=_tiles(rows),
        stages=[stage for stage in STAGES if rows and stage in rows[0].cells],
        groups=[(set_title(name), list(members)) for name, members in groupby(rows, key=lambda row: row.group)],
        footnotes=footnotes(rows),
        with_intervals=intervals,
        interval_rem=0.46 * longest,
        short_title=_short_title,
        tile_note=_tile_note,
        change=_change,
        spread=_spread,
        format_value=format_value,
        courses=course.courses(folder.results),
        brunts=[(one, Markup(one.drawing)) for one in brunt.brunts(folder.results)],
        curves=[(plot, Markup(drawing)) for plot, drawing in plots.curves(plots.read_steps(run_dir / "metrics.jsonl"))],
        samples=[
            (SAMPLE_TITLES.get(name, set_title(name)), read_samples(run_dir, name, count))
            for name, count in SAMPLES.items()
        ],
        stage_times=_stage_times(folder.run),
        provenance=_provenance(folder.run),
        config=_yaml(run_dir),
    )
    path = run_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def read_samples(run_dir: Path, name: str, count: int) -> list[Sample]:
    """The first `count` answers of a set, in the order of the data, that any stage generated for."""
    by_stage: dict[str, dict[str, records.Record]] = {}
    for stage in STAGES:
        path = run_dir / "records" / stage / f"{name}.parquet"
        if path.exists():
            by_stage[stage] = {record.id: record for record in records.read(path) if record.kind == "answer"}
    generated = dict.fromkeys(
        id for stage in by_stage.values() for id, record in stage.items() if record.generated is not None
    )
    samples = []
    for id in list(generated)[:count]:
        found = {stage: members[id] for stage, members in by_stage.items() if id in members}
        first = next(iter(found.values()))
        answers = [
            Answer(stage, None if record.generated is None else shorten(record.generated, LONGEST_TEXT), _prob(record))
            for stage, record in found.items()
        ]
        samples.append(Sample(id, asked(first.prompt, LONGEST_TEXT), shorten(first.answer, LONGEST_TEXT), answers))
    return samples


def _tiles(rows: list[Row]) -> list[Row]:
    by_name = {row.name: row for row in rows if any(cell.value is not None for cell in row.cells.values())}
    names = MUSE_TILES if any(name in by_name for name in MUSE) else TILES
    return [by_name[name] for name in names if name in by_name][:4]


def _prob(record: records.Record) -> float | None:
    return float(np.exp(np.mean(record.logp_T))) if len(record.logp_T) and np.isfinite(record.logp_T).all() else None


def _facts(folder: RunFolder) -> list[tuple[str, str]]:
    """The choices that name a run, in a reader's words; what the config does not say is left out."""
    config = folder.config

    def look(*keys: str) -> Any:
        node: Any = config
        for key in keys:
            node = node.get(key) if isinstance(node, Mapping) else None
        return node

    found = {
        "forget": look("method", "forget", "name"),
        "retain": look("method", "retain", "name"),
        "combine": look("method", "combine", "name"),
        "scheduler": look("scheduler", "name"),
        "optimizer": look("optimizer", "name"),
        "lr": look("optimizer", "lr"),
        "data source": look("data", "source"),
        "seed": look("seed"),
        "steps": folder.results.get("steps"),
    }
    return [(name, str(value)) for name, value in found.items() if value is not None]


def _short_title(row: Row) -> str:
    """The title without the group's name, under whose heading it stands."""
    prefix, _, rest = row.title.partition(": ")
    title = rest if prefix.lower() == row.group.replace("_", " ") else row.title
    return title[:1].upper() + title[1:]


def _tile_note(row: Row) -> str:
    """The reference's value, and what must be known of the value after where that is short."""
    parts = []
    if "reference" not in row.cells:
        parts.append("no reference")
    elif row.cells["reference"].value is not None:
        parts.append(f"reference {row.cells['reference'].text}")
    if "after" in row.cells:
        parts += [remark for remark in row.cells["after"].remarks if len(remark) <= 40]
    return " · ".join(parts)


def _change(row: Row) -> str:
    """after - before with its sign, "" where one is missing."""
    before, after = (row.cells[stage].value if stage in row.cells else None for stage in ("before", "after"))
    if before is None or after is None:
        return ""
    if format_value(before) == format_value(after):
        return "0"
    return ("+" if after > before else "-") + format_value(abs(after - before))


def _spread(row: Row) -> dict[str, float]:
    """Where each stage's value, and the interval of the one after ("low", "high"), lies in the metric's range, 0 to
    100; empty where the range has no ends.
    """
    if row.metric is None or not all(map(math.isfinite, row.metric.range)):
        return {}
    low, high = row.metric.range
    values = {stage: cell.value for stage, cell in row.cells.items() if cell.value is not None}
    if "after" in row.cells and (interval := row.cells["after"].interval):
        values |= dict(zip(("low", "high"), interval, strict=True))
    return {stage: round(100 * min(max((value - low) / (high - low), 0), 1), 1) for stage, value in values.items()}


def _stage_times(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, f"{stage['seconds']:.1f} s" + (" (cached)" if stage.get("cached") else ""))
        for name, stage in (run.get("stages") or {}).items()
        if stage.get("seconds") is not None
    ]


def _provenance(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """run.json as name and text, nested values in one line each."""

    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{key} {text(inner)}" for key, inner in value.items())
        if isinstance(value, list):
            return " ".join(text(inner) for inner in value)
        return str(value)

    facts = []
    for name, value in run.items():
        if name in ("status", "stages") or value is None:
            continue
        if name == "peak_memory_bytes":
            name, value = "peak memory", f"{value / 2**30:.2f} GiB"
        elif isinstance(value, int) and not isinstance(value, bool):
            value = f"{value:,}"
        facts.append((name.replace("_", " "), text(value)))
    return facts


def _yaml(run_dir: Path) -> str:
    path = run_dir / "config.yaml"
    return path.read_text(encoding="utf-8") if path.exists() else ""
