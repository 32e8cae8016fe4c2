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

    unit           what the mean is taken over: "token" (terms_N, one per answer token), "sequence" (terms_B, one per
                   row) or "alternate_token" (one per token of the alternate answers)
    needs          what the caller must put into `Answers`:
                   reference_logp     sequence log-probabilities of the start model, computed once
                   reference_logits   the start model's distribution at every answer token
                   reinforced_logits  the same of a copy that was trained further on the forget set
                   alternates         the policy's `Answers` on another answer to the same question
                   targets            another label for every answer token, of the kind that `targets` names
                   hidden             the policy's hidden states at one layer
                   reference_hidden   the start model's there
    targets        "random" (uniform over the vocabulary, drawn again at each step), "adversarial" (the start model's
                   first choice other than the truth) or "refusal" (the tokens of a refusal, repeated)
    unbounded      whether minimising it forever destroys the model, so that a run needs a rule to stop
    zero_at_start  whether loss and gradient are zero at the start model, whatever the data
    nonnegative    whether the loss is never below 0
    crosses_zero   whether the loss may be positive and negative, so that its size says nothing
    deviation      where published code does something else, and what
    """

    name: str = "none"

    unit: ClassVar[str] = "token"
    needs: ClassVar[frozenset[str]] = frozenset()
    targets: ClassVar[str] = ""
    unbounded: ClassVar[bool] = False
    zero_at_start: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = True
    crosses_zero: ClassVar[bool] = False
    formula: ClassVar[str] = ""
    source: ClassVar[str] = ""
    deviation: ClassVar[str] = ""

    def terms(self, answers: Answers) -> Tensor:
        """Loss terms to be summed: one per token of the answers, row or token of the alternates, as `unit` says.

        Raises TypeError where there are none, or where they are of more than one unit, as `parts` has them.
        """
        raise TypeError(f"the objective '{self.name}' has no terms of a single unit")

    def parts(self, answers: Answers) -> dict[str, Tensor]:
        """Terms by unit. A sum of means over different units returns more than one entry."""
        return {self.unit: self.terms(answers)}

    def layer_of(self, depth: int) -> int:
        """Number of the decoder layer whose output `hidden` is, counted from 0, in a model of `depth` layers."""
        raise TypeError(f"the objective '{self.name}' reads no hidden states")

    def trains(self, depth: int) -> tuple[str, range] | None:
        """Regular expression and layers of the parameters that the method trains; None for all."""
        return None

    @property
    def negation(self) -> float | None:
        """Where training is followed by negation: the weights become `start - negation (trained - start)`."""
        return None

    @property
    def active(self) -> bool:
        return self.name != "none"
