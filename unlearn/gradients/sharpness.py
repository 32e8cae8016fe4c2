"""Sharpness-aware forgetting: the forget gradient is taken at the worst point near the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unlearn import ranks
from unlearn.gradients.collect import Backward, Pass, global_norm


def sharp(forget: Backward, parameters: Sequence[Tensor], rho: float) -> Backward:
    """The forget objective's gradient at `theta + rho g / |g|` in place of the one at theta (SAM, arXiv 2502.05374).

    rho is an L2 distance over all trained parameters (published: 0.01); g is the gradient of the objective itself,
    whatever the scale. The Pass is that of theta. A gradient that is zero or not finite moves nothing. Two passes; the
    weights and one gradient are held once more until the parameters are back, to the bit.
    """

    def backward(scale: float) -> Pass:
        # Parked, so that `.grad` can be read as the gradient of this objective alone.
        others = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        here = forget(1.0)
        ranks.reduce_grads(parameters)
        start = _climb(parameters, rho)
        for parameter, grad in zip(parameters, others, strict=True):
            parameter.grad = grad
        try:
            forget(scale)
        finally:
            _restore(parameters, start)
        return here

    return backward


@torch.no_grad()
def _climb(parameters: Sequence[Tensor], rho: float) -> list[Tensor]:
    """Move the parameters along `.grad` by the distance rho: copies of where they were, none if they stay."""
    norm = global_norm(parameter.grad for parameter in parameters)
    if norm == 0 or not math.isfinite(norm):
        return []
    start = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.add_(parameter.grad, alpha=rho / norm)
    return start


@torch.no_grad()
def _restore(parameters: Sequence[Tensor], start: list[Tensor]) -> None:
    if start:
        for parameter, value in zip(parameters, start, strict=True):
            parameter.copy_(value)
