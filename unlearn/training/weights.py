"""The weights that a training began with: how far it went from them, and its task vector negated."""

from __future__ import annotations

import math
from typing import Any

import torch

from unlearn.models.adapter import negated


class StartWeights:
    """A copy, on the host, of all trainable parameters of `model` as they are now."""

    def __init__(self, model: Any) -> None:
        self.parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self.start = {name: each.detach().to("cpu", copy=True) for name, each in self.parameters.items()}

    @torch.no_grad()
    def negate(self, scale: float) -> None:
        """Set the parameters to `start - scale (trained - start)`; in fp32, exact for what did not move."""
        for name, parameter in self.parameters.items():
            if negated(name):
                start = self.start[name].to(parameter.device).float()
                parameter.copy_(start - scale * (parameter.float() - start))

    @torch.no_grad()
    def distance(self) -> tuple[float, int, int]:
        """Relative L2 distance of the parameters from here, how many tensors have changed, and of how many."""
        moved, size, changed = 0.0, 0.0, 0
        for name, parameter in self.parameters.items():
            before, after = self.start[name], parameter.detach().to("cpu")
            changed += int(not torch.equal(before, after))
            moved += (after.double() - before.double()).square().sum().item()
            size += before.double().square().sum().item()
        return math.sqrt(moved / size) if size > 0 else math.inf, changed, len(self.start)
