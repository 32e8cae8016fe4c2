"""Sophia as SOUL uses it: sign descent on the mean of gradients where the curvature is small, Newton-like where not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Sophia(Optimizer):
    """theta <- (1 - lr weight_decay) theta - lr sign(m) min(|m| / (rho B h), 1), arXiv 2404.18239, after 2305.14342.

    m <- beta1 m + (1 - beta1) g and h <- beta2 h + (1 - beta2) g^2, both from zero and without a bias correction. B g^2
    is the Gauss-Newton-Bartlett estimate of the diagonal curvature, for g the mean gradient over B examples. SOUL's
    released code calls step() without B, so that the default of the optimizer stands in its place.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float],
        rho: float,
        weight_decay: float,
        batch_size: int,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "rho": rho, "weight_decay": weight_decay, "batch_size": batch_size}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["m"], state["h"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                m, h, grad = state["m"], state["h"], parameter.grad
                m.mul_(beta1).add_(grad, alpha=1 - beta1)
                h.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                curvature = (h * (group["rho"] * group["batch_size"])).clamp_(min=torch.finfo(h.dtype).tiny)
                share = (m.abs() / curvature).clamp_(max=1)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.addcmul_(m.sign(), share, value=-group["lr"])
