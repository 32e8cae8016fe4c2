"""Plain supervised training: how target and reference come to be where nobody has published them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from unlearn.config import FinetuneConfig
from unlearn.console import progress
from unlearn.data.batches import collate, epoch_batches
from unlearn.data.encode import Row
from unlearn.errors import Diverged
from unlearn.objectives.logprobs import AnswerModel
from unlearn.schedulers.schedules import Linear


def finetune(
    model: Any, rows: Sequence[Row], config: FinetuneConfig, seed: int, device: torch.device, pad_id: int, title: str
) -> float:
    """Train `model` in place on the answers of `rows`; returns the mean NLL per answer token of the last epoch.

    Each step's loss is divided by its true count of answer tokens. The order of rows depends on the seed alone.
    """
    model.to(device).train()
    answer_model = AnswerModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    schedule = Linear(warmup=config.warmup)
    steps_per_epoch = math.ceil(len(rows) / config.batch_size)
    total = config.epochs * steps_per_epoch
    batches: list[list[int]] = []
    nll_sum, n_tokens = 0.0, 0
    with progress() as bars:
        bar = bars.add_task(title, total=total, note="")
        for step in range(total):
            epoch, part = divmod(step, steps_per_epoch)
            if part == 0:
                batches, nll_sum, n_tokens = epoch_batches(rows, config.batch_size, seed, epoch), 0.0, 0
            batch = collate([rows[index] for index in batches[part]], pad_id).to(device)
            for group in optimizer.param_groups:
                group["lr"] = config.lr * schedule.factor(step, total)
            optimizer.zero_grad(set_to_none=True)
            loss = -answer_model(batch).logp_N.mean()
            loss.backward()
            if not math.isfinite(value := loss.item()):
                raise Diverged(f"{title}: the loss is {value} at step {step + 1} of {total}; lower model.finetune.lr")
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            nll_sum, n_tokens = nll_sum + value * batch.n_tokens, n_tokens + batch.n_tokens
            bars.update(bar, advance=1, note=f"loss {value:.3f}")
    model.eval()
    return nll_sum / n_tokens
