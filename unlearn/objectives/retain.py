"""Retain objectives, all written to be minimised. Shapes: N answer tokens of the batch, V vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from unlearn.objectives.activation import Activation
from unlearn.objectives.objective import Objective
from unlearn.objectives.preference import AnswerPreservation
from unlearn.setting import setting

if TYPE_CHECKING:
    from torch import Tensor

    from unlearn.objectives.logprobs import Answers


@dataclass
class NoRetain(Objective):
    """Nothing holds the model: the update follows the forget objective alone."""

    name: str = "none"


@dataclass
class NLL(Objective):
    """Cross-entropy of the retained answers."""

    name: str = "nll"

    formula: ClassVar[str] = "-mean_t log pi(y_t)"
    source: ClassVar[str] = "arXiv 2401.06121"

    def terms(self, answers: Answers) -> Tensor:
        return -answers.logp_N


@dataclass
class ProbWeighted(Objective):
    """Cross-entropy weighted by what the model still believes: the weight of wga, on the side that is kept.

    It spends nothing on tokens that were never known. The weight p^beta is held constant in the gradient.
    """

    name: str = "prob_weighted"
    beta: float = setting(1.0, "exponent of the token's probability; 0 is nll", minimum=0)

    formula: ClassVar[str] = "-mean_t p_t^beta log p_t, with p_t = pi(y_t) and the weight p_t^beta held constant"
    source: ClassVar[str] = "the weight of arXiv 2502.19301"

    def terms(self, answers: Answers) -> Tensor:
        return -(self.beta * answers.logp_N.detach()).exp() * answers.logp_N


@dataclass
class KL(Objective):
    """KL(start model || policy) at every answer token of the retain rows (KL minimisation of TOFU, 2401.06121).

    With `critical` above 0, tokens count by how unsure the start model is there, in terms of its entropy H_ref: where
    only one word can follow there is little to protect. That weight is this project's own and not published.
    """

    name: str = "kl"
    critical: float = setting(
        0.0, "exponent of the start model's entropy as a weight of the token; 0: all weigh the same", minimum=0
    )

    needs: ClassVar[frozenset[str]] = frozenset({"reference_logits"})
    zero_at_start: ClassVar[bool] = True
    formula: ClassVar[str] = "mean_t (H_ref,t / log V)^critical sum_v pi_ref(v) (log pi_ref(v) - log pi(v))"
    source: ClassVar[str] = "arXiv 2401.06121, for critical = 0; the weight is our own"
    deviation: ClassVar[str] = "public code divides by all positions, padding and prompt included"

    def terms(self, answers: Answers) -> Tensor:
        from torch.nn.functional import kl_div

        assert answers.reference_logits_NV is not None
        policy_NV = answers.logits_NV.float().log_softmax(-1)
        start_NV = answers.reference_logits_NV.float().log_softmax(-1)
        kl_N = kl_div(policy_NV, start_NV, reduction="none", log_target=True).sum(-1)
        if self.critical == 0:
            return kl_N
        entropy_N = -(start_NV.exp() * start_NV).sum(-1)
        return (entropy_N / math.log(start_NV.shape[-1])).pow(self.critical) * kl_N


@dataclass
class JSD(Objective):
    """Jensen-Shannon divergence between start model and policy: JensUn's retain objective (2509.02820).

    Between 0 and log 2, also where one of the two holds a token for impossible.
    """

    name: str = "jsd"

    needs: ClassVar[frozenset[str]] = frozenset({"reference_logits"})
    zero_at_start: ClassVar[bool] = True
    formula: ClassVar[str] = "mean_t [KL(pi_ref || m) + KL(pi || m)] / 2, m = (pi_ref + pi) / 2"
    source: ClassVar[str] = "arXiv 2509.02820"

    def terms(self, answers: Answers) -> Tensor:
        assert answers.reference_logits_NV is not None
        policy_NV = answers.logits_NV.float().log_softmax(-1)
        start_NV = answers.reference_logits_NV.float().log_softmax(-1)
        mixture_NV = policy_NV.logaddexp(start_NV) - math.log(2)
        both_NV = start_NV.exp() * (start_NV - mixture_NV) + policy_NV.exp() * (policy_NV - mixture_NV)
        return both_NV.sum(-1) / 2


RETAIN: dict[str, type[Objective]] = {
    "none": NoRetain,
    "nll": NLL,
    "prob_weighted": ProbWeighted,
    "kl": KL,
    "jsd": JSD,
    "activation": Activation,
    "ap": AnswerPreservation,
}
