"""One objective over one optimizer step: the sum of its terms over all micro-batches of all processes, divided once by
their true count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from unlearn import ranks
from unlearn.data.batches import Batch
from unlearn.data.encode import Row, answer_tokens
from unlearn.gradients.collect import Pass
from unlearn.models.adapter import checkpointing
from unlearn.objectives.logprobs import AnswerModel, Answers
from unlearn.objectives.objective import Objective

Autocast = Callable[[], AbstractContextManager[None]]


def autocast_for(precision: str, device: torch.device) -> Autocast:
    """The context of a forward pass: bf16 compute over fp32 weights for bf16_mixed, nothing otherwise."""
    if precision == "bf16_mixed":
        return lambda: torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout within depends on the seed alone; the global random state is what it was, afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


Complete = Callable[[Objective, Batch, int], Answers]
"""The policy's answers to a batch, with everything else that the objective needs at this optimizer step."""


def backward(
    complete: Complete, objective: Objective, batches: Sequence[Batch], autocast: Autocast, step: int, scale: float
) -> Pass:
    """Add `scale` times the gradient of the objective's mean over all its units to `.grad`.

    The mean is over the batches of all processes, and so is the Pass; the gradient is this process's share of it, which
    is still to be summed over them.
    """
    n_tokens, n_rows, n_alternate = ranks.total(
        [
            sum(batch.n_tokens for batch in batches),
            sum(len(batch) for batch in batches),
            sum(batch.alternate.n_tokens for batch in batches if batch.alternate is not None),
        ]
    )
    units = {"token": n_tokens, "sequence": n_rows, "alternate_token": n_alternate}
    loss, nll, prob = 0.0, 0.0, 0.0
    for batch in batches:
        with autocast():
            answers = complete(objective, batch, step)
            parts = objective.parts(answers)
        mean: Tensor = sum((terms.float().sum() / units[unit] for unit, terms in parts.items()), torch.zeros(()))
        (mean * scale).backward()
        loss += mean.item()
        logp_N = answers.logp_N.detach()
        nll -= logp_N.cpu().double().sum().item()
        prob += (answers.per_row(logp_N) / answers.length_B).exp().sum().item()
        # Their logits would stay through the next micro-batch's forward pass.
        del answers, parts, mean
    loss, nll, prob = ranks.total([loss, nll, prob])
    return Pass(loss, nll / n_tokens, prob / n_rows)


@torch.no_grad()
def mean_nll(model: AnswerModel, batches: Sequence[Batch], autocast: Autocast) -> float:
    """Cross-entropy per answer token over the batches of all processes, in nats, with dropout off."""
    was_training = model.model.training
    model.model.eval()
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        with autocast():
            total -= model(batch).logp_N.cpu().double().sum()
    model.model.train(was_training)
    nll, n_tokens = ranks.total([total.item(), sum(batch.n_tokens for batch in batches)])
    return nll / n_tokens


@torch.no_grad()
def sequence_logp(model: AnswerModel, batches: Sequence[Batch], autocast: Autocast) -> dict[str, float]:
    """Summed log-probability of each row's answer, by row id."""
    logp: dict[str, float] = {}
    for batch in batches:
        with autocast():
            answers = model(batch)
        logp |= dict(zip(batch.ids, answers.per_row(answers.logp_N).tolist(), strict=True))
    return logp


def known(model: AnswerModel, rows: Sequence[Row], batches: Sequence[Batch], autocast: Autocast) -> tuple[float, float]:
    """Mean NLL per answer token of `rows`, which `batches` hold, and mean over them of the answer's probability."""
    logp = sequence_logp(model, batches, autocast)
    nll = -sum(logp.values()) / answer_tokens(rows)
    return nll, sum(math.exp(logp[row.id] / row.n_answer) for row in rows) / len(rows)


@contextmanager
def aside(model: Any, device: torch.device, checkpoints: bool) -> Iterator[None]:
    """Leave training for an evaluation in eval mode, and come back as if nothing had been.

    checkpoints  whether the model trains with gradient checkpointing
    """
    was_training = model.training
    if checkpoints:
        checkpointing(model, on=False)
    model.eval()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    model.train(was_training)
    if checkpoints:
        checkpointing(model, on=True)


def has_dropout(model: Any) -> bool:
    """Whether a forward pass in training mode differs from one in eval mode."""
    modules = any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    return modules or getattr(model.config, "attention_dropout", 0) > 0
