"""Supervised training: how a step is cut changes nothing, and a divergence names its setting."""

from __future__ import annotations

import pytest
import torch

from tests.helpers import tiny_model, tiny_setup
from unlearn.config import FinetuneConfig
from unlearn.errors import Diverged
from unlearn.training.finetune import finetune

CPU = torch.device("cpu")
SETTINGS = FinetuneConfig(epochs=2, lr=1e-3, batch_size=8)


def trained(micro_batch_size: int | None) -> tuple[float, torch.Tensor]:
    _, benchmark, _, encoder = tiny_setup()
    model = tiny_model()
    rows = encoder.answers(benchmark.sets["retain"])
    nll = finetune(model, rows, SETTINGS, 0, CPU, encoder.pad_id, "training", micro_batch_size)
    return nll, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("micro", [1, 3])
def test_micro_batches_change_nothing(micro: int) -> None:
    (nll, weights), (whole_nll, whole) = trained(micro), trained(None)
    assert nll == pytest.approx(whole_nll, rel=1e-5)
    torch.testing.assert_close(weights, whole, rtol=1e-4, atol=1e-5)


def test_a_divergence_names_the_learning_rate_to_lower() -> None:
    _, benchmark, _, encoder = tiny_setup()
    model = tiny_model()
    with torch.no_grad():
        model.get_output_embeddings().weight[0, 0] = torch.nan
    rows = encoder.answers(benchmark.sets["retain"])
    with pytest.raises(Diverged, match=r"training: the loss is nan at step 1 of 4; lower method.forget.reinforce_lr"):
        finetune(
            model, rows, SETTINGS, 0, CPU, encoder.pad_id, "training", lr_key="method.forget.reinforce_lr"
        )  # fmt: skip
