"""Evaluations in the middle of training: when they come, that they leave no trace, and whose weights are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.helpers import compose_run, tiny_model
from tests.training.test_loop import unlearning, weights
from unlearn.training.keep import Keeper
from unlearn.training.loop import Outcome

# 8 forget rows in batches of 4: two steps an epoch.
THREE_EPOCHS = ("method=gdiff", "trainer.batch_size=4", "trainer.stop=none", "trainer.epochs=3", "optimizer.lr=0.01")


def trained(*overrides: str, values: Any = None, keep: str = "last") -> tuple[Any, list[Any], Outcome, list[Any]]:
    """The model, its log lines and outcome, and the calls (epoch, steps, weights) of the evaluation."""
    cfg = compose_run(*THREE_EPOCHS, *overrides)
    model, lines, calls = tiny_model(), [], []
    run = unlearning(cfg, model, lines.append)

    def on_epoch(epoch: float, steps: int) -> dict[str, Any]:
        assert not model.training
        torch.rand(3)  # whatever an evaluation draws is no business of training's
        calls.append((epoch, steps, weights(model).clone()))
        return {} if values is None else {"model_utility": {"value": values[len(calls) - 1]}}

    run.on_epoch, run.keeper = on_epoch, Keeper(keep, None)
    return model, lines, run.train(), calls


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("suite.every_epochs=1",), [(1, 2), (2, 4), (3, 6)]),
        (("suite.every_epochs=2",), [(2, 4), (3, 6)]),
        (("suite.every_epochs=1", "trainer.max_steps=3"), [(1, 2), (1.5, 3)]),
        ((), []),
    ],
)
def test_evaluations_come_after_their_epochs_and_at_the_end(words: tuple[str, ...], expected: list[Any]) -> None:
    *_, calls = trained(*words)
    assert [(epoch, steps) for epoch, steps, _ in calls] == expected


@pytest.mark.parametrize("extra", [(), ("trainer.gradient_checkpointing=true",), ("model.adapter.dropout=0.5",)])
def test_training_goes_on_as_if_nothing_had_been(extra: tuple[str, ...]) -> None:
    words = (*extra, "model/adapter=lora") if "model.adapter.dropout=0.5" in extra else extra
    plain, lines, *_ = trained(*words)
    watched, watched_lines, *_ = trained("suite.every_epochs=1", *words)
    assert torch.equal(weights(watched), weights(plain)), "to the bit"
    assert [line["loss_forget"] for line in watched_lines] == [line["loss_forget"] for line in lines]


def test_the_best_epoch_is_kept() -> None:
    model, _, outcome, calls = trained("suite.every_epochs=1", values=[0.4, 0.7, 0.6], keep="model_utility")
    assert outcome.kept == {"rule": "model_utility", "epoch": 2, "step": 4, "value": 0.7}
    assert torch.equal(weights(model), calls[1][2])
    start = weights(tiny_model())
    moved = ((weights(model) - start).norm() / start.norm()).item()
    assert outcome.relative_l2 == pytest.approx(moved, rel=1e-5), "of the weights that stay"


def test_the_last_epoch_stays_without_a_rule() -> None:
    model, _, outcome, calls = trained("suite.every_epochs=1", values=[0.7, 0.5, 0.6])
    assert outcome.kept is None
    assert torch.equal(weights(model), calls[2][2])


@pytest.mark.parametrize(
    ("rule", "reference", "values", "best"),
    [
        ("model_utility", None, [0.2, 0.5, 0.5], 1),  # higher is better; of equals the first
        ("forget.prob", None, [0.9, None, 0.1], 2),  # lower is better; a missing value is never best
        ("privleak", 0.0, [-90.0, 20.0, 60.0], 1),  # nearest to the reference
        ("privleak", None, [-90.0, 20.0, 60.0], None),  # with no reference there is nothing to be near
    ],
)
def test_what_is_best_the_metric_says(
    rule: str, reference: float | None, values: list[float | None], best: int | None
) -> None:
    parameter = torch.zeros(1)
    keeper = Keeper(rule, None if reference is None else {rule: {"value": reference}})
    for epoch, value in enumerate(values):
        parameter.fill_(epoch)
        keeper.see(epoch, epoch, {rule: {"value": value}}, [parameter])
    kept = keeper.restore([parameter])
    assert (kept and kept["epoch"]) == best
    assert parameter.item() == (len(values) - 1 if best is None else best)
