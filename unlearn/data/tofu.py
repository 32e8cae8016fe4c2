"""TOFU (Maini et al., 2401.06121) from three sources: embedded, the hub, or a folder with the published files.

All three give rows by file name ("forget10_perturbed"), in the published format; everything after that is one path.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unlearn.config import DataConfig, LimitConfig
from unlearn.data import embedded
from unlearn.data.benchmark import Benchmark
from unlearn.data.example import Example
from unlearn.errors import UserError
from unlearn.models import hub

RETAIN = {"forget01": "retain99", "forget05": "retain95", "forget10": "retain90"}
HOLDOUT = {"forget01": "holdout01", "forget05": "holdout05", "forget10": "holdout10"}

Reader = Callable[[str], list[dict[str, Any]]]


def load(config: DataConfig) -> Benchmark:
    """Read all sets of one split. Raises UserError with every fault of the files at once."""
    read = _reader(config)
    names = {
        "forget": config.split,
        "retain": RETAIN[config.split],
        "holdout": HOLDOUT[config.split],
        "real_authors": "real_authors_perturbed",
        "world_facts": "world_facts_perturbed",
    }
    variants = {"forget": f"{config.split}_perturbed", "retain": "retain_perturbed"}
    sets: dict[str, tuple[Example, ...]] = {}
    faults: list[str] = []
    for name, file in names.items():
        try:
            examples = examples_of(file, read(file))
            if name in variants:
                examples = _with_variants(examples, examples_of(variants[name], read(variants[name])), name)
            sets[name] = _limited(examples, name, config.limit)
        except UserError as error:
            faults += error.messages
    if faults:
        raise UserError(faults)
    sets["background"] = examples_of("background", read("background")) if config.source == "embedded" else ()
    _check_apart(sets, config)
    return Benchmark("tofu", config.split, RETAIN[config.split], config.source, sets)


def _reader(config: DataConfig) -> Reader:
    if config.source == "embedded":
        return embedded.tofu
    if config.source == "hub":
        # Asked once: five sets would give the same answer five times.
        hub.require(config.hub_id, "data.source", kind="dataset")
        return lambda name: hub.dataset_rows(config.hub_id, name)
    folder = Path(config.source).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"data.source: needs embedded, hub or a folder with the published files; found '{config.source}', "
            "which is no folder"
        )
    return lambda name: read_json_lines(folder / f"{name}.json")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with one JSON object a line; a fault names the file and the line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"data.source: needs the file {path.name}, found none in {path.parent}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data.source: cannot read {path}: {error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"data.source: {path} line {number} is not valid JSON: {error.msg}") from None
        if not isinstance(row, dict):
            raise UserError(f"data.source: {path} line {number} needs a JSON object, found {type(row).__name__}")
        rows.append(row)
    return rows


def examples_of(file: str, rows: list[dict[str, Any]]) -> tuple[Example, ...]:
    """Rows of one file as examples; an empty file or a row without question and answer is a fault."""
    if not rows:
        raise UserError(f"data.source: the set {file} is empty")
    return tuple(_example(f"{file}/{index}", row) for index, row in enumerate(rows))


def _example(id: str, row: dict[str, Any]) -> Example:
    for key in ("question", "answer"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise UserError(f"data.source: {id} needs a text under '{key}', found {row.get(key)!r}")
    for key in ("paraphrased_question", "paraphrased_answer"):
        if not isinstance(row.get(key), str | None):
            raise UserError(f"data.source: {id} needs a text under '{key}', found {row[key]!r}")
    wrong = row.get("perturbed_answer") or []
    wrong = [wrong] if isinstance(wrong, str) else wrong
    if not isinstance(wrong, list) or not all(isinstance(answer, str) for answer in wrong):
        raise UserError(f"data.source: {id} needs texts under 'perturbed_answer', found {row['perturbed_answer']!r}")
    return Example(
        id, row["question"], row["answer"], row.get("paraphrased_question"), row.get("paraphrased_answer"), tuple(wrong)
    )


def _with_variants(rows: tuple[Example, ...], perturbed: tuple[Example, ...], name: str) -> tuple[Example, ...]:
    """Give rows their paraphrase and perturbed answers, matched by question and answer, under the rows' own ids.

    Every row of the file of variants must be one of the set's rows: else the files belong to different splits.
    """
    by_text = {(example.question, example.answer): example for example in perturbed}
    known = {(example.question, example.answer) for example in rows}
    strangers = [example.id for text, example in by_text.items() if text not in known]
    if strangers:
        raise UserError(
            f"data.source: {strangers[0]} (and {len(strangers) - 1} more) is not in the {name} set of this split"
        )
    merged = []
    for row in rows:
        variant = by_text.get((row.question, row.answer))
        merged.append(
            row
            if variant is None
            else Example(
                row.id,
                row.question,
                row.answer,
                variant.paraphrased_question,
                variant.paraphrased_answer,
                variant.perturbed_answers,
            )
        )
    return tuple(merged)


def _limited(examples: tuple[Example, ...], name: str, limit: LimitConfig) -> tuple[Example, ...]:
    """The first rows, those with variants before the others, so that a shortened set can still be scored."""
    count = getattr(limit, name)
    if count is None:
        return examples
    return tuple(sorted(examples, key=lambda example: not example.has_variants)[:count])


def _check_apart(sets: dict[str, tuple[Example, ...]], config: DataConfig) -> None:
    """A row in both the forget and the retain (or holdout) set makes every number meaningless."""
    forget = {(example.question, example.answer): example.id for example in sets["forget"]}
    for other in ("retain", "holdout"):
        both = [(forget[text], e.id) for e in sets[other] if (text := (e.question, e.answer)) in forget]
        if both:
            raise UserError(
                f"data.source: {len(both)} rows of the forget set are in the {other} set too "
                f"({both[0][0]} is {both[0][1]}); found in '{config.source}'"
            )
