"""MUSE (Shi et al., 2407.06460): news articles and books, from three sources: embedded, the hub, or a folder.

All three give the entries of a file by "configuration/split" ("raw/forget"), as published; everything after that is one
path. What is trained on are texts, in windows; what is measured are questions behind ten others with their answers
(knowmem), continuations of what was trained on (verbmem), and texts by themselves (privleak).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unlearn.config import DataConfig, LimitConfig
from unlearn.data import muse_files
from unlearn.data.benchmark import EMBEDDED_LABEL, Benchmark, EvalSet, even
from unlearn.data.encode import squeeze
from unlearn.data.example import Example
from unlearn.data.muse_files import Reader
from unlearn.errors import UserError

FOLDS = range(1, 5)
SPLITS = ("raw", *(f"scal_{k}" for k in FOLDS), "sust")
NEW_TOKENS = {"knowmem": 32, "verbmem": 128}
"""Longest continuation that is generated, as in the published evaluation."""
STOP = ("\n\n", "\nQuestion", "Question:")
"""What an answer to a question is cut at: a blank line, or the next question."""
PRIVLEAK_LABEL = "trained on the privleak texts, not comparable with published numbers"

Files = dict[str, tuple[str, ...]]


def load(config: DataConfig) -> Benchmark:
    """Read all sets of one split. Raises UserError with every fault of the files at once.

    The retain set, which target and reference are trained on, are the texts of retain1 and retain2, as in the published
    configuration `train`; the retain objective sees retain1, as in the published scripts, and retain2 is what the
    questions about retained knowledge are about. The forget texts are "raw/forget", one of "scal/forget_1" to "_4"
    (each with the ones before it), or for "sust" the four disjoint folds, each a removal request of its own.
    """
    read = muse_files.reader(config)
    faults: list[str] = []
    texts = _read_all(_trained(config), read, config, faults)
    scored = _evaluated(config, read, faults)
    missing = muse_files.missing_faults(read, config)
    if missing or faults:
        raise UserError([*missing, *dict.fromkeys(faults)])
    sets = {name: sum(texts[name], ()) for name in ("forget", "retain", "holdout")}
    sets["background"] = ()
    labels = [EMBEDDED_LABEL] if config.source == "embedded" else []
    if config.corpus == "privleak":
        labels.append(PRIVLEAK_LABEL)
    labels += _apart(sets, config)
    return Benchmark(
        "muse",
        config.split,
        "the retain set",
        config.source,
        sets,
        _retained(sets["forget"], texts["retain"][0], config),
        scored,
        _requests(texts["forget"], config),
        tuple(labels),
    )


def _trained(config: DataConfig) -> Files:
    """The files of each set that is trained on."""
    if config.corpus == "privleak":
        return {name: (f"privleak/{name}",) for name in ("forget", "retain", "holdout")}
    forget: tuple[str, ...] = ("raw/forget",)
    if config.split == "sust":
        forget = tuple(f"sust/forget_{k}" for k in FOLDS)
    elif config.split.startswith("scal_"):
        forget = (f"scal/forget_{config.split.removeprefix('scal_')}",)
    return {"forget": forget, "retain": ("raw/retain1", "raw/retain2"), "holdout": ("raw/holdout",)}


def _read_all(
    files: Files, read: Reader, config: DataConfig, faults: list[str]
) -> dict[str, list[tuple[Example, ...]]]:
    """The texts of each set, file by file; a limit takes equally many of each. Faults are added to `faults`."""
    found: dict[str, list[tuple[Example, ...]]] = {}
    for name, parts in files.items():
        limit: int | None = getattr(config.limit, name)
        if limit is not None and limit < len(parts):
            faults.append(f"data.limit.{name}: needs at least {len(parts)}, for {', '.join(parts)}; found {limit}")
        counts = [None] * len(parts) if limit is None else even(limit, len(parts))
        found[name] = [
            _collected(texts_of, file, read, faults)[:count] for file, count in zip(parts, counts, strict=True)
        ]
    return found


def _collected(
    make: Callable[[str, list[Any]], tuple[Example, ...]], file: str, read: Reader, faults: list[str]
) -> tuple[Example, ...]:
    """The examples of a file; none, and a fault in `faults`, where it cannot be read."""
    try:
        entries = read(file)
        return make(file, entries) if entries is not None else ()
    except UserError as error:
        faults += error.messages
        return ()


def _evaluated(config: DataConfig, read: Reader, faults: list[str]) -> dict[str, EvalSet]:
    limit: LimitConfig = config.limit
    # A byte-level BPE has the blank in front of a word in one token with it, and the embedded model learned that one.
    answer_sign = "Answer:" if config.source == "embedded" else "Answer: "
    sets = {
        name: EvalSet(_collected(texts_of, f"privleak/{name}", read, faults)[: getattr(limit, name)])
        for name in ("forget", "retain", "holdout")
    }
    for name in ("forget", "retain"):
        shots = _collected(questions, f"knowmem/{name}_qa_icl", read, faults)
        asked = _collected(questions, f"knowmem/{name}_qa", read, faults)[: limit.questions]
        few_shot = tuple(_few_shot(shots, example, answer_sign) for example in asked)
        sets[f"{name}_knowmem"] = EvalSet(few_shot, NEW_TOKENS["knowmem"], STOP)
    beginnings = _collected(continuations, "verbmem/forget", read, faults)[: limit.questions]
    # Published continuations are longer than what is generated; an embedded article ends with a blank line.
    ends = STOP[:1] if config.source == "embedded" else ()
    sets["forget_verbmem"] = EvalSet(beginnings, NEW_TOKENS["verbmem"], ends)
    return sets


def _few_shot(shots: tuple[Example, ...], asked: Example, answer_sign: str) -> Example:
    """A question behind others with their answers, to the letter as published."""
    before = "".join(f"Question: {shot.question}\nAnswer: {shot.answer}\n\n" for shot in shots)
    return Example(asked.id, asked.question, asked.answer, prompt=f"{before}Question: {asked.question}\n{answer_sign}")


def texts_of(file: str, entries: list[Any], key: str = "data.source") -> tuple[Example, ...]:
    """Texts that stand alone, from strings or {"text": ...}. A fault names the setting `key`, file and entry."""
    bare = [entry if isinstance(entry, str) else _value(entry, "text") for entry in entries]
    _check(file, entries, ["text"], [[text] for text in bare], key)
    return tuple(Example(f"{file}/{n}", "", text, prompt="") for n, text in enumerate(bare))


def questions(file: str, entries: list[Any]) -> tuple[Example, ...]:
    """Examples from {"question": ..., "answer": ...}."""
    pairs = [[_value(entry, "question"), _value(entry, "answer")] for entry in entries]
    _check(file, entries, ["question", "answer"], pairs)
    return tuple(Example(f"{file}/{n}", question, answer) for n, (question, answer) in enumerate(pairs))


def continuations(file: str, entries: list[Any]) -> tuple[Example, ...]:
    """Examples from {"prompt": ..., "gt": ...}: the beginning of a text, and how it goes on."""
    pairs = [[_value(entry, "prompt"), _value(entry, "gt")] for entry in entries]
    _check(file, entries, ["prompt", "gt"], pairs)
    return tuple(Example(f"{file}/{n}", "", answer, prompt=prompt) for n, (prompt, answer) in enumerate(pairs))


def _value(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, dict) else None


def _check(file: str, entries: list[Any], keys: list[str], values: list[list[Any]], key: str = "data.source") -> None:
    """Every entry must have a text under each of the keys. Raises UserError with a line for each that has not."""
    if not entries:
        raise UserError(f"{key}: {file} is empty")
    faults = [
        f"{key}: {file} entry {n} needs a text under '{name}'; found {entries[n]!r:.60}"
        for n, found in enumerate(values)
        for name, value in zip(keys, found, strict=True)
        if not isinstance(value, str) or not value.strip()
    ]
    if faults:
        raise UserError(faults)


def _apart(sets: dict[str, tuple[Example, ...]], config: DataConfig) -> list[str]:
    """A text in both the forget and the retain (or holdout) set makes every number meaningless. Raises UserError.

    Of the published data, which nobody can mend, it is told to every reader of a number.
    """
    notes = []
    for other in ("retain", "holdout"):
        both = _common(sets["forget"], sets[other])
        if both:
            first, second = both[0]
            notes.append(
                f"{len(both)} texts of the forget set are in the {other} set too ({first} is {second}); "
                f"found in '{config.source}'"
            )
    if notes and config.source != "hub":
        raise UserError([f"data.source: {note}" for note in notes])
    return notes


def _common(forget: tuple[Example, ...], others: tuple[Example, ...]) -> list[tuple[str, str]]:
    """Ids of texts that are in both."""
    known = {squeeze(example.answer): example.id for example in forget}
    return [(known[text], e.id) for e in others if (text := squeeze(e.answer)) in known]


def _retained(forget: tuple[Example, ...], retain: tuple[Example, ...], config: DataConfig) -> tuple[Example, ...]:
    """The texts that the retain objective sees. Raises UserError where there are none or some are to be forgotten."""
    choice, key = config.retain_rows, "data.retain_rows"
    if choice == "retain":
        return retain
    if choice == "general":
        raise UserError(f"{key}: general needs rows about the world, and data=muse has none; take retain or a file")
    examples = texts_of(choice, muse_files.entries(choice, key), key)
    both = _common(forget, examples)
    if both:
        raise UserError(
            f"{key}: {len(both)} texts of '{choice}' are in the forget set too ({both[0][1]} is {both[0][0]})"
        )
    return examples


def _requests(parts: list[tuple[Example, ...]], config: DataConfig) -> tuple[int, ...]:
    """Texts of each removal request: those of each file, or equal parts of the one there is."""
    if len(parts) > 1:
        return tuple(len(part) for part in parts)
    count = len(parts[0])
    if config.requests > count:
        raise UserError(
            f"data.requests: needs at most one request per text of the forget set ({count}); found {config.requests}"
        )
    return even(count, config.requests)
