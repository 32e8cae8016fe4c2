"""Shift and mask, once, for everybody: what a model says about the answers of a batch.

The decoder runs over whole (right-padded) rows, the output layer only over the positions that predict an answer token,
so a [batch, time, vocabulary] tensor never exists and no objective ever sees padding or a prompt.

Shapes: B rows, T positions, N answer tokens of all rows in a line, V vocabulary, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unlearn.data.batches import Batch
from unlearn.errors import UserError


@dataclass
class Answers:
    """The model's output at the answer tokens of a batch, plus what an objective `needs` (see `Objective`).

    `alternate` is about the same rows in the same order, with another answer each and token counts of its own.
    """

    logits_NV: Tensor
    labels_N: Tensor
    row_N: Tensor
    n_rows: int
    reference_logp_B: Tensor | None = None
    reference_logits_NV: Tensor | None = None
    reinforced_logits_NV: Tensor | None = None
    targets_N: Tensor | None = None
    hidden_ND: Tensor | None = None
    reference_hidden_ND: Tensor | None = None
    alternate: Answers | None = None

    @cached_property
    def logp_N(self) -> Tensor:
        """log pi(y_t | x, y_<t) in fp32, whatever the model's precision."""
        return -cross_entropy(self.logits_NV.float(), self.labels_N, reduction="none")

    @cached_property
    def length_B(self) -> Tensor:
        """Answer tokens of each row, at least 1, so that a row without any divides 0 by 1."""
        return self.per_row(torch.ones_like(self.labels_N, dtype=torch.float32)).clamp_min(1)

    def per_row(self, terms_N: Tensor) -> Tensor:
        """Sum the token terms of each row: [N] -> [B]. A row without answer tokens sums to 0."""
        return terms_N.new_zeros(self.n_rows).index_add(0, self.row_N, terms_N)


class AnswerModel(torch.nn.Module):
    """A causal language model as a function from a batch to `Answers`.

    A module of its own, so that whatever wraps models (compilation, data parallelism) can wrap the whole computation.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, layer: int | None = None) -> Answers:
        """The answers; with `layer` also the output of that decoder layer, counted from 0, at the same positions."""
        where = (batch.row_N, batch.position_N)
        decoded = self._decoded(batch, output_hidden_states=layer is not None)
        answers = Answers(self.output(decoded.last_hidden_state[where]), batch.labels_N, batch.row_N, len(batch))
        if layer is not None:
            answers.hidden_ND = decoded.hidden_states[layer + 1][where]
        return answers

    def hidden(self, batch: Batch) -> Tensor:
        """Last hidden states at the positions that predict an answer token: [N, D]."""
        return self._decoded(batch).last_hidden_state[batch.row_N, batch.position_N]  # type: ignore[no-any-return]

    def _decoded(self, batch: Batch, **options: bool) -> Any:
        return self.model.get_decoder()(
            input_ids=batch.input_ids_BT, attention_mask=batch.attention_mask_BT, use_cache=False, **options
        )

    def output(self, hidden_ND: Tensor) -> Tensor:
        """The output layer: [N, D] -> [N, V]."""
        return self.model.get_output_embeddings()(hidden_ND)  # type: ignore[no-any-return]


def check_output_layer(model: Any, batch: Batch) -> None:
    """Decoder + output layer must be the model's own logits: some architectures scale or cap them afterwards.

    Raises UserError where they differ, before anything is trained on the wrong numbers.
    """
    with torch.no_grad():
        ours_NV = AnswerModel(model)(batch).logits_NV.float()
        own_BTV = model(input_ids=batch.input_ids_BT, attention_mask=batch.attention_mask_BT, use_cache=False).logits
    own_NV = own_BTV[batch.row_N, batch.position_N].float()
    tolerance = 1e-4 if own_BTV.dtype == torch.float32 else 5e-2
    if not torch.allclose(ours_NV, own_NV, rtol=tolerance, atol=tolerance):
        raise UserError(
            f"model.path: {type(model).__name__} changes its logits after the output layer (largest difference "
            f"{(ours_NV - own_NV).abs().max():.3g}), which is not supported"
        )
