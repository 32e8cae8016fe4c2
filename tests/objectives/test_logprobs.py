"""The answers of a batch: shift, padding, and the output layer, against the model's own logits."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.helpers import tiny_model, tiny_setup
from unlearn.data.batches import collate
from unlearn.errors import UserError
from unlearn.objectives.logprobs import AnswerModel, check_output_layer


def test_log_probabilities_are_those_of_the_models_own_loss() -> None:
    _, benchmark, _, encoder = tiny_setup()
    rows = encoder.answers(benchmark.sets["forget"][:4])
    model = tiny_model()
    batch = collate(rows, encoder.pad_id)
    with torch.no_grad():
        answers = AnswerModel(model)(batch)
        for index, row in enumerate(rows):
            ids = torch.tensor([row.input_ids])
            logits = model(ids).logits[0]
            target = torch.tensor(row.input_ids[row.n_prompt :])
            own = -cross_entropy(logits[row.n_prompt - 1 : -1], target, reduction="none")
            torch.testing.assert_close(answers.logp_N[batch.row_N == index], own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pad_id", [0, 1, 2, 17])
def test_amount_and_id_of_padding_change_nothing(pad_id: int) -> None:
    """All that objectives read of a model: neither padding nor the prompt is among it, and neither moves it."""
    _, benchmark, _, encoder = tiny_setup()
    rows = encoder.answers(benchmark.sets["forget"][:3])
    longer = max(encoder.answers(benchmark.sets["retain"]), key=lambda row: len(row.input_ids))
    model = AnswerModel(tiny_model())
    with torch.no_grad():
        alone = [model(collate([row], encoder.pad_id), layer=0) for row in rows]
        batch = collate([*rows, longer], pad_id)
        together = model(batch, layer=0)
    assert len(together.labels_N) == sum(row.n_answer for row in [*rows, longer])
    for name in ("logp_N", "logits_NV", "hidden_ND"):
        padded = getattr(together, name)[batch.row_N < len(rows)]
        torch.testing.assert_close(padded, torch.cat([getattr(one, name) for one in alone]), rtol=1e-4, atol=1e-5)


def test_a_model_that_scales_its_logits_is_refused() -> None:
    _, benchmark, _, encoder = tiny_setup()
    batch = collate(encoder.answers(benchmark.sets["forget"][:2]), encoder.pad_id)
    model = tiny_model()
    check_output_layer(model, batch)
    forward = model.forward

    def doubled(**inputs: object) -> object:
        out = forward(**inputs)
        out.logits = out.logits * 2
        return out

    model.forward = doubled
    with pytest.raises(UserError, match="changes its logits after the output layer"):
        check_output_layer(model, batch)
