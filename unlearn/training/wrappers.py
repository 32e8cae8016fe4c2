"""Optimizers around optimizers: a state for each of the two gradients, and a mask on what may move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from unlearn.training.optimizer import OptimizerConfig

if TYPE_CHECKING:
    from unlearn.config import MethodConfig


class Stepper(Protocol):
    """What the loop and the probe ask of an optimizer."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...

    def step(self) -> Any: ...


def build(optimizer: OptimizerConfig, method: MethodConfig, parameters: Sequence[Tensor]) -> Stepper:
    """The optimizer with what the method puts around it; what does not go together has been refused before."""
    if method.separate_states:
        # Weight decay is no gradient's share: it is applied once, with the retain step.
        forget = replace(optimizer, weight_decay=0.0).build(parameters)
        return SeparateStates(parameters, optimizer.build(parameters), forget)
    built = optimizer.build(parameters)
    if method.saliency_std is not None:
        return Saliency(parameters, built, method.saliency_std)
    return built


class SeparateStates:
    """One optimizer for the retain gradient and one for the forget gradient (DualOptim, arXiv 2504.15827).

    Moments of two gradients of different size and direction are not mixed. Both gradients are of the same weights: the
    retain optimizer steps with `.grad`, then the forget optimizer with `forget_grads`, which is set before each step
    and let go after it. The paper alternates instead (1 forget step to 5 retain steps), each with a new gradient.
    """

    def __init__(self, parameters: Sequence[Tensor], retain: Optimizer, forget: Optimizer) -> None:
        self.parameters, self.retain, self.forget = list(parameters), retain, forget
        self.forget_grads: list[Tensor | None] | None = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both, so that a learning rate set on all groups reaches both."""
        return [*self.retain.param_groups, *self.forget.param_groups]

    def step(self) -> None:
        assert self.forget_grads is not None, "forget_grads is set before every step"
        retain_grads = [parameter.grad for parameter in self.parameters]
        self.retain.step()
        _set_grads(self.parameters, self.forget_grads)
        try:
            self.forget.step()
        finally:
            _set_grads(self.parameters, retain_grads)
        self.forget_grads = None


class Saliency:
    """Only entries with |g| >= mean + std_factor * std of |g| move (SSU, arXiv 2406.10952); all others stay to the bit.

    Mean and (population) standard deviation are taken over all trained entries at each step, in fp64; an entry without
    a gradient counts as zero. The optimizer sees the masked gradient, and what its moments or weight decay would still
    do to the other entries is undone. The published code adds the unmasked gradient to the masked one.
    """

    def __init__(self, parameters: Sequence[Tensor], base: Optimizer, std_factor: float) -> None:
        self.parameters, self.base, self.std_factor = list(parameters), base, std_factor

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.base.param_groups

    @torch.no_grad()
    def step(self) -> None:
        threshold = self.threshold()
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        for parameter in self.parameters:
            if parameter.grad is not None:
                # In fp64 as the threshold is: a mean of equal entries must not round above them.
                masked = parameter.grad.abs().double() < threshold
                parameter.grad.masked_fill_(masked, 0.0)
                kept.append((parameter, masked, parameter.detach().clone()))
        self.base.step()
        for parameter, masked, before in kept:
            parameter.copy_(torch.where(masked, before, parameter))

    def threshold(self) -> float:
        """mean(|g|) + std_factor * std(|g|) over all trained entries."""
        size = sum(parameter.numel() for parameter in self.parameters)
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        mean = sum(grad.abs().sum(dtype=torch.float64).item() for grad in grads) / size
        squares = sum((grad.abs().double() - mean).square().sum().item() for grad in grads)
        squares += (size - sum(grad.numel() for grad in grads)) * mean**2
        return mean + self.std_factor * math.sqrt(squares / size)


def _set_grads(parameters: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad
