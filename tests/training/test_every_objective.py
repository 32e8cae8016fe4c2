"""Properties of one optimizer step that hold for every registered objective on a real (tiny) model.

Nothing here names an objective: one that is registered is tested.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import compose_run, tiny_model, tiny_setup
from unlearn.data import alternates
from unlearn.data.batches import Batch, micro_batches
from unlearn.data.encode import Row
from unlearn.objectives.forget import FORGET
from unlearn.objectives.logprobs import AnswerModel
from unlearn.objectives.objective import Objective
from unlearn.objectives.retain import RETAIN
from unlearn.training.start import StartModel
from unlearn.training.step import backward

OBJECTIVES = {f"forget-{name}": cls() for name, cls in FORGET.items() if cls().active} | {
    f"retain-{name}": cls() for name, cls in RETAIN.items() if cls().active
}
every_objective = pytest.mark.parametrize("name", OBJECTIVES)


@cache
def rows() -> tuple[list[Row], dict[str, Row]]:
    """Four rows of different lengths, and an alternate answer to each."""
    _, benchmark, _, encoder = tiny_setup()
    examples = benchmark.sets["forget"][:4]
    other = alternates.load("shuffled", examples, encoder, 0)
    return encoder.answers(examples), {id: options[0] for id, options in other.items()}


@cache
def config() -> Any:
    return compose_run("method=gdiff")


def moved_model() -> Any:
    """A policy that has left its start model: otherwise terms that compare the two are all zero."""
    model = tiny_model()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model


def start_model(objective: Objective, policy: Any, dtype: torch.dtype = torch.float32) -> StartModel:
    side = "forget" if type(objective) in FORGET.values() else "retain"
    cfg = copy.deepcopy(config())
    setattr(cfg.method, side, objective)
    chosen, other = rows()
    begin = StartModel(cfg, AnswerModel(tiny_model().to(dtype)), tiny_setup()[3], nullcontext)
    begin.remember(objective, micro_batches([*chosen, *other.values()], 8, 0))
    begin.freeze(torch.device("cpu"), on_host=False)
    begin.reinforced = AnswerModel(copy.deepcopy(tiny_model(seed=2)).to(dtype))
    begin.policy = AnswerModel(policy)
    return begin


def gradient(
    objective: Objective, batches: Sequence[Batch], dtype: torch.dtype = torch.float32
) -> tuple[float, Tensor]:
    """Loss and gradient over all parameters of one step on these batches."""
    model = moved_model().to(dtype)
    done = backward(start_model(objective, model, dtype).complete, objective, batches, nullcontext, 3, 1.0)
    return done.loss, torch.cat([
        (torch.zeros_like(p) if p.grad is None else p.grad).flatten().double() for p in model.parameters()
    ])  # fmt: skip


def batches(size: int = 4, order: Sequence[int] = (0, 1, 2, 3)) -> list[Batch]:
    chosen, other = rows()
    return micro_batches([chosen[place] for place in order], size, tiny_setup()[3].pad_id, other)


def assert_same(found: tuple[float, Tensor], expected: tuple[float, Tensor], rel: float = 1e-5) -> None:
    assert found[0] == pytest.approx(expected[0], rel=rel, abs=1e-7)
    assert expected[1].norm() > 0
    assert (found[1] - expected[1]).norm() <= rel * expected[1].norm()


@cache
def whole(name: str) -> tuple[float, Tensor]:
    return gradient(OBJECTIVES[name], batches())


@every_objective
@pytest.mark.parametrize("size", [1, 2])
def test_accumulation_changes_nothing(name: str, size: int) -> None:
    """Rows have different lengths: a mean of means over micro-batches would differ (fault L15)."""
    assert_same(gradient(OBJECTIVES[name], batches(size)), whole(name))


@every_objective
def test_the_order_of_rows_changes_nothing(name: str) -> None:
    assert_same(gradient(OBJECTIVES[name], batches(order=(2, 0, 3, 1))), whole(name))


def padded(batch: Batch, columns: int, left: bool, token: int) -> Batch:
    """The batch with columns of padding on one side: ignored positions, whatever token stands there."""
    fill = torch.full((len(batch), columns), token)
    sides = [fill, batch.input_ids_BT] if left else [batch.input_ids_BT, fill]
    masks = [torch.zeros_like(fill), batch.attention_mask_BT]
    alternate = padded(batch.alternate, columns, left, token) if batch.alternate is not None else None
    return replace(
        batch,
        input_ids_BT=torch.cat(sides, 1),
        attention_mask_BT=torch.cat(masks if left else masks[::-1], 1),
        position_N=batch.position_N + (columns if left else 0),
        alternate=alternate,
    )


@every_objective
@pytest.mark.parametrize(("columns", "left"), [(7, False), (5, True)])
def test_padding_changes_nothing_on_either_side(name: str, columns: int, left: bool) -> None:
    """Neither its amount nor its side (faults L5, L6): a model with rotary positions sees distances only."""
    found = gradient(OBJECTIVES[name], [padded(batch, columns, left, token=7) for batch in batches()])
    assert_same(found, whole(name), rel=1e-4)


@every_objective
def test_bf16_weights_give_nearly_the_same_loss_and_direction(name: str) -> None:
    (low_loss, low), (loss, full) = gradient(OBJECTIVES[name], batches(), torch.bfloat16), whole(name)
    assert torch.dot((low / low.norm()), (full / full.norm())) > 0.97
    assert low_loss == pytest.approx(loss, rel=0.05, abs=0.02)
