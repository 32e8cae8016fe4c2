"""AdamW for two gradients: its preconditioner is known before they are combined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from unlearn.gradients.collect import global_norm


class AdamWPair(Optimizer):
    """theta <- (1 - lr weight_decay) theta - lr P m, with P from both objectives' gradients.

    v <- beta2 v + (1 - beta2) (u_R^2 + u_F^2) / 2 for the two gradients at unit length, v^ = v / (1 - beta2^t), and
    P = sqrt(N) / (sqrt(v^) + eps) with N the number of trained entries. m is the combined gradient, or its
    bias-corrected mean for beta1 > 0. A step is `preconditioner`, then the combined gradient in `.grad`, then `step`.

    With beta1 = 0 and the weights 1 / |g_R|_P and 1 / |g_F|_P (|g|_P^2 = sum of P g^2), the step really taken is lr d
    with d . g_R = |g_R|_P (1 + cos_P) >= 0 and the same for g_F: NGDiff's guarantee, which the preconditioner of plain
    AdamW voids. sqrt(N) changes no direction; with it an entry moves by about lr, as under Adam, whatever the size of
    the model.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.size = sum(parameter.numel() for group in self.param_groups for parameter in group["params"])
        self._ready = False

    @torch.no_grad()
    def preconditioner(
        self, retain_grads: Sequence[Tensor | None], forget_grads: Sequence[Tensor | None]
    ) -> Iterator[Tensor]:
        """Take both gradients into v, then give P of each parameter in turn (one at a time is in memory)."""
        norms = global_norm(retain_grads), global_norm(forget_grads)
        for (group, parameter), *grads in zip(self._trained(), retain_grads, forget_grads, strict=True):
            state, beta2 = self.state[parameter], group["betas"][1]
            if not state:
                state["step"], state["v"] = torch.tensor(0.0), torch.zeros_like(parameter)
            state["step"] += 1
            state["v"].mul_(beta2)
            for grad, norm in zip(grads, norms, strict=True):
                if grad is not None and norm != 0:
                    unit = grad / norm
                    state["v"].addcmul_(unit, unit, value=(1 - beta2) / 2)
        self._ready = True
        return (self._preconditioner(group, parameter) for group, parameter in self._trained())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        assert self._ready, "preconditioner() comes before step(): v must have seen this step's two gradients"
        self._ready = False
        for group, parameter in self._trained():
            if parameter.grad is None:
                continue
            state, beta1, mean = self.state[parameter], group["betas"][0], parameter.grad
            if beta1 > 0:
                m = state.setdefault("m", torch.zeros_like(parameter))
                mean = m.mul_(beta1).add_(parameter.grad, alpha=1 - beta1) / (1 - beta1 ** state["step"].item())
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.addcmul_(self._preconditioner(group, parameter), mean, value=-group["lr"])

    def _trained(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        for group in self.param_groups:
            for parameter in group["params"]:
                yield group, parameter

    def _preconditioner(self, group: dict[str, Any], parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        corrected: Tensor = state["v"] / (1 - group["betas"][1] ** state["step"].item())
        return corrected.sqrt_().add_(group["eps"]).reciprocal_().mul_(math.sqrt(self.size))
