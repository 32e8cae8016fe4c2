"""Forget objectives, all written to be minimised. Shapes: N answer tokens of the batch, B rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from unlearn.objectives.objective import Objective
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

    def terms(self, answers: Answers) -> Tensor:
        from torch.nn.functional import logsigmoid

        assert answers.reference_logp_B is not None
        ratio_B = answers.per_row(answers.logp_N) - answers.reference_logp_B
        return -2 / self.beta * logsigmoid(-self.beta * ratio_B)


FORGET: dict[str, type[Objective]] = {"none": NoForget, "ascent": Ascent, "npo": NPO}
