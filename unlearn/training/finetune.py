"""Plain supervised training: how target and reference come to be where nobody has published them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from unlearn.config import FinetuneConfig
from unlearn.console import progress
from unlearn.data.batches import collate, epoch_batches
from unlearn.data.encode import Row, answer_tokens
from unlearn.errors import Diverged
from unlearn.objectives.logprobs import AnswerModel
from unlearn.schedulers.schedules import Linear
from unlearn.training.step import seeded


def finetune(
    model: Any,
    rows: Sequence[Row],
    config: FinetuneConfig,
    seed: int,
    device: torch.device,
    pad_id: int,
    title: str,
    micro_batch_size: int | None = None,
    lr_key: str = "model.finetune.lr",
) -> float:
    """Train `model` in place on the answers of `rows`; returns the mean NLL per answer token of the last epoch.

    Each step's loss is divided by its true count of answer tokens, however it is cut into micro-batches. Order of rows
    and dropout depend on the seed alone. A run that diverges names `lr_key`.
    """
    micro = micro_batch_size or config.batch_size
    model.to(device).train()
    answer_model = AnswerModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    schedule = Linear(warmup=config.warmup)
    steps_per_epoch = math.ceil(len(rows) / config.batch_size)
    total = config.epochs * steps_per_epoch
    batches: list[list[int]] = []
    nll_sum, n_tokens = 0.0, 0
    with seeded(seed, device), progress() as bars:
        bar = bars.add_task(title, total=total, note="")
        for step in range(total):
            epoch, part = divmod(step, steps_per_epoch)
            if part == 0:
                batches, nll_sum, n_tokens = epoch_batches(rows, config.batch_size, seed, epoch), 0.0, 0
            chosen = [rows[index] for index in batches[part]]
            step_tokens = answer_tokens(chosen)
            for group in optimizer.param_groups:
                group["lr"] = config.lr * schedule.factor(step, total)
            optimizer.zero_grad(set_to_none=True)
            value = 0.0
            for first in range(0, len(chosen), micro):
                batch = collate(chosen[first : first + micro], pad_id).to(device)
                loss = -answer_model(batch).logp_N.sum() / step_tokens
                loss.backward()
                value += loss.item()
            if not math.isfinite(value):
                raise Diverged(f"{title}: the loss is {value} at step {step + 1} of {total}; lower {lr_key}")
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            nll_sum, n_tokens = nll_sum + value * step_tokens, n_tokens + step_tokens
            bars.update(bar, advance=1, note=f"loss {value:.3f}")
    model.eval()
    return nll_sum / n_tokens
