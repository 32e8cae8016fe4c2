"""WMDP's files as questions with four letters, and what is said of faulty ones. The questions here are harmless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, GPT2TokenizerFast

from tests.conftest import SHARED, needs_shared
from tests.helpers import compose_run, data_config
from unlearn.config import FormatConfig, SuiteConfig
from unlearn.data import tofu, wmdp
from unlearn.data.encode import Encoder
from unlearn.errors import UserError
from unlearn.models import hub
from unlearn.models.load import tiny_tokenizer

ROWS: list[dict[str, Any]] = [
    {"answer": 2, "question": "Which of these is a plant? ", "choices": ["a horse", "a fox", "an oak", "a carp"]},
    {"answer": 0, "question": "How many legs has an insect?", "choices": ["six", "eight", "four", "ten"]},
]

PROMPT = """The following are multiple choice questions (with answers) about biology.

Which of these is a plant?
A. a horse
B. a fox
C. an oak
D. a carp
Answer:"""


def suite(source: Path | str, *names: str) -> SuiteConfig:
    return SuiteConfig(name="wmdp", wmdp=list(names), wmdp_source=str(source))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bio_questions.json", json.dumps(ROWS, indent=1)),
        ("wmdp-bio.json", json.dumps(ROWS)),
        ("wmdp-bio.jsonl", "\n".join(json.dumps(row) for row in ROWS) + "\n\n"),
    ],
)
def test_the_published_files_and_lines(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    sets = wmdp.load(suite(tmp_path, "bio"))
    assert list(sets) == ["wmdp_bio"]
    assert sets["wmdp_bio"].max_new_tokens is None
    first, second = sets["wmdp_bio"].examples
    assert (first.id, first.answer, first.perturbed_answers, first.prompt) == (
        "wmdp-bio/0",
        "C",
        ("A", "B", "D"),
        PROMPT,
    )
    assert (second.id, second.answer, second.perturbed_answers) == ("wmdp-bio/1", "A", ("B", "C", "D"))


def test_the_subject_stands_in_the_prompt(tmp_path: Path) -> None:
    for name in wmdp.SUBJECTS:
        (tmp_path / f"{name}_questions.json").write_text(json.dumps(ROWS[1:]))
    sets = wmdp.load(suite(tmp_path, "chem", "cyber"))
    heads = [next(iter(each.examples)).prompt.splitlines()[0] for each in sets.values()]  # type: ignore[union-attr]
    start = "The following are multiple choice questions (with answers) about"
    assert heads == [f"{start} chemistry.", f"{start} cybersecurity."]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """With the tokenizer of model=tiny."""
    cfg = compose_run()
    return Encoder(tiny_tokenizer(cfg.model.tiny, tofu.load(data_config())), cfg.model.format, 512)


def published(name: str) -> Encoder:
    kind = GPT2TokenizerFast if name == "gpt2" else AutoTokenizer
    return Encoder(kind.from_pretrained(SHARED / "tokenizers" / name), FormatConfig(prompt="{question}"), 512)


def check_rows(encoder: Encoder, folder: Path) -> None:
    """Tokens are those of the whole text, and each option is one of them."""
    (folder / "bio_questions.json").write_text(json.dumps(ROWS))
    rows = encoder.variants(wmdp.load(suite(folder, "bio"))["wmdp_bio"].examples)
    kinds = ("answer", "perturbed_0", "perturbed_1", "perturbed_2")
    assert [(row.kind, row.answer) for row in rows] == list(zip(kinds * 2, "CABDABCD", strict=True))
    for row in rows:
        head = [] if encoder.bos is None else [encoder.bos]
        whole = encoder.tokenizer(f"{row.prompt} {row.answer}", add_special_tokens=False)["input_ids"]
        assert list(row.input_ids) == [*head, *whole]
        assert (row.n_answer, row.n_content, row.n_lead, row.truncated) == (1, 1, 0, False)


def test_each_option_is_one_letter_behind_the_same_prompt(encoder: Encoder, tmp_path: Path) -> None:
    check_rows(encoder, tmp_path)


@needs_shared
@pytest.mark.parametrize("name", ["gpt2", "llama2"])
def test_each_option_is_one_letter_of_published_tokenizers(name: str, tmp_path: Path) -> None:
    check_rows(published(name), tmp_path)


def test_a_published_set_of_another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rows(*words: Any, **settings: Any) -> list[dict[str, Any]]:
        asked.append((words, settings))
        return ROWS

    monkeypatch.setattr(hub, "dataset_rows", rows)
    assert wmdp.load(suite("hub", "bio"))["wmdp_bio"].examples[0].prompt == PROMPT
    assert asked == [(("cais/wmdp", "wmdp-bio"), {"split": "test", "key": "suite.wmdp_source"})]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": " ", "choices": list("abcd"), "answer": 0}, "line 3 needs a text under 'question', found ' '"),
        ({"question": "q", "choices": list("abc"), "answer": 0}, "line 3 needs 4 texts under 'choices', found ['a', "),
        ({"question": "q", "choices": "abcd", "answer": 0}, "line 3 needs 4 texts under 'choices', found 'abcd'"),
        ({"question": "q", "choices": list("abcd"), "answer": 4}, "line 3 needs an index from 0 to 3 under 'answer', "),
        ({"question": "q", "choices": list("abcd"), "answer": "A"}, "line 3 needs an index from 0 to 3 under 'answer'"),
        ({"question": "q", "choices": list("abcd"), "answer": True}, "line 3 needs an index from 0 to 3 under 'answer"),
        ({"question": "q", "choices": list("abcd")}, "line 3 needs an index from 0 to 3 under 'answer', found None"),
        ([1], "line 3 needs a JSON object, found list"),
    ],
)
def test_a_wrong_row_is_named_by_file_and_line(row: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wmdp-bio.jsonl"
    file.write_text(json.dumps(ROWS[0]) + "\n\n" + json.dumps(row) + "\n")
    with pytest.raises(UserError) as refused:
        wmdp.load(suite(tmp_path, "bio"))
    (line,) = refused.value.messages
    assert line.startswith(f"suite.wmdp_source: {file} {message}")


def test_a_wrong_entry_of_an_array(tmp_path: Path) -> None:
    file = tmp_path / "bio_questions.json"
    file.write_text(json.dumps([ROWS[0], "text"]))
    with pytest.raises(UserError, match="entry 2 needs an object with question, choices and answer; found str"):
        wmdp.load(suite(tmp_path, "bio"))
    file.write_text('[{"question": 1},\n oops]')
    with pytest.raises(UserError, match=r"bio_questions\.json line 2 is not valid JSON"):
        wmdp.load(suite(tmp_path, "bio"))
    file.write_text("[]")
    with pytest.raises(UserError, match="the set wmdp-bio is empty"):
        wmdp.load(suite(tmp_path, "bio"))


def test_missing_files_are_named_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        wmdp.load(suite(tmp_path, "bio", "cyber"))
    assert refused.value.messages == [
        f"suite.wmdp_source: needs one of {name}_questions.json, wmdp-{name}.jsonl, wmdp-{name}.json, found none in "
        f"{tmp_path}"
        for name in ("bio", "cyber")
    ]
    with pytest.raises(UserError) as refused:
        wmdp.load(suite("nowhere", "bio", "cyber"))
    assert refused.value.messages == [
        "suite.wmdp_source: needs hub or a folder with WMDP's files; found 'nowhere', which is no folder"
    ]


def test_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "cached_revision", lambda *_: None)
    hub.require.cache_clear()
    with pytest.raises(UserError) as refused:
        wmdp.load(suite("hub", "bio", "cyber"))
    assert refused.value.messages == [
        "suite.wmdp_source: 'cais/wmdp' is not in the local hub cache, and HF_HUB_OFFLINE is set"
    ]
