"""Objectives on hidden states: RMU steers those of the forget rows, and holds those of the retain rows.

Shapes: N answer tokens of the batch, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from unlearn.objectives.objective import Objective
from unlearn.setting import setting

if TYPE_CHECKING:
    from torch import Tensor

    from unlearn.objectives.logprobs import Answers

LAYER = (
    "decoder layer whose output is read, counted from 0, that of the last one after the final norm; null: as deep as "
    "layer 7 of 32, for which it was published"
)

DOWN_PROJECTION = r"\bmlp\.(down_proj|fc2|c_proj|dense_4h_to_h)\.(lora_[AB]\.\w+\.)?weight$"
"""The MLP's output matrix in Llama and Mistral, Phi, GPT-2, Falcon, or the two of an adapter on it."""


def _layer(chosen: int | None, depth: int) -> int:
    return depth * 7 // 32 if chosen is None else chosen


@dataclass
class RMU(Objective):
    """Representation misdirection (Li et al., 2403.03218): hidden states move to c u, u a fixed random unit vector.

    Only the down projections of the MLPs of that layer and of the two before it are trained.
    """

    name: str = "rmu"
    coefficient: float = setting(6.5, "length c of the vector that hidden states are moved to", above=0)
    layer: int | None = setting(None, LAYER, minimum=0)
    direction_seed: int = setting(0, "seed of the random direction", minimum=0, maximum=2**31 - 1)

    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})
    formula: ClassVar[str] = "mean_t mean_d (h_t,d - c u_d)^2, u = U[0,1)^D at unit length"
    source: ClassVar[str] = "arXiv 2403.03218"
    deviation: ClassVar[str] = (
        "here at the positions that predict an answer token, in published code at all tokens of a text; later code "
        "trains all parameters with c = 2"
    )

    def layer_of(self, depth: int) -> int:
        return _layer(self.layer, depth)

    def trains(self, depth: int) -> tuple[str, range]:
        layer = self.layer_of(depth)
        return DOWN_PROJECTION, range(max(layer - 2, 0), layer + 1)

    def terms(self, answers: Answers) -> Tensor:
        assert answers.hidden_ND is not None
        hidden_ND = answers.hidden_ND.float()
        return (hidden_ND - self.coefficient * self._direction(hidden_ND)).square().mean(-1)

    def _direction(self, hidden_ND: Tensor) -> Tensor:
        """The same vector in every step and on every device: drawn on the CPU from a generator of its own."""
        import torch

        generator = torch.Generator().manual_seed(self.direction_seed)
        direction_D = torch.rand(hidden_ND.shape[-1], generator=generator)
        return (direction_D / direction_D.square().sum().sqrt()).to(hidden_ND.device)


@dataclass
class Activation(Objective):
    """Squared distance of hidden states from the start model's: RMU's retain objective (Li et al., 2403.03218)."""

    name: str = "activation"
    layer: int | None = setting(None, LAYER, minimum=0)

    needs: ClassVar[frozenset[str]] = frozenset({"hidden", "reference_hidden"})
    zero_at_start: ClassVar[bool] = True
    formula: ClassVar[str] = "mean_t mean_d (h_t,d - h_ref,t,d)^2"
    source: ClassVar[str] = "arXiv 2403.03218"

    def layer_of(self, depth: int) -> int:
        return _layer(self.layer, depth)

    def terms(self, answers: Answers) -> Tensor:
        assert answers.hidden_ND is not None
        assert answers.reference_hidden_ND is not None
        return (answers.hidden_ND.float() - answers.reference_hidden_ND.float()).square().mean(-1)
