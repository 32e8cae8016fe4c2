"""WMDP (Li et al., 2403.03218): multiple-choice questions about hazardous knowledge.

Asked as by lm-evaluation-harness: zero-shot, the options under letters, answered by " A" to " D". From the hub, or from
a folder with the published files bio_questions.json, cyber_questions.json and chem_questions.json; wmdp-bio.jsonl or
wmdp-bio.json in their place, with one object a line or in one array, are read too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unlearn.config import SuiteConfig
from unlearn.data.benchmark import EvalSet
from unlearn.data.example import Example
from unlearn.data.jsonl import read_json_lines
from unlearn.errors import UserError
from unlearn.models import hub

HUB_ID = "cais/wmdp"
SUBJECTS = {"bio": "biology", "cyber": "cybersecurity", "chem": "chemistry"}
LETTERS = "ABCD"
FILES = ("{name}_questions.json", "wmdp-{name}.jsonl", "wmdp-{name}.json")


def load(suite: SuiteConfig) -> dict[str, EvalSet]:
    """The sets "wmdp_bio" ... that `suite.wmdp` names. Raises UserError with the first fault of every file."""
    sets, faults = {}, []
    for name in suite.wmdp:
        try:
            sets[f"wmdp_{name}"] = EvalSet(_examples(name, suite.wmdp_source))
        except UserError as error:
            faults += [message for message in error.messages if message not in faults]
    if faults:
        raise UserError(faults)
    return sets


def _examples(name: str, source: str) -> tuple[Example, ...]:
    if source == "hub":
        rows = hub.dataset_rows(HUB_ID, f"wmdp-{name}", split="test", key="suite.wmdp_source")
        placed = [(f"wmdp-{name} row {index}", row) for index, row in enumerate(rows)]
    else:
        placed = _read(_file(name, source))
    if not placed:
        raise UserError(f"suite.wmdp_source: the set wmdp-{name} is empty")
    return tuple(_example(f"wmdp-{name}/{index}", place, row, name) for index, (place, row) in enumerate(placed))


def _file(name: str, source: str) -> Path:
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"suite.wmdp_source: needs hub or a folder with WMDP's files; found '{source}', which is no folder"
        )
    names = [template.format(name=name) for template in FILES]
    found = next((folder / each for each in names if (folder / each).is_file()), None)
    if found is None:
        raise UserError(f"suite.wmdp_source: needs one of {', '.join(names)}, found none in {folder}")
    return found


def _read(path: Path) -> list[tuple[str, Any]]:
    """Rows of a JSON array or of JSON lines, each with its place for messages."""
    try:
        text = path.read_text(encoding="utf-8")
        rows = json.loads(text) if text.lstrip().startswith("[") else None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"suite.wmdp_source: cannot read {path}: {error}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"suite.wmdp_source: {path} line {error.lineno} is not valid JSON: {error.msg}") from None
    if rows is not None:
        return [(f"{path} entry {number}", row) for number, row in enumerate(rows, 1)]
    lines = [number for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    objects = read_json_lines(path, "suite.wmdp_source")
    return [(f"{path} line {number}", row) for number, row in zip(lines, objects, strict=True)]


def _example(id: str, place: str, row: Any, name: str) -> Example:
    """Raises UserError where a row is no question with four options and the index of the right one."""
    fault = f"suite.wmdp_source: {place} needs"
    if not isinstance(row, dict):
        raise UserError(f"{fault} an object with question, choices and answer; found {type(row).__name__}")
    question, choices, answer = row.get("question"), row.get("choices"), row.get("answer")
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"{fault} a text under 'question', found {question!r}")
    if not isinstance(choices, list) or len(choices) != len(LETTERS) or not all(isinstance(c, str) for c in choices):
        raise UserError(f"{fault} {len(LETTERS)} texts under 'choices', found {choices!r}")
    if type(answer) is not int or not 0 <= answer < len(LETTERS):
        raise UserError(f"{fault} an index from 0 to {len(LETTERS) - 1} under 'answer', found {answer!r}")
    right = LETTERS[answer]
    wrong = tuple(letter for letter in LETTERS if letter != right)
    return Example(id, question, right, perturbed_answers=wrong, prompt=_prompt(question, choices, SUBJECTS[name]))


def _prompt(question: str, choices: list[str], subject: str) -> str:
    options = "".join(f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, choices, strict=True))
    head = f"The following are multiple choice questions (with answers) about {subject}."
    return f"{head}\n\n{question.strip()}\n{options}Answer:"
