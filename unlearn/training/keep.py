"""The best of several evaluated points of a training, by a rule that is named before it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

LAST = "last"


class Keeper:
    """Holds a copy of the trained parameters where the rule's metric was best; of equally good points the first.

    `rule` is "last" or the name of a metric. Which way is better the metric's definition says; one that is best near
    the reference's value is judged by its distance from it.
    """

    def __init__(self, rule: str, reference: Mapping[str, Any] | None) -> None:
        self.rule = rule
        self.reference = (reference or {}).get(rule, {}).get("value")
        self.best: dict[str, Any] | None = None
        self._goodness = -float("inf")
        self._kept: list[Tensor] = []

    def see(self, epoch: float, step: int, values: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        """One evaluated point; a value that is missing is never best."""
        if self.rule == LAST:
            return
        value = values.get(self.rule, {}).get("value")
        goodness = None if value is None else self._good(value)
        if goodness is not None and goodness > self._goodness:
            self._goodness = goodness
            self._kept = [parameter.detach().to("cpu", copy=True) for parameter in parameters]
            self.best = {"rule": self.rule, "epoch": epoch, "step": step, "value": value}

    @torch.no_grad()
    def restore(self, parameters: Sequence[Tensor]) -> dict[str, Any] | None:
        """Put the best parameters back; what was kept, or None where the last ones stay."""
        for parameter, kept in zip(parameters, self._kept, strict=bool(self._kept)):
            parameter.copy_(kept)
        return self.best

    def _good(self, value: float) -> float | None:
        from unlearn.evaluation.metrics import METRICS

        direction = METRICS[self.rule].direction
        if direction == "reference":
            return None if self.reference is None else -abs(value - self.reference)
        return value if direction == "higher" else -value
