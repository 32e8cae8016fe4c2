"""Other answers to the questions of a set: what dpo, altpo, idk, flat, llmu and ssu teach in place of its own.

refusals            our own refusal sentences
shuffled            answers of other rows of the same set
retained            answers of rows to keep
perturbed_answer    a column of the benchmark: wrong answers of the same form
a JSON-lines file   objects with `question` and `answer` (a text or a list of texts), matched by the question
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from unlearn.data.batches import hash_seed
from unlearn.data.encode import Encoder, Row, squeeze
from unlearn.data.example import Example
from unlearn.data.jsonl import read_json_lines
from unlearn.data.refusals import REFUSALS
from unlearn.errors import UserError

KEY = "method.alternates"

N_ALTERNATES = 5
"""The most per row: as many as TOFU has perturbed answers, and as AltPO and SSU take."""

CHOICES = ("refusals", "shuffled", "retained", "perturbed_answer")


def load(
    choice: str, examples: Sequence[Example], encoder: Encoder, seed: int, pool: Sequence[Example] = ()
) -> dict[str, list[Row]]:
    """Up to five rows per example, by its id, with the row ids "<id>#0", "<id>#1", ...

    `examples` are the rows of one request, of which `shuffled` draws; `pool` are the rows to keep, of which `retained`
    does. Drawing is without replacement, once, and depends on seed, example id and the texts there are; of a column or
    a file the first five different texts are taken. Raises UserError, one line per kind of fault.
    """
    answers: list[Sequence[str]]
    if choice == "refusals":
        answers = [_draw(REFUSALS, example, seed) for example in examples]
    elif choice == "shuffled":
        answers = _drawn(examples, examples, seed, "another answer among the rows of its request (shuffled)")
    elif choice == "retained":
        answers = _drawn(examples, pool, seed, "another answer among the rows to keep (retained)")
    elif choice == "perturbed_answer":
        answers = [example.perturbed_answers for example in examples]
        _check(examples, answers, f"a text under '{choice}'")
    else:
        path = find(choice)
        by_question = _by_question(path)
        answers = [by_question.get(squeeze(example.question), []) for example in examples]
        _check(examples, answers, f"an answer in {path.name}")
    return encoder.alternates(examples, [_different(texts)[:N_ALTERNATES] for texts in answers])


def find(choice: str) -> Path:
    """The file that a choice other than `CHOICES` names. Raises UserError where it is none."""
    path = Path(choice).expanduser()
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no file"
        raise UserError(f"{KEY}: needs {', '.join(CHOICES)} or a JSON-lines file; found '{choice}', which is {what}")
    return path


def _draw(pool: Sequence[str], example: Example, seed: int) -> list[str]:
    """Up to five of the pool's different texts that are not the example's own answer."""
    generator = torch.Generator().manual_seed(hash_seed(seed, f"alternates {example.id}", 0))
    # One more than needed: the pool may hold the own answer, once.
    drawn = [pool[place] for place in torch.randperm(len(pool), generator=generator)[: N_ALTERNATES + 1].tolist()]
    return [text for text in drawn if squeeze(text) != squeeze(example.answer)][:N_ALTERNATES]


def _drawn(examples: Sequence[Example], pool: Sequence[Example], seed: int, what: str) -> list[Sequence[str]]:
    """Answers of the pool's rows to each example. Raises UserError where the pool has none but the example's own."""
    texts = _different([other.answer for other in pool])
    answers: list[Sequence[str]] = [_draw(texts, example, seed) for example in examples]
    _check(examples, answers, what)
    return answers


def _different(texts: Sequence[str]) -> list[str]:
    return list({squeeze(text): text for text in texts}.values())


def _by_question(path: Path) -> dict[str, list[str]]:
    """All answers of a file by question; a question may stand in several lines."""
    found: dict[str, list[str]] = {}
    faults = []
    for index, row in enumerate(read_json_lines(path, KEY)):
        answers: Any = row.get("answer")
        answers = [answers] if isinstance(answers, str) else answers
        if not isinstance(row.get("question"), str) or not row["question"].strip():
            faults.append(f"{path.name}/{index} needs a text under 'question', found {row.get('question')!r}")
        elif not isinstance(answers, list) or not answers or not all(isinstance(text, str) for text in answers):
            faults.append(f"{path.name}/{index} needs texts under 'answer', found {row.get('answer')!r}")
        else:
            found.setdefault(squeeze(row["question"]), []).extend(answers)
    if faults:
        more = f" (and {len(faults) - 1} more rows)" if len(faults) > 1 else ""
        raise UserError(f"{KEY}: {faults[0]}{more}")
    return found


def _check(examples: Sequence[Example], answers: Sequence[Sequence[str]], what: str) -> None:
    """Raises UserError where a row has no alternate, an empty one, or its own answer for one."""
    kinds: dict[str, Callable[[Example, Sequence[str]], bool]] = {
        "have none": lambda _, texts: not texts,
        "have an empty one": lambda _, texts: any(not text.strip() for text in texts),
        "have their own answer": lambda example, texts: squeeze(example.answer) in map(squeeze, texts),
    }
    faults = []
    for kind, wrong in kinds.items():
        ids = [example.id for example, texts in zip(examples, answers, strict=True) if wrong(example, texts)]
        if ids:
            faults.append(f"{KEY}: needs {what} for every row; {len(ids)} of {len(examples)} {kind} (first: {ids[0]})")
    if faults:
        raise UserError(faults)
