"""The gradients of the two objectives, kept apart as long as the rule needs them apart, combined into `.grad`.

A rule with fixed weights accumulates both weighted losses straight into `.grad`: no second copy. A rule that looks at
the gradients keeps exactly one more copy, that of the forget objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unlearn.gradients.combine import CombineRule, Gram, Losses, Weights


@dataclass(frozen=True)
class Pass:
    """One objective's backward pass over the whole optimizer step.

    loss  the objective's value
    nll   cross-entropy of the answers, nats per token
    prob  mean over rows of the answer's probability, exp of its mean log-probability per token
    """

    loss: float
    nll: float
    prob: float


Backward = Callable[[float], Pass]
"""Adds `scale` times the gradient of one objective to every parameter's `.grad`."""


@dataclass(frozen=True)
class Combined:
    """What one step's gradients were; norms of the two parts are None for rules that never saw them apart."""

    retain: Pass | None
    forget: Pass | None
    gram: Gram | None
    weights: Weights
    norm: float

    @property
    def finite(self) -> bool:
        values = [self.norm, *(part.loss for part in (self.retain, self.forget) if part is not None)]
        return all(math.isfinite(value) for value in values)


def combined_gradient(
    parameters: Sequence[Tensor], rule: CombineRule, retain: Backward | None, forget: Backward | None
) -> Combined:
    """Leave `w_R g_R + w_F g_F` in `.grad` of every parameter; an objective that is None has gradient zero."""
    for parameter in parameters:
        parameter.grad = None
    fixed = rule.fixed
    if fixed is not None:
        # A weight of 0 would run a backward pass for nothing.
        forget_pass = forget(fixed.forget) if forget is not None and fixed.forget > 0 else None
        retain_pass = retain(fixed.retain) if retain is not None and fixed.retain > 0 else None
        return Combined(retain_pass, forget_pass, None, fixed, _norm(parameters))

    forget_pass = forget(1.0) if forget is not None else None
    # Taken, not copied: the next backward pass allocates new `.grad` tensors. A wrapper that reuses its gradient
    # buffers between passes (DDP with gradient_as_bucket_view) must hand out clones here.
    forget_grads = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    retain_pass = retain(1.0) if retain is not None else None
    gram = gram_matrix([parameter.grad for parameter in parameters], forget_grads)
    losses = Losses(retain_pass.loss if retain_pass else 0.0, forget_pass.loss if forget_pass else 0.0)
    weights = rule.weights(gram, losses)
    for parameter, forget_grad in zip(parameters, forget_grads, strict=True):
        if parameter.grad is not None:
            parameter.grad.mul_(weights.retain)
        if forget_grad is not None:
            if parameter.grad is None:
                parameter.grad = forget_grad.mul_(weights.forget)
            else:
                parameter.grad.add_(forget_grad, alpha=weights.forget)
    return Combined(retain_pass, forget_pass, gram, weights, _norm(parameters))


def gram_matrix(retain: Sequence[Tensor | None], forget: Sequence[Tensor | None]) -> Gram:
    """Inner products over all parameters, in fp32 per tensor and fp64 over tensors; a missing gradient is zero."""
    return Gram(_dot(retain, retain), _dot(retain, forget), _dot(forget, forget))


def _dot(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> float:
    products = [
        torch.dot(a.flatten().float(), b.flatten().float())
        for a, b in zip(left, right, strict=True)
        if a is not None and b is not None
    ]
    return torch.stack(products).cpu().double().sum().item() if products else 0.0


def _norm(parameters: Sequence[Tensor]) -> float:
    grads = [parameter.grad for parameter in parameters]
    return math.sqrt(value) if (value := _dot(grads, grads)) >= 0 else math.nan
