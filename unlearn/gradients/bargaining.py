"""Rules that look for a compromise between the two gradients, as tasks of one multi-task problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from unlearn.gradients.rule import RESOLUTION, CombineRule, Gram, Losses, RuleState, Weights, alone, over
from unlearn.setting import setting


@dataclass
class MGDA(CombineRule):
    """The shortest vector between the two gradients. It favours the smaller one.

    With normalize = l2 both are taken at unit length, and the result is half of ngdiff's.
    """

    name: str = "mgda"
    normalize: str = setting("none", "length at which the gradients are compared", choices=("none", "l2"))

    common_descent: ClassVar[bool] = True
    symmetric: ClassVar[bool] = True
    formula: ClassVar[str] = "a g_R + (1 - a) g_F, a = clip(<g_F - g_R, g_F>/|g_R - g_F|^2, 0, 1)"
    source: ClassVar[str] = "arXiv 1810.04650"
    deviation: ClassVar[str] = (
        "With l2, published code normalises inside the solver only and puts its weights on the raw losses; here the "
        "update is the shortest vector that the solver found."
    )

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        if self.normalize == "l2":
            retain, forget = over(1.0, gram.norm_retain), over(1.0, gram.norm_forget)
            return alone(gram, retain, forget) or Weights(retain / 2, forget / 2)
        # Each share from its own difference: 1 minus the other would be rounding noise beside a much longer gradient.
        retain, forget = max(0.0, gram.ff - gram.rf), max(0.0, gram.rr - gram.rf)
        total = retain + forget
        return alone(gram) or (Weights(retain / total, forget / total) if total > 0 else Weights(0.5, 0.5))


@dataclass
class IMTLG(CombineRule):
    """Impartial learning: the combination with weights of sum 1 whose projections on both gradients are equal.

    It points where ngdiff does, at |g_R| |g_F|/(|g_R| + |g_F|) times the length.
    """

    name: str = "imtl_g"

    scale_free: ClassVar[bool] = True
    common_descent: ClassVar[bool] = True
    symmetric: ClassVar[bool] = True
    formula: ClassVar[str] = "(|g_F| g_R + |g_R| g_F)/(|g_R| + |g_F|)"
    source: ClassVar[str] = "Liu et al., Towards impartial multi-task learning, ICLR 2021 (closed form for two tasks)"

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        retain, forget = gram.norm_retain, gram.norm_forget
        return alone(gram) or Weights(forget / (retain + forget), retain / (retain + forget))


@dataclass
class Nash(CombineRule):
    """Nash bargaining: G w = 1/w, elementwise. It points where ngdiff does, always at length sqrt(2).

    Gradients that are opposite as far as fp32 can tell have no bargain; the update then shrinks to 0 as ngdiff's does.
    """

    name: str = "nash"

    scale_free: ClassVar[bool] = True
    common_descent: ClassVar[bool] = True
    symmetric: ClassVar[bool] = True
    formula: ClassVar[str] = "(g_R/|g_R| + g_F/|g_F|)/sqrt(1 + cos)"
    source: ClassVar[str] = "arXiv 2202.01017; arXiv 2411.15537 (MUNBa: closed form for two tasks)"
    deviation: ClassVar[str] = (
        "MUNBa's code falls back on the weights (1, 0.1) where bargaining fails, divides by 0 where the gradients are "
        "orthogonal, and cuts the update to length 1 (here trainer.clip_norm)."
    )

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        cosine = gram.cosine
        spread = 1.0 if cosine is None else math.sqrt(max(1 + cosine, RESOLUTION))
        return Weights(over(1.0, gram.norm_retain * spread), over(1.0, gram.norm_forget * spread))


@dataclass
class CAGrad(CombineRule):
    """Conflict-averse: within c |g_0| of the mean gradient g_0, the direction that is best for the worse-off objective.

    c = 0 is the mean; as c grows the direction becomes mgda's.
    """

    name: str = "cagrad"
    c: float = setting(0.4, "radius around the mean gradient, in its lengths", minimum=0)

    symmetric: ClassVar[bool] = True
    formula: ClassVar[str] = (
        "(g_0 + c |g_0| g_w/|g_w|)/(1 + c^2), g_0 = (g_R + g_F)/2, g_w = w g_R + (1 - w) g_F with the w in [0, 1] that "
        "minimises <g_w, g_0> + c |g_0| |g_w|"
    )
    source: ClassVar[str] = "arXiv 2110.14048"
    deviation: ClassVar[str] = (
        "Published code minimises over w numerically; here it is the closed form for two tasks. The division by "
        "1 + c^2 is the published code's, not the paper's."
    )

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        shrink = 1 + self.c * self.c
        one_sided = alone(gram, (1 + self.c) / shrink, (1 + self.c) / shrink)
        if one_sided is not None:
            return one_sided
        radius = self.c * math.sqrt(max(0.0, gram.rr + 2 * gram.rf + gram.ff)) / 2
        if radius == 0:
            return Weights(0.5 / shrink, 0.5 / shrink)
        w = _worst_case(gram, radius)
        squared = w * w * gram.rr + 2 * w * (1 - w) * gram.rf + (1 - w) * (1 - w) * gram.ff
        if squared <= RESOLUTION * min(gram.rr, gram.ff):
            return Weights(
                0.0, 0.0
            )  # c >= 1 and opposite gradients: no direction is better for one than standing still
        pull = radius / math.sqrt(squared)
        return Weights((0.5 + pull * w) / shrink, (0.5 + pull * (1 - w)) / shrink)


def _worst_case(gram: Gram, radius: float) -> float:
    """The w in [0, 1] that minimises <g_w, g_0> + radius |g_w|.

    With u = |g_R - g_F|^2 w - <g_F - g_R, g_F> the derivative is zero where u/sqrt(u^2 + det G) = slope/|g_R - g_F|,
    which has no solution where the slope is the steeper one: then the minimum is at an end.
    """
    distance = gram.rr - 2 * gram.rf + gram.ff
    slope = (gram.ff - gram.rr) / (2 * radius)
    if distance <= 0:
        return 0.5
    if distance <= slope * slope:
        return 1.0 if slope > 0 else 0.0
    u = math.copysign(math.sqrt(slope * slope * gram.determinant / (distance - slope * slope)), slope)
    return min(1.0, max(0.0, (u + gram.ff - gram.rf) / distance))


@dataclass
class AlignedMTL(CombineRule):
    """Both principal directions of the two gradients brought to the length of the shorter one, then summed.

    With the eigenvalues l1 >= l2 of G and s = sqrt(l1 l2), the square root of a 2x2 matrix makes sqrt(l2) G^(-1/2) 1
    equal to (|g_F|^2 + s - <g_R, g_F>, |g_R|^2 + s - <g_R, g_F>)/(l1 + s). Parallel gradients have one principal
    direction, which stays as long as it is.
    """

    name: str = "aligned_mtl"

    signed: ClassVar[bool] = True
    symmetric: ClassVar[bool] = True
    formula: ClassVar[str] = "w = sqrt(l2) V L^(-1/2) V^T 1, G = V L V^T, l2 = its smallest eigenvalue above 0"
    source: ClassVar[str] = "arXiv 2305.19000"
    deviation: ClassVar[str] = (
        "Published code drops a principal direction by the ratio of the eigenvalues, hence also where one gradient is "
        "3000 times as long as the other; here by the angle alone."
    )

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        trace = gram.rr + gram.ff
        one_sided = alone(gram)
        if one_sided is not None:
            return one_sided
        if gram.parallel:
            return Weights((gram.rr + gram.rf) / trace, (gram.ff + gram.rf) / trace)
        s = math.sqrt(gram.determinant)
        largest = (trace + math.hypot(gram.rr - gram.ff, 2 * gram.rf)) / 2
        return Weights((gram.ff + s - gram.rf) / (largest + s), (gram.rr + s - gram.rf) / (largest + s))
