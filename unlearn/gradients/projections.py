"""Rules that rid one gradient of its part along the other one.

The part of a along b is (<a, b> / |b|^2) b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from unlearn.gradients.rule import CombineRule, Gram, Losses, RuleState, Weights, alone
from unlearn.setting import setting


@dataclass
class PCGrad(CombineRule):
    """Gradient surgery: in conflict each gradient loses its part against the other one, then both are added."""

    name: str = "pcgrad"

    common_descent: ClassVar[bool] = True
    symmetric: ClassVar[bool] = True
    formula: ClassVar[str] = "(1 - min(0, <g_R, g_F>)/|g_R|^2) g_R + (1 - min(0, <g_R, g_F>)/|g_F|^2) g_F"
    source: ClassVar[str] = "arXiv 2001.06782"

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        conflict = min(0.0, gram.rf)
        return alone(gram) or Weights(1 - conflict / gram.rr, 1 - conflict / gram.ff)


@dataclass
class GRU(CombineRule):
    """Gradient rectified unlearning: the forget gradient, in conflict without its part against the retain gradient.

    With retain_weight 0 the direction does not depend on the scale of either loss, and goes against neither gradient.
    With it there is nothing left to do where the forget gradient is zero.
    """

    name: str = "gru"
    retain_weight: float = setting(0.0, "weight of the retain gradient itself, on top", minimum=0)

    common_descent: ClassVar[bool] = True
    formula: ClassVar[str] = "g_F - (min(0, <g_R, g_F>)/|g_R|^2) g_R + retain_weight g_R"
    source: ClassVar[str] = "arXiv 2503.09117"
    deviation: ClassVar[str] = (
        "Published code projects off a running mean of retain gradients (0.8 of the new, 0.2 of the old), which takes "
        "one more copy of the gradient; here it is this step's retain gradient."
    )

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        conflict = min(0.0, gram.rf)
        return alone(gram, retain=self.retain_weight) or Weights(self.retain_weight - conflict / gram.rr, 1.0)


@dataclass
class BLUR(CombineRule):
    """Forgetting first: the retain gradient without its part along the forget gradient, plus gamma forget gradients.

    Under plain gradient descent the forget loss falls by gamma |g_F|^2 per unit of learning rate, to first order and
    whatever the retain gradient is; an optimizer that rescales the update changes that.
    """

    name: str = "blur"
    gamma: float = setting(1.0, "weight of the forget gradient: the speed of forgetting", minimum=0)

    signed: ClassVar[bool] = True
    formula: ClassVar[str] = "g_R + (gamma - <g_R, g_F>/|g_F|^2) g_F"
    source: ClassVar[str] = "arXiv 2506.08164"
    deviation: ClassVar[str] = "Published MUSE code has an NPO of raw logits as its forget loss; the rule is the same."

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        return alone(gram, forget=self.gamma) or Weights(1.0, self.gamma - gram.rf / gram.ff)


@dataclass
class HAMU(CombineRule):
    """The best step for the retain loss, no longer than the retain gradient, that meets a quota of forgetting.

    It maximises <d, g_R> over |d| <= |g_R| and <d, g_F> >= quota. Where no such step is long enough, it is the one that
    forgets most; where the gradients are opposite, the shortest one that meets the quota. A retain gradient of zero
    gives no length, and the forget gradient is followed as it is. The quota is met by a step along d itself, that
    of plain gradient descent; an optimizer that rescales d changes that.
    """

    name: str = "hamu"
    quota: float = setting(
        0.5,
        "least <d, g_F>: under plain gradient descent the fall of the forget loss per unit of learning rate",
        above=0,
    )

    formula: ClassVar[str] = (
        "g_R if <g_R, g_F> >= quota, else quota g_F/|g_F|^2 + sqrt(|g_R|^2 - quota^2/|g_F|^2) n, "
        "n = unit part of g_R orthogonal to g_F"
    )
    source: ClassVar[str] = "arXiv 2606.02119 (HAMU-Q, the whole model as one block)"
    deviation: ClassVar[str] = (
        "The paper divides the quota between layers and ends the run once <g_R, g_F> < -sqrt(|g_R|^2 |g_F|^2 - quota^2)"
        ", where the quota costs retain loss; here it is one quota for the model, and the run goes on."
    )

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        one_sided = alone(gram)
        if one_sided is not None:
            return one_sided
        if gram.rf >= self.quota:
            return Weights(1.0, 0.0)
        longest = gram.norm_retain * gram.norm_forget
        if longest <= self.quota:
            return Weights(0.0, gram.norm_retain / gram.norm_forget)
        if gram.parallel:
            return Weights(0.0, self.quota / gram.ff)
        across = math.sqrt((longest - self.quota) * (longest + self.quota) / gram.determinant)
        return Weights(across, (self.quota - across * gram.rf) / gram.ff)
