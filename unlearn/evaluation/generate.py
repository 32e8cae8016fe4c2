"""The generation pass: what the model answers of its own accord, greedily."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from unlearn.config import FormatConfig
from unlearn.console import progress
from unlearn.data.encode import Row


@torch.no_grad()
def generate(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    *,
    end_id: int,
    pad_id: int,
    format: FormatConfig,
    max_new_tokens: int,
    token_budget: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[None]],
    title: str = "generating",
) -> list[tuple[str, bool]]:
    """Greedy continuation of each row's prompt: (text cut at the first stop string, whether the length limit ended
    it).
    """
    from transformers import GenerationConfig

    settings = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=end_id, pad_token_id=pad_id, use_cache=True
    )
    texts: list[tuple[str, bool]] = [("", False)] * len(rows)
    if hasattr(model, "get_base_model"):
        # peft's own `generate` copies the wrapper's generation config, hidden below, over the model's for good.
        model = model.get_base_model()
    with progress() as bars, _without_defaults(model):
        bar = bars.add_task(title, total=len(rows), note="")
        for places in _batches(rows, max_new_tokens, token_budget):
            prompts = [rows[index].input_ids[: rows[index].n_prompt] for index in places]
            width = max(map(len, prompts))
            ids_BT = torch.tensor([[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts])
            mask_BT = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            with autocast():
                out_BT = model.generate(
                    input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device), generation_config=settings
                )
            for index, new in zip(places, out_BT[:, width:].tolist(), strict=True):
                texts[index] = _text(tokenizer, new, end_id, format, max_new_tokens)
            bars.update(bar, advance=len(places))
    return texts


@contextmanager
def _without_defaults(model: Any) -> Iterator[None]:
    """Hide the generation config that came with the weights: the library fills what ours leaves open from it."""
    from transformers import GenerationConfig

    published, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = published


def _batches(rows: Sequence[Row], max_new_tokens: int, token_budget: int) -> list[list[int]]:
    """Rows of like prompt length together, at most `token_budget` tokens with what may be generated."""
    order = sorted(range(len(rows)), key=lambda index: -rows[index].n_prompt)
    batches, start = [], 0
    while start < len(order):
        size = max(1, token_budget // (rows[order[start]].n_prompt + max_new_tokens))
        batches.append(order[start : start + size])
        start += size
    return batches


def _text(tokenizer: Any, new: list[int], end_id: int, format: FormatConfig, max_new_tokens: int) -> tuple[str, bool]:
    """Cut at the end marker, then at the first stop string, so that nothing around the answer is scored."""
    hit_limit = end_id not in new and len(new) >= max_new_tokens
    if end_id in new:
        new = new[: new.index(end_id)]
    text = tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    text = text.lstrip().removeprefix(format.separator.strip()).lstrip()
    cuts = [place for mark in format.stop if (place := text.find(mark)) >= 0]
    return (text[: min(cuts)].rstrip(), False) if cuts else (text.rstrip(), hit_limit)
