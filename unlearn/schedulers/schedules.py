"""Learning-rate schedules: pure functions of (step, total). AutoLR, which looks at the model, is in autolr.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from unlearn.setting import setting


@dataclass
class Schedule:
    """Base of the schedules: the learning rate of a step is `optimizer.lr * factor(step, total)`."""

    name: str = "constant"
    warmup: float = setting(
        0.0, "share of all steps in which the lr rises linearly to its full value", minimum=0, maximum=1
    )

    formula: ClassVar[str] = "1"

    def factor(self, step: int, total: int) -> float:
        """Factor in (0, 1] for optimizer step `step`, counted from 0, of `total`: no step has a zero lr."""
        rising = round(self.warmup * total)
        if step < rising:
            return (step + 1) / rising
        return self.after_warmup((step - rising) / max(1, total - rising))

    def after_warmup(self, progress: float) -> float:
        """Factor at `progress` in [0, 1) of what follows the warm-up."""
        return 1.0


@dataclass
class Constant(Schedule):
    """The same learning rate at every step."""

    name: str = "constant"


@dataclass
class Linear(Schedule):
    """Falls in a straight line; the step after the last would have the rate 0."""

    name: str = "linear"

    formula: ClassVar[str] = "1 - progress"

    def after_warmup(self, progress: float) -> float:
        return 1.0 - progress


@dataclass
class Cosine(Schedule):
    """Falls along half a cosine wave."""

    name: str = "cosine"

    formula: ClassVar[str] = "(1 + cos(pi progress)) / 2"

    def after_warmup(self, progress: float) -> float:
        return (1 + math.cos(math.pi * progress)) / 2
