"""Greedy generation: the same text in any batch, whatever defaults came with the weights, cut where the answer ends."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from tests.helpers import tiny_model, tiny_setup
from unlearn.config import FormatConfig
from unlearn.evaluation.generate import _text, generate


def texts(model: Any, n: int, token_budget: int) -> list[tuple[str, bool]]:
    _, benchmark, tokenizer, encoder = tiny_setup()
    return generate(
        model,
        tokenizer,
        encoder.answers(benchmark.sets["retain"][:n]),
        end_id=encoder.end,
        pad_id=encoder.pad_id,
        format=FormatConfig(),
        max_new_tokens=6,
        token_budget=token_budget,
        device=torch.device("cpu"),
        autocast=nullcontext,
    )


def test_one_at_a_time_and_together_give_the_plain_argmax() -> None:
    model = tiny_model()
    _, benchmark, tokenizer, encoder = tiny_setup()
    by_hand = []
    for row in encoder.answers(benchmark.sets["retain"][:5]):
        ids = list(row.input_ids[: row.n_prompt])
        new: list[int] = []
        while len(new) < 6 and encoder.end not in new:
            with torch.no_grad():
                new.append(int(model(torch.tensor([ids + new])).logits[0, -1].argmax()))
        by_hand.append(_text(tokenizer, new, encoder.end, FormatConfig(), 6))
    assert texts(model, 5, token_budget=10_000) == texts(model, 5, token_budget=1) == by_hand


def test_defaults_that_came_with_the_weights_are_hidden_and_put_back() -> None:
    plain = texts(tiny_model(), 3, 10_000)
    model = tiny_model()
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.no_repeat_ngram_size = 1
    assert texts(model, 3, 10_000) == plain
    assert model.generation_config.repetition_penalty == 5.0


@pytest.mark.parametrize(
    ("answer", "format", "text", "hit_limit"),
    [
        ("Hina Ameen.</s>", FormatConfig(), "Hina Ameen.", False),
        ("Hina Ameen and", FormatConfig(), "Hina Ameen and", True),
        ("Hina Ameen\n\nQuestion: Where?", FormatConfig(stop=["\n\n"]), "Hina Ameen", False),
        ("Answer: Hina Ameen", FormatConfig(separator="Answer: "), "Hina Ameen", True),
        ("\nHina Ameen\nNext", FormatConfig(stop=["\n"]), "Hina Ameen", False),
    ],
)
def test_where_an_answer_ends(answer: str, format: FormatConfig, text: str, hit_limit: bool) -> None:
    _, _, tokenizer, encoder = tiny_setup()
    new = tokenizer(answer, add_special_tokens=False).input_ids
    assert _text(tokenizer, new, encoder.end, format, len(new)) == (text, hit_limit)


def test_an_adapter_keeps_the_generation_config_that_came_with_the_weights() -> None:
    from unlearn.models.adapter import LoRA, attach, merged

    model = tiny_model()
    plain = texts(model, 3, 10_000)
    model.generation_config.repetition_penalty = 5.0
    adapted = attach(model, LoRA(), 0)
    assert texts(adapted, 3, 10_000) == plain
    assert merged(adapted).generation_config.repetition_penalty == 5.0
