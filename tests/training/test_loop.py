"""The optimizer steps on a model of two layers: same numbers however a step is cut, and every way a run may end."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import compose_run, tiny_model, tiny_setup
from unlearn.data.batches import collate
from unlearn.errors import Diverged
from unlearn.objectives.logprobs import AnswerModel
from unlearn.training.loop import Outcome, Unlearning, total_steps
from unlearn.training.step import mean_nll, sequence_logp
from unlearn.training.stop import HoldoutStop

SMALL = ("trainer.batch_size=4", "trainer.stop=none", "trainer.max_steps=4", "scheduler.interval=2")


def unlearn(*overrides: str, seed: int = 0, steps_of_autolr: bool = True) -> tuple[Any, list[dict[str, Any]], Outcome]:
    """Train a fresh tiny model; returns it, its log lines and the outcome."""
    words = SMALL if steps_of_autolr else SMALL[:-1]
    cfg = compose_run(*words, *overrides)
    _, benchmark, _, encoder = tiny_setup()
    rows = [encoder.answers(benchmark.sets[name]) for name in ("forget", "retain", "holdout")]
    lines: list[dict[str, Any]] = []
    model = tiny_model(seed)
    training = Unlearning(cfg, model, *rows, encoder.pad_id, torch.device("cpu"), lines.append)
    return model, lines, training.train()


def weights(model: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


METHODS = ["gdiff", "kl", "npo", "lossnorm", "ngdiff", "ngdiff_auto"]


@pytest.mark.parametrize("method", METHODS)
def test_one_and_four_micro_batches_give_the_same_run(method: str) -> None:
    constant = () if method.startswith("ngdiff") else ("scheduler=constant",)
    sgd = ("optimizer=sgd", "optimizer.lr=0.05")
    own = method.startswith("ngdiff")
    whole, lines, _ = unlearn(f"method={method}", *constant, *sgd, steps_of_autolr=own)
    cut, cut_lines, _ = unlearn(f"method={method}", *constant, *sgd, "trainer.micro_batch_size=1", steps_of_autolr=own)
    for line, cut_line in zip(lines, cut_lines, strict=True):
        for key in ("lr", "norm", "loss_forget", "loss_retain", "weight_forget", "weight_retain"):
            assert cut_line[key] == pytest.approx(line[key], rel=2e-5, abs=1e-7), (line["step"], key)
    torch.testing.assert_close(weights(cut), weights(whole), rtol=1e-5, atol=1e-6)


def test_one_step_of_gdiff_is_the_gradient_of_the_mean_over_all_tokens() -> None:
    """Two micro-batches of unequal length: mean over tokens, not mean of means."""
    model, lines, _ = unlearn(
        "method=gdiff", "optimizer=sgd", "optimizer.lr=0.1", "trainer.max_steps=1", "trainer.micro_batch_size=1",
        steps_of_autolr=False,
    )  # fmt: skip
    _, benchmark, _, encoder = tiny_setup()
    by_hand = tiny_model()
    cfg = compose_run(*SMALL[:-1], "method=gdiff")
    from unlearn.training.loop import pairing

    forget, retain = (encoder.answers(benchmark.sets[name]) for name in ("forget", "retain"))
    forget_rows, retain_rows = pairing(cfg, len(forget), len(retain)).at(0)
    nll = [
        -AnswerModel(by_hand)(collate([rows[k] for k in places], encoder.pad_id)).logp_N.mean()
        for rows, places in ((forget, forget_rows), (retain, retain_rows))
    ]
    assert lines[0]["loss_forget"] == pytest.approx(-nll[0].item(), rel=1e-6)
    assert lines[0]["nll_retain"] == pytest.approx(nll[1].item(), rel=1e-6)
    (0.5 * nll[1] - 0.5 * nll[0]).backward()
    expected = torch.cat([(p - 0.1 * p.grad).detach().flatten() for p in by_hand.parameters()])
    torch.testing.assert_close(weights(model), expected, rtol=1e-5, atol=1e-7)


def test_ngdiff_logs_what_it_did() -> None:
    _, lines, _ = unlearn("method=ngdiff", "optimizer=sgd")
    for line in lines:
        assert line["norm"] ** 2 == pytest.approx(2 * (1 + line["cosine"]), rel=1e-4)
        assert line["weight_retain"] == pytest.approx(1 / line["norm_retain"])
        assert line["weight_forget"] == pytest.approx(1 / line["norm_forget"])
    assert ["probe" in line for line in lines] == [True, False, True, False]
    assert lines[1]["lr"] == lines[0]["lr"], "between two probes the lr stays"
    json.dumps(lines, allow_nan=False)


def test_npo_starts_as_ascent() -> None:
    """At the start model the two have the same gradient, up to token mean against sequence mean: same direction."""
    npo, npo_lines, _ = unlearn("method=npo", "method/retain=none", "method.combine.c=0", "trainer.max_steps=1",
                                "optimizer=sgd", steps_of_autolr=False)  # fmt: skip
    assert npo_lines[0]["loss_forget"] == pytest.approx(2 / 0.1 * math.log(2), rel=1e-5)
    ascent, _, _ = unlearn("method=ga", "trainer.max_steps=1", "optimizer=sgd", steps_of_autolr=False)
    start = weights(tiny_model()).double()
    moves = [weights(model).double() - start for model in (npo, ascent)]
    assert torch.cosine_similarity(moves[0], moves[1], dim=0) > 0.99


def test_kl_starts_at_zero_and_holds_the_start_models_distribution() -> None:
    _, lines, _ = unlearn("method=kl", "optimizer.lr=0.01", steps_of_autolr=False)
    assert lines[0]["loss_retain"] == pytest.approx(0.0, abs=1e-6)
    assert lines[-1]["loss_retain"] > 1e-4


def test_the_same_seed_gives_the_same_run_to_the_bit_and_another_seed_another_order() -> None:
    first, lines, _ = unlearn("method=ngdiff")
    again, again_lines, _ = unlearn("method=ngdiff")
    other, _, _ = unlearn("method=ngdiff", "seed=1")
    assert torch.equal(weights(first), weights(again))
    volatile = {"seconds", "tokens_per_s"}
    assert [{k: v for k, v in line.items() if k not in volatile} for line in lines] == [
        {k: v for k, v in line.items() if k not in volatile} for line in again_lines
    ]
    assert not torch.equal(weights(first), weights(other))


def test_the_global_random_state_decides_nothing() -> None:
    torch.manual_seed(1)
    first, _, _ = unlearn("method=ngdiff")
    torch.manual_seed(2)
    second, _, _ = unlearn("method=ngdiff")
    assert torch.equal(weights(first), weights(second))


def test_gradient_checkpointing_changes_no_number() -> None:
    plain, _, _ = unlearn("method=ngdiff", "optimizer=sgd")
    saved, _, _ = unlearn("method=ngdiff", "optimizer=sgd", "trainer.gradient_checkpointing=true")
    torch.testing.assert_close(weights(saved), weights(plain), rtol=1e-6, atol=1e-7)


def test_clipping_bounds_the_step() -> None:
    _, lines, _ = unlearn("method=gdiff", steps_of_autolr=False)
    clip = 0.5 * lines[0]["norm"]
    model, clipped, _ = unlearn(
        "method=gdiff", f"trainer.clip_norm={clip}", "optimizer=sgd", "optimizer.lr=0.1", "trainer.max_steps=1",
        steps_of_autolr=False,
    )  # fmt: skip
    moved = (weights(model) - weights(tiny_model())).norm().item()
    assert moved == pytest.approx(0.1 * clip, rel=1e-4)
    assert clipped[0]["norm"] == pytest.approx(lines[0]["norm"], rel=1e-5), "the log shows the norm before clipping"


@pytest.mark.parametrize("precision", ["bf16_mixed", "bf16"])
def test_low_precision_runs_near_full_precision(precision: str) -> None:
    _, full, _ = unlearn("method=ngdiff", "optimizer=sgd")
    _, low, outcome = unlearn("method=ngdiff", "optimizer=sgd", f"trainer.precision={precision}")
    assert low[0]["loss_retain"] == pytest.approx(full[0]["loss_retain"], rel=0.02)
    assert low[0]["norm_retain"] == pytest.approx(full[0]["norm_retain"], rel=0.05)
    assert outcome.changed_tensors > 0


def test_mixed_precision_keeps_fp32_master_weights() -> None:
    model, _, _ = unlearn("method=ngdiff", "trainer.precision=bf16_mixed", "scheduler=constant", "optimizer.lr=1e-6",
                          steps_of_autolr=False)  # fmt: skip
    assert weights(model).dtype == torch.float32
    change = (weights(model) - weights(tiny_model())).abs().max().item()
    assert 0 < change < 1e-5, "steps that bf16 weights would round away"


def test_a_step_that_is_not_finite_never_reaches_the_weights() -> None:
    cfg = compose_run(*SMALL, "method=ngdiff")
    _, benchmark, _, encoder = tiny_setup()
    rows = [encoder.answers(benchmark.sets[name]) for name in ("forget", "retain", "holdout")]
    model = tiny_model()
    lines: list[dict[str, Any]] = []
    training = Unlearning(cfg, model, *rows, encoder.pad_id, torch.device("cpu"), lines.append)
    poisoned: list[Tensor] = []

    def poison(line: dict[str, Any]) -> None:
        lines.append(line)
        if line["step"] == 2:
            with torch.no_grad():
                model.get_output_embeddings().weight[5, 0] = math.nan
            poisoned.append(weights(model))

    training.on_step = poison
    with pytest.raises(Diverged, match=r"step 3 of 4: retain loss nan, forget loss nan, gradient norm nan"):
        training.train()
    assert len(lines) == 2
    torch.testing.assert_close(weights(model), poisoned[0], equal_nan=True, rtol=0, atol=0)


def test_the_holdout_rule_needs_a_whole_pass_and_both_levels() -> None:
    rule = HoldoutStop(holdout_nll=2.0, holdout_prob=0.1, window=3)
    assert rule.reached(9.0, 0.0) is None
    assert rule.reached(0.0, 0.0) is None
    assert rule.reached(0.0, 0.0) is not None, "mean loss 3 over one pass"
    assert rule.reached(0.0, 0.0) is None, "the 9 has left the window"
    assert rule.reached(6.0, 0.9) is None, "mean loss 2, mean probability 0.3: some rows are still known"
    assert rule.reached(6.0, 0.0) is None
    assert rule.reached(6.0, 0.0) is None
    assert rule.reached(6.0, 0.0) is not None


def test_ascent_stops_at_the_holdouts_level_and_says_so() -> None:
    words = ("method=ngdiff", "trainer.stop=auto", "trainer.max_steps=60", "scheduler=constant", "optimizer.lr=0.005")
    _, lines, outcome = unlearn(*words, steps_of_autolr=False)
    assert outcome.stop is not None
    assert outcome.stop.step == outcome.steps == len(lines) < 60
    _, benchmark, _, encoder = tiny_setup()
    rows = encoder.answers(benchmark.sets["holdout"])
    answer_model, batch = AnswerModel(tiny_model()), collate(rows, encoder.pad_id)
    nll = mean_nll(answer_model, [batch], nullcontext)
    logp = sequence_logp(answer_model, [batch], nullcontext)
    prob = sum(math.exp(logp[row.id] / row.n_answer) for row in rows) / len(rows)
    assert f"the holdout's {nll:.3f}" in outcome.stop.reason
    assert f"the holdout's {prob:.3f}" in outcome.stop.reason

    def reached(window: list[dict[str, Any]]) -> bool:  # 8 rows in batches of 4: a pass is two steps
        return (
            sum(line["nll_forget"] for line in window) / 2 >= nll
            and sum(line["prob_forget"] for line in window) / 2 <= prob
        )

    assert reached(lines[-2:])
    assert not reached(lines[-3:-1])


@pytest.mark.parametrize("words", [("method=gdiff", "method.combine.c=1"), ("method=finetune", "method/forget=ascent")])
def test_a_forget_objective_of_weight_zero_is_not_watched(words: tuple[str, ...]) -> None:
    _, lines, outcome = unlearn(*words, "trainer.stop=auto", steps_of_autolr=False)
    assert outcome.stop is None
    assert [line["nll_forget"] for line in lines] == [None] * 4
    assert lines[0]["nll_retain"] > 0


def test_bounded_objectives_run_to_their_last_step() -> None:
    assert unlearn("method=npo", "trainer.stop=auto", steps_of_autolr=False)[2].stop is None


def test_a_learning_rate_that_rounding_swallows_changes_nothing_and_is_counted() -> None:
    _, _, outcome = unlearn("method=gdiff", "optimizer=sgd", "optimizer.lr=1e-46", steps_of_autolr=False)
    assert outcome.changed_tensors == 0
    assert outcome.relative_l2 == 0


def test_the_distance_from_the_start_is_the_l2_norm_of_the_change() -> None:
    model, _, outcome = unlearn("method=gdiff", "optimizer.lr=0.01", steps_of_autolr=False)
    start = weights(tiny_model())
    assert outcome.relative_l2 == pytest.approx(((weights(model) - start).norm() / start.norm()).item(), rel=1e-4)
    assert outcome.changed_tensors == outcome.tensors == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (("trainer.epochs=3", "trainer.batch_size=16"), 9),  # ceil(40 / 16) = 3 a pass
        (("trainer.epochs=3", "trainer.max_steps=5"), 5),
        (("trainer.epochs=2", "trainer.batch_size=16", "data.anchor=retain"), 20),  # ceil(160 / 16) = 10 a pass
        (("trainer.epochs=2", "trainer.batch_size=16", "method=finetune"), 20),
    ],
)
def test_the_number_of_steps(overrides: tuple[str, ...], steps: int) -> None:
    from unlearn.training.loop import pairing

    cfg = compose_run(*overrides)
    assert total_steps(cfg, pairing(cfg, 40, 160)) == steps
