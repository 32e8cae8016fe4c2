"""When a run ends before its last step: ascent is unbounded, and past "as if never seen" it only costs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from unlearn.config import RunConfig


@dataclass(frozen=True)
class Stop:
    """Why a run ended before its last step."""

    step: int
    reason: str


class HoldoutStop:
    """Ends a run when forgetting has reached "as if never seen": past that point every step only costs utility.

    Over one pass through the forget set, its mean NLL must have reached the holdout set's under the start model, and
    its mean answer probability must have come down to the holdout's. The loss alone would do if all rows were forgotten
    alike: ascent lets a few rows run far ahead, and their losses make up for rows that are still known by heart.
    """

    def __init__(self, holdout_nll: float, holdout_prob: float, window: int) -> None:
        self.holdout_nll, self.holdout_prob = holdout_nll, holdout_prob
        self.steps: deque[tuple[float, float]] = deque(maxlen=window)

    def reached(self, forget_nll: float, forget_prob: float) -> str | None:
        """The reason to stop after a step with these values on its forget rows, or None to go on."""
        self.steps.append((forget_nll, forget_prob))
        nll, prob = (sum(values) / len(self.steps) for values in zip(*self.steps, strict=True))
        if len(self.steps) < (self.steps.maxlen or 1) or nll < self.holdout_nll or prob > self.holdout_prob:
            return None
        return (
            f"over one pass the forget loss of {nll:.3f} nats per token reached the holdout's {self.holdout_nll:.3f}, "
            f"and the answers' probability of {prob:.3f} the holdout's {self.holdout_prob:.3f}"
        )


def forgets(cfg: RunConfig) -> bool:
    """Whether the forget objective takes part in the steps: there is one, and its weight is not fixed at 0."""
    fixed = cfg.method.combine.fixed
    return bool(cfg.method.forget.active) and (fixed is None or fixed.forget > 0)


def stops_at_holdout(cfg: RunConfig) -> bool:
    """Whether this run watches the holdout: asked for, or on its own for objectives that never end."""
    wanted = cfg.trainer.stop == "holdout" or (cfg.trainer.stop == "auto" and cfg.method.forget.unbounded)
    return forgets(cfg) and wanted
