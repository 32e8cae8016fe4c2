"""What a combination rule is: a pure function from numbers to the weights of the two gradients.

Both objectives are minimised and the update direction is `d = w_R g_R + w_F g_F`. A rule sees the 2x2 Gram matrix of
the gradients, the two losses and what it noted of earlier steps, nothing else. A gradient that is zero takes no part:
the rule is that of the other objective alone, never infinite. Nothing here imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

RESOLUTION = 1e-6
"""Sines squared, and 1 + cosine, below this are taken for zero: inner products in fp32 cannot tell them from it."""


class Gram(NamedTuple):
    """Inner products of the retain (R) and forget (F) gradients over all trainable parameters."""

    rr: float
    rf: float
    ff: float

    @property
    def norm_retain(self) -> float:
        return math.sqrt(self.rr)

    @property
    def norm_forget(self) -> float:
        return math.sqrt(self.ff)

    @property
    def cosine(self) -> float | None:
        """Cosine of the two minimised gradients: negative where forgetting and retaining are in conflict."""
        scale = self.norm_retain * self.norm_forget
        return max(-1.0, min(1.0, self.rf / scale)) if scale > 0 else None

    @property
    def determinant(self) -> float:
        """(|g_R| |g_F| sin)^2; rounding never makes it negative."""
        return max(0.0, self.rr * self.ff - self.rf * self.rf)

    @property
    def parallel(self) -> bool:
        """Whether the gradients span one direction only, the same or opposite, as far as can be told."""
        return self.determinant <= RESOLUTION * self.rr * self.ff


class Losses(NamedTuple):
    """The two objectives' values at this step."""

    retain: float
    forget: float


class Weights(NamedTuple):
    retain: float
    forget: float


@dataclass
class RuleState:
    """What a rule remembers between steps: plain numbers, so that a resumed run goes on with the same weights.

    steps_per_epoch  of the run, for rules with settings in epochs
    """

    seed: int = 0
    step: int = 0
    values: dict[str, float] = field(default_factory=dict)
    steps_per_epoch: int = 1


@dataclass
class CombineRule:
    """Base of all rules.

    A rule that knows its weights before it has seen the step's gradients gives them in `ahead` (those that never change
    in `fixed`). It needs no second gradient in memory: both weighted losses go straight into one. All others give them
    in `weights`.

    Whatever the rule's options:
    scale_free      whether a positive constant on either loss leaves the update's direction as it is
    signed          whether a weight may be negative (where an objective's own progress is kept by the other's gradient)
    losses          what is read of the losses: "" (nothing), "sizes" (of both, which must be of one kind), "logs" (of
                    both, which must be of one kind and never negative), "retain" (that one, in nats per token)
    metric          "euclidean", or "optimizer" for inner products in the metric of the optimizer's preconditioner
    deviation       where published code does something else, and what

    At its default options:
    common_descent  whether <d, g_R> >= 0 and <d, g_F> >= 0 (in `metric`): a step along d itself raises neither loss, to
                    first order; an optimizer that rescales d may raise one
    symmetric       whether swapping the two objectives swaps the weights
    """

    name: str = "linear"

    scale_free: ClassVar[bool] = False
    signed: ClassVar[bool] = False
    losses: ClassVar[str] = ""
    metric: ClassVar[str] = "euclidean"
    common_descent: ClassVar[bool] = False
    symmetric: ClassVar[bool] = False
    formula: ClassVar[str] = ""
    source: ClassVar[str] = ""
    deviation: ClassVar[str] = ""

    @property
    def fixed(self) -> Weights | None:
        return None

    @property
    def waits(self) -> int:
        """Epochs before a rule that learns from the losses begins to."""
        return 0

    def ahead(self, state: RuleState) -> Weights | None:
        """The weights of the step that `state` stands at, or None where they depend on its gradients."""
        return self.fixed

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        raise TypeError(f"the rule '{self.name}' knows its weights ahead of the gradients")

    def observe(self, losses: Losses, state: RuleState) -> None:
        """Learn from the losses of the step just taken; the caller counts `state.step` on."""


def over(length: float, size: float) -> float:
    """The weight that gives a gradient of norm `size` the norm `length`; 0 for a zero gradient."""
    return length / size if size > 0 else 0.0


def alone(gram: Gram, retain: float = 1.0, forget: float = 1.0) -> Weights | None:
    """Where a gradient is zero: the weight given here for the other one, 0 for itself. Else None."""
    if gram.rr > 0 and gram.ff > 0:
        return None
    return Weights(retain if gram.rr > 0 else 0.0, forget if gram.ff > 0 else 0.0)
