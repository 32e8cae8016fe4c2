"""TOFU (Maini et al., 2401.06121) from three sources: embedded, the hub, or a folder with the published files.

All three give rows by file name ("forget10_perturbed"), in the published format; everything after that is one path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from unlearn.config import DataConfig, LimitConfig
from unlearn.data import embedded
from unlearn.data.benchmark import EMBEDDED_LABEL, Benchmark, EvalSet, even
from unlearn.data.encode import squeeze
from unlearn.data.example import Example
from unlearn.data.jsonl import read_json_lines
from unlearn.errors import UserError
from unlearn.models import hub

RETAIN = {"forget01": "retain99", "forget05": "retain95", "forget10": "retain90"}
HOLDOUT = {"forget01": "holdout01", "forget05": "holdout05", "forget10": "holdout10"}

SPLITS = tuple(RETAIN)
TRAINED = ("forget", "retain", "holdout", "background")
MAX_NEW_TOKENS = 200  # TOFU's and open-unlearning's limit of a generated answer

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
    if config.requests > len(sets["forget"]):
        raise UserError(
            f"data.requests: needs at most one request per row of the forget set ({len(sets['forget'])}); "
            f"found {config.requests}"
        )
    return Benchmark(
        "tofu",
        config.split,
        RETAIN[config.split],
        config.source,
        {name: sets[name] for name in TRAINED},
        _retained(sets, config),
        _evaluated(sets),
        even(len(sets["forget"]), config.requests),
        (EMBEDDED_LABEL,) if config.source == "embedded" else (),
    )


def _evaluated(sets: dict[str, tuple[Example, ...]]) -> dict[str, EvalSet]:
    """All but the holdout are asked to answer; that one is only there to be compared with, token by token.

    Of the retain set those rows that have variants, as published, where any has.
    """
    with_variants = tuple(example for example in sets["retain"] if example.has_variants)
    scored = {
        "forget": sets["forget"],
        "retain": with_variants or sets["retain"],
        "holdout": sets["holdout"],
        "real_authors": sets["real_authors"],
        "world_facts": sets["world_facts"],
    }
    limits = {name: None if name == "holdout" else MAX_NEW_TOKENS for name in scored}
    return {name: EvalSet(examples, limits[name]) for name, examples in scored.items()}


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


def examples_of(file: str, rows: list[dict[str, Any]], setting: str = "data.source") -> tuple[Example, ...]:
    """Rows of one file as examples; an empty file or a row without question and answer is a fault of `setting`."""
    if not rows:
        raise UserError(f"{setting}: the set {file} is empty")
    return tuple(_example(f"{file}/{index}", row, setting) for index, row in enumerate(rows))


def _example(id: str, row: dict[str, Any], setting: str) -> Example:
    for key in ("question", "answer"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise UserError(f"{setting}: {id} needs a text under '{key}', found {row.get(key)!r}")
    for key in ("paraphrased_question", "paraphrased_answer"):
        if not isinstance(row.get(key), str | None):
            raise UserError(f"{setting}: {id} needs a text under '{key}', found {row[key]!r}")
    wrong = row.get("perturbed_answer") or []
    wrong = [wrong] if isinstance(wrong, str) else wrong
    if not isinstance(wrong, list) or not all(isinstance(answer, str) for answer in wrong):
        raise UserError(f"{setting}: {id} needs texts under 'perturbed_answer', found {row['perturbed_answer']!r}")
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


def _retained(sets: dict[str, tuple[Example, ...]], config: DataConfig) -> tuple[Example, ...]:
    """The rows that the retain objective sees. Raises UserError where there are none or some are to be forgotten."""
    choice = config.retain_rows
    if choice == "retain":
        return sets["retain"]
    if choice == "general":
        general: dict[tuple[str, str], Example] = {}
        for example in sets["real_authors"] + sets["world_facts"] + sets["background"]:
            # The embedded background repeats the rows of the other two.
            general.setdefault((example.question, example.answer), example)
        return tuple(general.values())
    path = Path(choice).expanduser()
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no file"
        raise UserError(
            f"data.retain_rows: needs retain, general or a JSON-lines file; found '{choice}', which is {what}"
        )
    examples = examples_of(path.name, read_json_lines(path, "data.retain_rows"), "data.retain_rows")
    forget = {(squeeze(example.question), squeeze(example.answer)): example.id for example in sets["forget"]}
    both = [(e.id, forget[text]) for e in examples if (text := (squeeze(e.question), squeeze(e.answer))) in forget]
    if both:
        raise UserError(
            f"data.retain_rows: {len(both)} rows of '{choice}' are in the forget set too ({both[0][0]} is {both[0][1]})"
        )
    return examples
