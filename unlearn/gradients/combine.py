"""All combination rules by name, and those that weigh each gradient by itself.

The contract is in rule.py; rules that look at the angle are in projections.py (one gradient rid of its part against the
other) and bargaining.py (a compromise that both agree to), rules that look at the losses in balancing.py.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import ClassVar

from unlearn.gradients.balancing import FAMO, PDU, LossNorm
from unlearn.gradients.bargaining import IMTLG, MGDA, AlignedMTL, CAGrad, Nash
from unlearn.gradients.projections import BLUR, GRU, HAMU, PCGrad
from unlearn.gradients.rule import CombineRule, Gram, Losses, RuleState, Weights, over
from unlearn.setting import setting

__all__ = [
    "BLUR",
    "COMBINE",
    "FAMO",
    "GRU",
    "HAMU",
    "IMTLG",
    "MGDA",
    "PDU",
    "RLW",
    "AlignedMTL",
    "CAGrad",
    "CombineRule",
    "Gram",
    "Linear",
    "LossNorm",
    "Losses",
    "NGDiff",
    "NGDiffAdam",
    "Nash",
    "PCGrad",
    "RuleState",
    "Weights",
]


@dataclass
class Linear(CombineRule):
    """Static scalarisation: the plain sum. How the two losses are weighed is method.alpha and method.gamma."""

    name: str = "linear"

    symmetric: ClassVar[bool] = True
    formula: ClassVar[str] = "g_R + g_F"
    source: ClassVar[str] = "arXiv 2401.06121 (GDiff)"

    @property
    def fixed(self) -> Weights:
        return Weights(1.0, 1.0)


@dataclass
class RLW(CombineRule):
    """Random loss weighting: in each step the softmax of two draws from N(0, 1).

    The draws are a function of the run's seed and the number of the step, so a resumed run draws the same.
    """

    name: str = "rlw"

    formula: ClassVar[str] = "softmax(z_R, z_F) of z ~ N(0, 1), drawn in each step"
    source: ClassVar[str] = "arXiv 2111.10603"

    def ahead(self, state: RuleState) -> Weights:
        # A string is hashed whole, while some integers seed the same stream, as 2 and 2**32 + 2 do. Of the generator,
        # `random()` alone is promised to give the same stream in all versions of Python.
        draw = random.Random(f"{state.seed} {state.step}")
        radius = math.sqrt(-2 * math.log(1 - draw.random()))
        angle = 2 * math.pi * draw.random()
        retain, forget = (math.exp(radius * part) for part in (math.cos(angle), math.sin(angle)))
        return Weights(retain / (retain + forget), forget / (retain + forget))


@dataclass
class NGDiff(CombineRule):
    """Normalised gradient difference (Bu et al., 2410.22086): each gradient at unit length.

    With retain_weight 1 the update never has a negative inner product with either gradient, and its squared norm is
    2 (1 + cos). Scaling either loss by a positive constant changes nothing.
    """

    name: str = "ngdiff"
    retain_weight: float = setting(1.0, "length of the retain part; the forget part has length 1", above=0)

    scale_free: ClassVar[bool] = True
    common_descent: ClassVar[bool] = True
    symmetric: ClassVar[bool] = True
    formula: ClassVar[str] = "retain_weight g_R/|g_R| + g_F/|g_F|"
    source: ClassVar[str] = "arXiv 2410.22086"

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        return Weights(over(self.retain_weight, gram.norm_retain), over(1.0, gram.norm_forget))


@dataclass
class NGDiffAdam(NGDiff):
    """NGDiff for the step that Adam really takes: norms and inner products in the metric of its preconditioner P,
    <a, b>_P = a^T P b, so that P d, not d, goes against neither gradient.
    """

    name: str = "ngdiff_adam"

    metric: ClassVar[str] = "optimizer"
    formula: ClassVar[str] = "retain_weight g_R/|g_R|_P + g_F/|g_F|_P, |g|_P^2 = g^T P g"
    source: ClassVar[str] = "after arXiv 2410.22086, whose guarantee holds for plain gradient descent only"
    deviation: ClassVar[str] = "The paper normalises in the Euclidean metric whatever the optimizer."


COMBINE: dict[str, type[CombineRule]] = {
    "linear": Linear,
    "ngdiff": NGDiff,
    "ngdiff_adam": NGDiffAdam,
    "lossnorm": LossNorm,
    "rlw": RLW,
    "pcgrad": PCGrad,
    "gru": GRU,
    "blur": BLUR,
    "hamu": HAMU,
    "mgda": MGDA,
    "imtl_g": IMTLG,
    "nash": Nash,
    "cagrad": CAGrad,
    "aligned_mtl": AlignedMTL,
    "famo": FAMO,
    "pdu": PDU,
}
