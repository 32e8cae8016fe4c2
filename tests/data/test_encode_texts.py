"""Texts in windows, and prompts that come with the benchmark: borders, blanks, room and truncation."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from transformers import AutoTokenizer, GPT2TokenizerFast

from tests.conftest import SHARED, needs_shared
from tests.data.test_muse import config
from unlearn.config import FormatConfig, TinyConfig
from unlearn.data import muse
from unlearn.data.encode import Encoder, Row, squeeze
from unlearn.data.example import Example
from unlearn.models.load import tiny_tokenizer
from unlearn.plan import requests_in_rows

FORMAT = FormatConfig(prompt="Question: {question}\nAnswer:", separator=" ")


@cache
def tokenizer(name: str) -> Any:
    if name == "tiny":
        return tiny_tokenizer(TinyConfig(), muse.load(config()))
    folder = SHARED / "tokenizers" / name
    return GPT2TokenizerFast.from_pretrained(folder) if name == "gpt2" else AutoTokenizer.from_pretrained(folder)


def encoder(name: str = "tiny", max_length: int = 512) -> Encoder:
    return Encoder(tokenizer(name), FORMAT, max_length)


def ids(name: str, text: str) -> list[int]:
    return list(tokenizer(name)(text, add_special_tokens=False)["input_ids"])


TOKENIZERS = ["tiny", pytest.param("gpt2", marks=needs_shared), pytest.param("llama2", marks=needs_shared)]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("size", [16, 57, 512])
def test_windows_cover_a_text(name: str, size: int) -> None:
    """Windows are as long as the model takes; in each stands one BOS, where the tokenizer has one, and no EOS."""
    text = " ".join(example.answer for example in muse.load(config()).sets["forget"][:3])
    texts = [Example("t", "", text, prompt=""), Example("u", "Who?", "Me."), Example("v", "", text[:300], prompt="")]
    coder = encoder(name, size)
    rows = coder.answers(texts)
    windows = [row for row in rows if row.id.startswith("t#")]
    assert [row.id for row in windows] == [f"t#{k}" for k in range(len(windows))]
    head = [] if name == "gpt2" else [tokenizer(name).bos_token_id]
    whole = ids(name, text)
    assert [id for row in windows for id in row.input_ids[len(head) :]] == whole[: sum(map(content(head), windows))]
    # A last token alone would have nothing to be predicted from.
    assert len(whole) - sum(map(content(head), windows)) == (len(whole) % (size - len(head)) == 1)
    for row in windows:
        assert list(row.input_ids[: len(head)]) == head
        assert row.n_prompt == 1
        assert row.n_content == row.n_answer == len(row.input_ids) - 1
        assert not row.truncated
    assert {len(row.input_ids) for row in windows[:-1]} <= {size}
    # Texts and questions in their order.
    assert [row.id.split("#")[0] for row in rows] == sorted(row.id.split("#")[0] for row in rows)


def content(head: list[int]) -> Any:
    return lambda row: len(row.input_ids) - len(head)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_text_is_scored_in_its_first_window(name: str) -> None:
    [example] = muse.load(config(limit={"forget": 1})).evaluated["forget"].examples
    coder = encoder(name, 40)
    [scored] = coder.variants([example])
    assert scored.truncated
    assert scored.input_ids == coder.answers([example])[0].input_ids
    [whole] = encoder(name, 512).variants([example])
    assert not whole.truncated
    assert squeeze(tokenizer(name).decode(whole.input_ids[1:], clean_up_tokenization_spaces=False)) in squeeze(
        example.answer
    )


def test_a_text_of_several_windows_is_one_text_of_its_request() -> None:
    """24 texts a request; at 64 tokens each has three or four windows."""
    benchmark = muse.load(config(split="sust"))
    rows = encoder(max_length=64).answers(benchmark.sets["forget"])
    requests = requests_in_rows(benchmark, rows)
    assert sum(requests) == len(rows) > 2 * 96
    start = 0
    for k, size in enumerate(requests, 1):
        owners = {row.id.split("#")[0] for row in rows[start : start + size]}
        assert owners == {f"sust/forget_{k}/{n}" for n in range(24)}
        start += size
    assert requests_in_rows(benchmark, encoder().answers(benchmark.sets["forget"])) == (24, 24, 24, 24)


def test_all_embedded_prompts_leave_room_for_what_is_generated() -> None:
    for scored in muse.load(config()).evaluated.values():
        for row in encoder().variants(scored.examples, scored.max_new_tokens or 0):
            assert not row.truncated
            assert row.n_prompt + (scored.max_new_tokens or 0) <= 512


# Published prompts


def published(name: str, room: int, max_length: int = 2048) -> tuple[list[Example], list[Row]]:
    examples = list(muse.load(config(str(SHARED / "muse"), corpus="privleak")).evaluated[name].examples)
    return examples, encoder("llama2", max_length).variants(examples, room)


@needs_shared
@pytest.mark.parametrize(("name", "room"), [("forget_knowmem", 32), ("retain_knowmem", 32), ("forget_verbmem", 128)])
def test_llama_2_sees_the_published_prompt(name: str, room: int) -> None:
    """The prompt's tokens are those of the tokenizer itself, BOS included; no end marker behind the answer."""
    own = tokenizer("llama2")
    for example, row in zip(*published(name, room), strict=True):
        assert not row.truncated
        assert list(row.input_ids[: row.n_prompt]) == own(example.prompt)["input_ids"]
        assert row.input_ids[-1] != own.eos_token_id
        assert squeeze(own.decode(row.input_ids[row.n_prompt :], clean_up_tokenization_spaces=False)) == squeeze(
            example.answer
        )


@needs_shared
def test_a_continuation_begins_with_the_blank_that_neither_side_has() -> None:
    examples, rows = published("forget_verbmem", 128)
    blank = 0
    for example, row in zip(examples, rows, strict=True):
        apart = str(example.prompt)[-1].isspace() or example.answer[0].isspace()
        begins = tokenizer("llama2").convert_ids_to_tokens(row.input_ids[row.n_prompt])
        assert begins.startswith("▁") == (not apart or example.answer[0] == " ")
        blank += not apart
    assert blank > 50


@needs_shared
def test_a_prompt_is_cut_from_the_left_and_counted() -> None:
    """At 512 tokens 128 stay free behind the prompt; its end stays."""
    own = tokenizer("llama2")
    examples, rows = published("forget_verbmem", 128, max_length=512)
    for example, row in zip(examples, rows, strict=True):
        prompt = own(example.prompt)["input_ids"]
        labels = row.n_answer
        assert len(row.input_ids) <= 512
        assert row.n_prompt <= 512 - max(128, labels) or row.n_prompt == 2
        assert row.input_ids[0] == own.bos_token_id
        assert list(row.input_ids[1 : row.n_prompt]) == prompt[len(prompt) - row.n_prompt + 1 :]
        assert row.truncated == (len(prompt) + max(128, labels) > 512)
    assert sum(row.truncated for row in rows) > 90
