"""Encoding: where the answer begins, what is labelled, and that published token counts come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AddedToken, AutoTokenizer, GPT2TokenizerFast, PreTrainedTokenizerFast

from tests.conftest import SHARED, needs_shared
from tests.helpers import compose_run, data_config
from unlearn.config import FormatConfig, ModelConfig
from unlearn.data import tofu
from unlearn.data.encode import Encoder, Row
from unlearn.data.example import Example
from unlearn.data.jsonl import read_json_lines
from unlearn.errors import UserError
from unlearn.models.load import tiny_tokenizer

PLAIN = FormatConfig(prompt="Question: {question}\nAnswer:", separator=" ")
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer(ModelConfig().tiny, tofu.load(data_config()))


@pytest.fixture
def chat(tokenizer: Any) -> Any:
    """The same tokenizer with a template that puts a newline behind its end-of-turn token, as Qwen's does."""
    import copy

    with_template = copy.deepcopy(tokenizer)
    with_template.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    with_template.chat_template = CHAT
    return with_template


def row_of(encoder: Encoder, question: str, answer: str) -> Row:
    return encoder.answers([Example("x/0", question, answer)])[0]


def test_a_plain_row_is_one_bos_prompt_answer_and_one_labelled_end(tokenizer: Any) -> None:
    row = row_of(Encoder(tokenizer, PLAIN, 512), "Who?", "Nobody.")
    assert tokenizer.decode(row.input_ids) == "<s>Question: Who?\nAnswer: Nobody.</s>"
    assert tokenizer.decode(row.input_ids[row.n_prompt :]) == " Nobody.</s>"
    assert row.n_content == row.n_answer - 1
    assert not row.truncated


def test_bos_is_added_once_although_tokenizer_and_template_both_would(chat: Any) -> None:
    row = row_of(Encoder(chat, FormatConfig(), 512), "Who?", "Nobody.")
    assert row.input_ids.count(chat.bos_token_id) == 1
    assert row.input_ids[0] == chat.bos_token_id


def test_a_model_whose_bos_is_its_eos_gets_none(tokenizer: Any) -> None:
    import copy

    gpt2_like = copy.deepcopy(tokenizer)
    gpt2_like.bos_token = gpt2_like.eos_token
    row = row_of(Encoder(gpt2_like, PLAIN, 512), "Who?", "Nobody.")
    assert row.input_ids.count(gpt2_like.eos_token_id) == 1
    assert row.input_ids[-1] == gpt2_like.eos_token_id


def test_what_a_template_puts_behind_the_end_marker_is_not_in_the_row(chat: Any) -> None:
    row = row_of(Encoder(chat, FormatConfig(system="Be brief."), 512), "Who?", "Nobody.")
    assert chat.decode(row.input_ids[row.n_prompt :]) == "Nobody.<|im_end|>"
    assert chat.decode(row.input_ids[: row.n_prompt]).endswith("<|im_start|>assistant\n")
    assert "Be brief." in chat.decode(row.input_ids)


def test_an_end_marker_that_is_special_but_has_no_name(tokenizer: Any) -> None:
    """Phi-3's template closes an answer with <|end|>, which is in no list of named special tokens."""
    import copy

    phi3 = copy.deepcopy(tokenizer)
    phi3.add_tokens([AddedToken("<|end|>", special=True)])
    phi3.chat_template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<|end|>{% endfor %}{{ eos_token }}"
    assert Encoder(phi3, FormatConfig(), 512).end == phi3.convert_tokens_to_ids("<|end|>")


def test_a_cut_through_a_letter_of_several_tokens(tokenizer: Any) -> None:
    rows = [
        row_of(Encoder(tokenizer, PLAIN, length), "Who?", "彼の名前は誰も知らない。" * 9) for length in range(40, 46)
    ]
    assert all(row.truncated and len(row.input_ids) <= 45 for row in rows)


def test_pad_equal_to_eos_leaves_the_end_labelled(tokenizer: Any) -> None:
    import copy

    from unlearn.data.batches import collate

    padded = copy.deepcopy(tokenizer)
    padded.pad_token = padded.eos_token
    encoder = Encoder(padded, PLAIN, 512)
    rows = encoder.answers([Example("x/0", "Who?", "Nobody."), Example("x/1", "Who was it, then?", "Nobody at all.")])
    batch = collate(rows, encoder.pad_id)
    ends = [(batch.labels_N[batch.row_N == index] == padded.eos_token_id).sum().item() for index in (0, 1)]
    assert ends == [1, 1]
    assert batch.attention_mask_BT.sum(1).tolist() == [len(row.input_ids) for row in rows]


@pytest.mark.parametrize("template", ["plain", "chat"])
def test_truncation_takes_the_prompt_first_and_never_the_whole_answer(tokenizer: Any, chat: Any, template: str) -> None:
    source, format = (tokenizer, PLAIN) if template == "plain" else (chat, FormatConfig())
    long_prompt = row_of(Encoder(source, format, 64), "Who was it? " * 60, "Nobody.")
    assert len(long_prompt.input_ids) == 64
    assert long_prompt.truncated
    assert long_prompt.input_ids[0] == source.bos_token_id
    assert source.decode(long_prompt.input_ids[long_prompt.n_prompt :]).strip().startswith("Nobody.")
    long_answer = row_of(Encoder(source, format, 64), "Who?", "Nobody at all. " * 80)
    assert len(long_answer.input_ids) == 64
    assert long_answer.n_content == long_answer.n_answer == 62, "no end marker: the answer goes on"


def test_a_row_whose_labels_are_not_the_answer_is_named(tokenizer: Any) -> None:
    class Lossy:
        """Drops every letter "N", as a normaliser might."""

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __call__(self, texts: list[str], **options: Any) -> Any:
            return tokenizer([text.replace("N", "") for text in texts], **options)

    with pytest.raises(UserError, match=r"row x/0 \(answer\).*'obody\.'.*'Nobody\.'"):
        row_of(Encoder(Lossy(), PLAIN, 512), "Who?", "Nobody.")


def test_an_empty_answer_is_named(tokenizer: Any) -> None:
    with pytest.raises(UserError, match="row x/0 .* empty prompt or answer"):
        row_of(Encoder(tokenizer, FormatConfig(prompt="{question}"), 512), "Who?", "")


def test_no_template_at_all_is_refused(tokenizer: Any) -> None:
    with pytest.raises(UserError, match=r"model\.format\.prompt"):
        Encoder(tokenizer, FormatConfig(), 512)


LOGGED = {
    "eval_log.json": "retain_perturbed",
    "eval_real_author_wo_options.json": "real_authors_perturbed",
    "eval_real_world_wo_options.json": "world_facts_perturbed",
    "eval_log_forget.json": "forget10_perturbed",
}


@needs_shared
@pytest.mark.parametrize(
    ("tokenizer_name", "preset", "log"),
    [
        ("llama2", "llama-2-7b-chat", "locuslab_tofu/ft_epoch5_lr1e-05_llama2-7b_full_wd0.01"),
        ("gpt2", "phi-1.5", "locuslab_tofu/ft_epoch5_lr2e-05_phi_full_wd0.01"),
    ],
)
def test_every_published_token_count_reproduces(tokenizer_name: str, preset: str, log: str) -> None:
    """Published count = tokens of the whole text - tokens of the prompt + EOS, for all 5,068 answers of each log.

    Ours is the same number, plus the one token that straddles the border in the whole text (`]"` in Llama-2), which the
    published code counts to the prompt.
    """
    encoder = Encoder(_published_tokenizer(tokenizer_name), compose_run(f"model={preset}").model.format, 512)
    published = json.loads((SHARED / "tofu_eval_logs" / log / "eval_log_aggregated.json").read_text())
    compared, straddling = 0, 0
    for key, file in LOGGED.items():
        examples = tofu.examples_of(file, read_json_lines(SHARED / "tofu" / f"{file}.json"))
        for row in encoder.variants(examples, paraphrased_questions=False):
            count = _logged_count(published[key], row, has_paraphrase=examples[0].paraphrased_answer is not None)
            if count is None:
                continue
            prompt_ids = _ids(encoder, row.prompt)
            whole_ids = _ids(encoder, row.prompt + encoder.format.separator + row.answer)
            assert len(whole_ids) - len(prompt_ids) + 1 == count, (row.id, row.kind)
            straddles = whole_ids[: len(prompt_ids)] != prompt_ids
            assert row.n_answer == count + straddles, (row.id, row.kind)
            compared, straddling = compared + 1, straddling + straddles
    assert compared == 300 * 7 + 100 * 4 + 117 * 4 + 300 * 7
    assert straddling == {"llama2": 73, "gpt2": 0}[tokenizer_name]


def _published_tokenizer(name: str) -> Any:
    folder = SHARED / "tokenizers" / name
    return GPT2TokenizerFast.from_pretrained(folder) if name == "gpt2" else AutoTokenizer.from_pretrained(folder)


def _ids(encoder: Encoder, text: str) -> list[int]:
    return encoder.tokenizer(text, add_special_tokens=False)["input_ids"]


def _logged_count(log: Any, row: Row, has_paraphrase: bool) -> int | None:
    """The published token count of a row, or None where the log stopped before it."""
    index = row.id.split("/")[1]
    if index not in log["num_token_gt"]:
        return None
    if row.kind == "answer":
        return log["num_token_gt"][index]
    if row.kind == "paraphrase":
        return log["num_token_paraphrased"][index]
    perturbed = log["num_token_perturb"][index]
    return perturbed[int(row.kind.removeprefix("perturbed_"))]


def test_an_introduction_in_front_of_the_answer_is_trained_on_but_is_no_content(tokenizer: Any) -> None:
    row = row_of(
        Encoder(tokenizer, FormatConfig(prompt="Question: {question}\n", separator="Answer: "), 512), "Who?", "Me."
    )
    assert tokenizer.decode(row.input_ids[row.n_prompt :]) == "Answer: Me.</s>"
    assert tokenizer.decode(row.input_ids[row.n_prompt + row.n_lead : row.n_prompt + row.n_content]) == " Me."


@needs_shared
def test_all_of_tofu_encodes_with_a_small_pretrained_tokenizer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHARED / "models" / "stories260K")
    encoder = Encoder(tokenizer, PLAIN, 512)
    rows = encoder.answers(tofu.examples_of("full", read_json_lines(Path(SHARED / "tofu" / "full.json"))))
    assert len(rows) == 4000
    assert all(row.input_ids[0] == 1 and row.input_ids[-1] == 2 for row in rows)
