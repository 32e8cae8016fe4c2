"""How the gradients of the two objectives become one update: pure functions from numbers to two weights.

Both objectives are minimised and the update direction is `w_R g_R + w_F g_F`, with weights that are never negative. A
rule sees the 2x2 Gram matrix of the gradients and the two losses, nothing else; a zero gradient gets the weight 0,
never infinity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from unlearn.setting import setting


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


class Losses(NamedTuple):
    """The two objectives' values at this step."""

    retain: float
    forget: float


class Weights(NamedTuple):
    retain: float
    forget: float


@dataclass
class CombineRule:
    """Base of all rules. A rule whose weights do not depend on the step names them in `fixed`.

    Fixed weights need no second gradient in memory: both weighted losses go straight into one.
    """

    name: str = "linear"

    formula: ClassVar[str] = ""
    source: ClassVar[str] = ""

    @property
    def fixed(self) -> Weights | None:
        return None

    def weights(self, gram: Gram, losses: Losses) -> Weights:
        raise TypeError(f"the rule '{self.name}' has fixed weights")


@dataclass
class Linear(CombineRule):
    """Static scalarisation: c = 1 is fine-tuning on the retain set, 0 is forgetting alone, 1/2 the gradient
    difference.
    """

    name: str = "linear"
    c: float = setting(0.5, "weight of the retain objective; the forget objective gets 1 - c", minimum=0, maximum=1)

    formula: ClassVar[str] = "c g_R + (1 - c) g_F"
    source: ClassVar[str] = "arXiv 2401.06121 (GDiff: c = 1/2)"

    @property
    def fixed(self) -> Weights:
        return Weights(self.c, 1 - self.c)


@dataclass
class NGDiff(CombineRule):
    """Normalised gradient difference (Bu et al., 2410.22086): each gradient at unit length.

    With retain_weight 1 the update never has a negative inner product with either gradient, and its squared norm is
    2 (1 + cos). Scaling either loss by a positive constant changes nothing.
    """

    name: str = "ngdiff"
    retain_weight: float = setting(1.0, "length of the retain part; the forget part has length 1", above=0)

    formula: ClassVar[str] = "retain_weight g_R/|g_R| + g_F/|g_F|"
    source: ClassVar[str] = "arXiv 2410.22086"

    def weights(self, gram: Gram, losses: Losses) -> Weights:
        return Weights(_over(self.retain_weight, gram.norm_retain), _over(1.0, gram.norm_forget))


@dataclass
class LossNorm(CombineRule):
    """Each loss divided by its own size, the scalarisation of log L_R - log L_F for ascent."""

    name: str = "lossnorm"

    formula: ClassVar[str] = "g_R/|L_R| + g_F/|L_F|"
    source: ClassVar[str] = "arXiv 2410.22086 (baseline)"

    def weights(self, gram: Gram, losses: Losses) -> Weights:
        retain = _over(1.0, abs(losses.retain)) if gram.rr > 0 else 0.0
        forget = _over(1.0, abs(losses.forget)) if gram.ff > 0 else 0.0
        return Weights(retain, forget)


def _over(length: float, size: float) -> float:
    return length / size if size > 0 else 0.0


COMBINE: dict[str, type[CombineRule]] = {"linear": Linear, "ngdiff": NGDiff, "lossnorm": LossNorm}
