"""AutoLR: the learning rate that a parabola through the retain loss asks for (GeN, Bu & Xu, 2407.02772; 2410.22086).

Along the update direction d the retain loss is L(s) = L0 - b s + h s^2 / 2 at the point `before - s d`. Three losses at
s = -lr, 0, +lr give b and h; the minimiser is b/h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from unlearn.schedulers.schedules import Constant, Cosine, Linear
from unlearn.setting import setting

MAX_FIRST_PROBES = 12
"""How often the very first probe may repeat: enough to double a lr of 1e-7 up to 4e-4."""

NOISE = 1e-6
"""Loss differences below this share of the loss are rounding, not slope: fp32 sums of thousands of terms differ so."""

NOISE_BF16 = 4e-3
"""The same for a forward pass in bf16, which keeps 8 bits."""

NOISE_NATS = 1e-7
"""Rounding of a log-softmax in fp32, however small the loss is."""


@dataclass
class AutoLR:
    """Fitted to the retain loss along the update; optimizer.lr is only where the search starts."""

    name: str = "autolr"
    interval: int = setting(10, "optimizer steps between two probes; the first step always probes", minimum=1)
    probe: str = setting(
        "step", "retain rows to fit on: this step's own (the paper) or others", choices=("step", "fresh")
    )
    probe_batches: int = setting(3, "rows of a fresh probe, in multiples of trainer.batch_size", minimum=1)
    budget: float = setting(
        0.0, "share by which the fitted retain loss may rise; 0 takes its minimum (the paper)", minimum=0
    )
    clip: float = setting(2.0, "largest factor by which one probe changes the lr, up or down", above=1)
    smoothing: float = setting(0.0, "share of the old lr kept at each probe (GeN uses 0.9)", minimum=0, below=1)
    decay: str = setting("none", "horizon factor on the fitted lr", choices=("none", "linear", "cosine"))
    min_lr: float = setting(1e-8, "lower bound of the lr", above=0)
    max_lr: float = setting(1.0, "upper bound of the lr", above=0)

    formula: ClassVar[str] = "b / h from the retain loss at lr * (-1, 0, 1) along the update"
    source: ClassVar[str] = "arXiv 2410.22086, arXiv 2407.02772"

    def factor(self, step: int, total: int) -> float:
        """Horizon decay in [0, 1]."""
        shapes = {"none": Constant(), "linear": Linear(), "cosine": Cosine()}
        return shapes[self.decay].factor(step, total)

    def due(self, step: int) -> bool:
        return step % self.interval == 0


class Fit(NamedTuple):
    """What one probe says: `lr_star` None means "keep", with the reason in `note`."""

    slope: float | None
    curvature: float | None
    lr_star: float | None
    note: str


def fit(minus: float, zero: float, plus: float, lr: float, budget: float = 0.0, noise: float = NOISE) -> Fit:
    """The learning rate that the parabola through three retain losses asks for, unclipped (math.inf means "grow").

    minus, zero, plus: retain loss at `before + lr d`, `before` and `before - lr d` (the step as taken), in nats.
    With a budget: the largest lr whose fitted loss is at most (1 + budget) L0, else the minimiser.
    """
    if not all(math.isfinite(loss) for loss in (minus, zero, plus)):
        return Fit(None, None, None, "keep: loss not finite")
    b = (minus - plus) / (2 * lr)
    h = (plus + minus - 2 * zero) / lr**2
    if max(abs(minus - zero), abs(plus - zero)) <= max(noise * abs(zero), NOISE_NATS):
        return Fit(b, h, None, "keep: differences below the noise floor")
    if budget > 0:
        return Fit(b, h, _within_budget(b, h, budget * abs(zero)), "budget")
    if b <= 0:
        return Fit(b, h, 0.0, "shrink: the retain loss rises along the update")
    if h <= 0:
        return Fit(b, h, math.inf, "grow: the retain loss falls and does not curve up")
    return Fit(b, h, b / h, "fit")


def _within_budget(b: float, h: float, rise: float) -> float:
    """Smallest positive lr at which -b lr + h lr^2 / 2 passes `rise`; infinity where it never does.

    For h > 0 this is (b + sqrt(b^2 + 2 h rise)) / h, written so that nothing cancels for b < 0 or h near 0.
    """
    discriminant = b * b + 2 * h * rise
    if discriminant < 0 or (h <= 0 and b >= 0):
        return math.inf
    root = math.sqrt(discriminant)
    return (b + root) / h if b > 0 else 2 * rise / (root - b)


def next_lr(settings: AutoLR, lr: float, star: float, smoothing: float = 0.0) -> float:
    """Clip, smooth and bound: the lr after a probe that asked for `star` at the learning rate `lr`."""
    clipped = min(max(star, lr / settings.clip), lr * settings.clip)
    smoothed = smoothing * lr + (1 - smoothing) * clipped
    return min(max(smoothed, settings.min_lr), settings.max_lr)


def inside_clip(settings: AutoLR, lr: float, star: float) -> bool:
    """Whether a probe's answer was taken as it is: then the first search is over."""
    return lr / settings.clip <= star <= lr * settings.clip
