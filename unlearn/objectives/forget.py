"""Forget objectives, all written to be minimised: those on the answer's own likelihood, and the list of all of them.

Shapes: N answer tokens of the batch, B rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from unlearn.objectives.activation import RMU
from unlearn.objectives.distribution import (
    CEU,
    IHL,
    PDU,
    WHP,
    AdversarialLabel,
    JensUn,
    MaxEntropy,
    RandomLabel,
    Undial,
)
from unlearn.objectives.objective import Objective
from unlearn.objectives.preference import DPO, FLAT, IDK, LLMU, SSU
from unlearn.setting import setting

if TYPE_CHECKING:
    from torch import Tensor

    from unlearn.objectives.logprobs import Answers


@dataclass
class NoForget(Objective):
    """Forget nothing: fine-tuning on the retain set, or evaluation only."""

    name: str = "none"


@dataclass
class Ascent(Objective):
    """Gradient ascent on the answer's cross-entropy: minimise minus the cross-entropy (Jang et al., 2210.01504)."""

    name: str = "ascent"

    unbounded: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = False
    formula: ClassVar[str] = "mean_t log pi(y_t)"
    source: ClassVar[str] = "arXiv 2210.01504"

    def terms(self, answers: Answers) -> Tensor:
        return answers.logp_N


@dataclass
class NPO(Objective):
    """Negative preference optimisation (Zhang et al., 2404.05868): ascent that fades as the answer gets unlikely.

    With r = log pi(y) - log pi_ref(y), both summed over the answer, the gradient is that of ascent on log pi(y) times
    2 sigmoid(beta r): 1 at the start model, towards 0 as r falls, and ascent itself for beta -> 0.
    """

    name: str = "npo"
    beta: float = setting(0.1, "inverse temperature; the smaller, the closer to gradient ascent", above=0)

    unit: ClassVar[str] = "sequence"
    needs: ClassVar[frozenset[str]] = frozenset({"reference_logp"})
    formula: ClassVar[str] = "-(2/beta) log sigmoid(-beta (log pi(y) - log pi_ref(y)))"
    source: ClassVar[str] = "arXiv 2404.05868"
    deviation: ClassVar[str] = "the code of MUSE takes differences of raw logits over the whole vocabulary"

    def terms(self, answers: Answers) -> Tensor:
        from torch.nn.functional import logsigmoid

        assert answers.reference_logp_B is not None
        ratio_B = answers.per_row(answers.logp_N) - answers.reference_logp_B
        return -2 / self.beta * logsigmoid(-self.beta * ratio_B)


@dataclass
class SimNPO(Objective):
    """NPO without a reference, on the mean log-probability of a token (Fan et al., 2410.07163).

    For beta -> 0 ascent on that mean. The margin stands outside of the product with beta, as in the paper; a margin
    delta inside of it is gamma = beta delta.
    """

    name: str = "simnpo"
    beta: float = setting(4.5, "inverse temperature; published: 4.5 for forget10, 2.5 for forget05 of TOFU", above=0)
    gamma: float = setting(0.0, "margin that the mean cross-entropy times beta has to exceed")

    unit: ClassVar[str] = "sequence"
    formula: ClassVar[str] = "-(2/beta) log sigmoid(-(beta/|y|) log pi(y) - gamma)"
    source: ClassVar[str] = "arXiv 2410.07163"
    deviation: ClassVar[str] = (
        "published code subtracts its margin delta before it multiplies by beta: gamma = beta delta"
    )

    def terms(self, answers: Answers) -> Tensor:
        from torch.nn.functional import logsigmoid

        mean_B = answers.per_row(answers.logp_N) / answers.length_B
        return -2 / self.beta * logsigmoid(-self.beta * mean_B - self.gamma)


@dataclass
class WGA(Objective):
    """Weighted gradient ascent (Wang et al., 2502.19301): each token weighs as much as the model still believes it.

    The weight p^beta is held constant in the gradient, which is that of p^beta / beta: bounded, and ascent for
    beta -> 0.
    """

    name: str = "wga"
    beta: float = setting(1.0, "exponent of the token's probability; the paper's own code has 5", above=0)

    nonnegative: ClassVar[bool] = False
    formula: ClassVar[str] = "mean_t p_t^beta log p_t, with p_t = pi(y_t) and the weight p_t^beta held constant"
    source: ClassVar[str] = "arXiv 2502.19301"

    def terms(self, answers: Answers) -> Tensor:
        return (self.beta * answers.logp_N.detach()).exp() * answers.logp_N


@dataclass
class SatImp(Objective):
    """Ascent weighted by saturation and importance (Yang et al., 2505.11953), the weights held constant.

    p^beta1 spares tokens that are forgotten already, (1 - p)^beta2 those that anyone would predict.
    """

    name: str = "satimp"
    beta1: float = setting(5.0, "exponent of p, the weight of what is not forgotten yet", above=0)
    beta2: float = setting(1.0, "exponent of 1 - p, the weight of what is not obvious", minimum=0)

    nonnegative: ClassVar[bool] = False
    formula: ClassVar[str] = "mean_t p_t^beta1 (1 - p_t)^beta2 log p_t, with p_t = pi(y_t) and the weight held constant"
    source: ClassVar[str] = "arXiv 2505.11953"
    deviation: ClassVar[str] = (
        "the coefficients of the two losses differ between the released configuration and its README"
    )

    def terms(self, answers: Answers) -> Tensor:
        logp_N = answers.logp_N.detach()
        # expm1: 1 - exp(log p) would round to 0 for tokens that are all but certain.
        weight_N = (self.beta1 * logp_N).exp() * (-logp_N.expm1()).pow(self.beta2)
        return weight_N * answers.logp_N


@dataclass
class TaskVector(Objective):
    """Task arithmetic (Ilharco et al., 2212.04089): learn the forget rows better, then walk the other way.

    The cross-entropy is descended; afterwards `scale` times the difference of the weights is subtracted from the start.
    """

    name: str = "task_vector"
    scale: float = setting(5.0, "how much of the learned difference is subtracted; 5 in MUSE", above=0)

    formula: ClassVar[str] = "-mean_t log pi(y_t), descended; then start - scale (trained - start)"
    source: ClassVar[str] = "arXiv 2212.04089; as in MUSE, 2407.06460"

    @property
    def negation(self) -> float:
        return self.scale

    def terms(self, answers: Answers) -> Tensor:
        return -answers.logp_N


FORGET: dict[str, type[Objective]] = {
    "none": NoForget,
    "ascent": Ascent,
    "npo": NPO,
    "simnpo": SimNPO,
    "dpo": DPO,
    "idk": IDK,
    "undial": Undial,
    "wga": WGA,
    "satimp": SatImp,
    "ceu": CEU,
    "me": MaxEntropy,
    "ihl": IHL,
    "jensun": JensUn,
    "flat": FLAT,
    "random_label": RandomLabel,
    "adversarial_label": AdversarialLabel,
    "rmu": RMU,
    "pdu": PDU,
    "task_vector": TaskVector,
    "ssu": SSU,
    "whp": WHP,
    "llmu": LLMU,
}
