"""When a run ends before its last step: ascent is unbounded, and past "as if never seen" it only costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from unlearn.config import RunConfig, TrainerConfig


@dataclass(frozen=True)
class Stop:
    """Why a run ended before its last step."""

    step: int
    reason: str


class StopRule(Protocol):
    """Sees the log line of every step, and whether an epoch is over with it."""

    def reached(self, line: dict[str, Any], epoch_over: bool) -> str | None:
        """The reason to stop after this step, or None to go on."""


class Means:
    """Means over the last pass through the set, None until there is a whole pass."""

    def __init__(self, window: int) -> None:
        self.steps: deque[tuple[float, ...]] = deque(maxlen=window)

    def add(self, *values: float) -> tuple[float, ...] | None:
        self.steps.append(values)
        if len(self.steps) < (self.steps.maxlen or 1):
            return None
        return tuple(sum(column) / len(self.steps) for column in zip(*self.steps, strict=True))


class HoldoutStop:
    """Ends a run when forgetting has reached "as if never seen": past that point every step only costs utility.

    Over one pass through the forget set, its mean NLL must have reached the holdout set's under the start model, and
    its mean answer probability must have come down to the holdout's. The loss alone would do if all rows were forgotten
    alike: ascent lets a few rows run far ahead, and their losses make up for rows that are still known by heart.
    """

    def __init__(self, holdout_nll: float, holdout_prob: float, window: int) -> None:
        self.holdout_nll, self.holdout_prob, self.means = holdout_nll, holdout_prob, Means(window)

    def reached(self, line: dict[str, Any], epoch_over: bool = False) -> str | None:
        means = self.means.add(line["nll_forget"], line["prob_forget"])
        if means is None or means[0] < self.holdout_nll or means[1] > self.holdout_prob:
            return None
        return (
            f"over one pass the forget loss of {means[0]:.3f} nats per token reached the holdout's "
            f"{self.holdout_nll:.3f}, and the answers' probability of {means[1]:.3f} the holdout's "
            f"{self.holdout_prob:.3f}"
        )


class TargetStop:
    """Ends a run when the forget set has come as far as the user asked for; of two targets, at the first."""

    def __init__(self, trainer: TrainerConfig, window: int) -> None:
        self.nll, self.prob, self.means = trainer.stop_forget_nll, trainer.stop_forget_prob, Means(window)

    def reached(self, line: dict[str, Any], epoch_over: bool = False) -> str | None:
        means = self.means.add(line["nll_forget"], line["prob_forget"])
        if means is not None and self.nll is not None and means[0] >= self.nll:
            return f"over one pass the forget loss of {means[0]:.3f} nats per token reached the target {self.nll:g}"
        if means is not None and self.prob is not None and means[1] <= self.prob:
            return f"over one pass the answers' probability of {means[1]:.3f} came down to the target {self.prob:g}"
        return None


class RetainGuard:
    """Ends a run that destroys what it should keep: the retain loss over one pass exceeds the start model's by a
    factor.
    """

    def __init__(self, start_nll: float, ratio: float, window: int) -> None:
        self.start_nll, self.ratio, self.means = start_nll, ratio, Means(window)

    def reached(self, line: dict[str, Any], epoch_over: bool = False) -> str | None:
        means = self.means.add(line["nll_retain"])
        if means is None or means[0] <= self.ratio * self.start_nll:
            return None
        return (
            f"collapsed: over one pass the retain loss of {means[0]:.3f} nats per token exceeded {self.ratio:g} times "
            f"the start model's {self.start_nll:.3f}"
        )


class ReferenceStop:
    """MUSE's rule (2407.06460): the first epoch after which no more is known of the forget set than the reference
    model knows. `knowledge` is measured on the whole set, so it is asked for once per epoch.
    """

    def __init__(self, knowledge: Callable[[], float], reference: float, name: str) -> None:
        self.knowledge, self.reference, self.name = knowledge, reference, name

    def reached(self, line: dict[str, Any], epoch_over: bool) -> str | None:
        if not epoch_over or (known := self.knowledge()) > self.reference:
            return None
        return f"after an epoch {self.name} of {known:.3f} is at most the reference's {self.reference:.3f}"


def stops_at_holdout(cfg: RunConfig) -> bool:
    """Whether this run watches the holdout: asked for, or on its own for objectives that never end."""
    wanted = cfg.trainer.stop == "holdout" or (cfg.trainer.stop == "auto" and cfg.method.forget.unbounded)
    return "forget" in cfg.method.sides and wanted
