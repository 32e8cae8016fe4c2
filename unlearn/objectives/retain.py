"""Retain objectives, all written to be minimised. Shapes: N answer tokens of the batch, V vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from unlearn.objectives.objective import Objective

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
class KL(Objective):
    """KL(start model || policy) at every answer token of the retain rows (KL minimisation of TOFU, 2401.06121).

    Divided by the count of answer tokens. Public code divides by all positions, padding and prompt included.
    """

    name: str = "kl"

    needs: ClassVar[frozenset[str]] = frozenset({"reference_logits"})
    formula: ClassVar[str] = "mean_t sum_v pi_ref(v) (log pi_ref(v) - log pi(v))"
    source: ClassVar[str] = "arXiv 2401.06121"

    def terms(self, answers: Answers) -> Tensor:
        from torch.nn.functional import kl_div

        assert answers.reference_logits_NV is not None
        policy_NV = answers.logits_NV.float().log_softmax(-1)
        start_NV = answers.reference_logits_NV.float().log_softmax(-1)
        return kl_div(policy_NV, start_NV, reduction="none", log_target=True).sum(-1)


RETAIN: dict[str, type[Objective]] = {"none": NoRetain, "nll": NLL, "kl": KL}
