"""What a forget or retain objective is.

An objective is a dataclass: its fields are its settings (a Hydra group option of the same name), its `terms` are its
formula. It is always written to be minimised and knows neither batches nor masks nor how the step was cut into
micro-batches: the caller divides the sum of all terms by the true count of units of the whole optimizer step.

torch is imported inside `terms` only, so that the command line can read the settings without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from unlearn.objectives.logprobs import Answers


@dataclass
class Objective:
    """Base of all objectives.

    unit       what the mean is taken over: "token" (terms_N, one per answer token) or "sequence" (terms_B, one per row)
    needs      what the caller must provide: "reference_logp" (sequence log-probabilities of the start model, computed
               once), "reference_logits" (the start model's distribution at every answer token)
    unbounded  whether minimising it forever destroys the model, so that a run needs a rule to stop
    """

    name: str = "none"

    unit: ClassVar[str] = "token"
    needs: ClassVar[frozenset[str]] = frozenset()
    unbounded: ClassVar[bool] = False
    formula: ClassVar[str] = ""
    source: ClassVar[str] = ""

    def terms(self, answers: Answers) -> Tensor:
        """Loss terms to be summed: [N] where `unit` is "token", [B] where it is "sequence"."""
        raise TypeError(f"the objective '{self.name}' has no terms: it takes no part in the step")

    @property
    def active(self) -> bool:
        return self.name != "none"
