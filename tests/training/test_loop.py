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
from unlearn.config import conf_dir
from unlearn.data import alternates
from unlearn.data.batches import collate
from unlearn.errors import Diverged
from unlearn.objectives.logprobs import AnswerModel
from unlearn.training.loop import Outcome, Unlearning
from unlearn.training.step import mean_nll, sequence_logp
from unlearn.training.weights import StartWeights

SMALL = ("trainer.batch_size=4", "trainer.stop=none", "trainer.max_steps=4", "scheduler.interval=2")


def unlearning(cfg: Any, model: Any, on_step: Any) -> Unlearning:
    _, benchmark, _, encoder = tiny_setup()
    rows = {name: encoder.answers(benchmark.sets[name]) for name in ("forget", "retain", "holdout")}
    other = alternates.load("shuffled", benchmark.sets["forget"], encoder, 0)
    other |= alternates.load("refusals", benchmark.sets["retain"], encoder, 0)
    return Unlearning(cfg, model, rows, other, encoder, torch.device("cpu"), on_step)


def unlearn(*overrides: str, seed: int = 0, steps_of_autolr: bool = True) -> tuple[Any, list[dict[str, Any]], Outcome]:
    """Train a fresh tiny model; returns it, its log lines and the outcome."""
    words = SMALL if steps_of_autolr else SMALL[:-1]
    cfg = compose_run(*words, *overrides)
    lines: list[dict[str, Any]] = []
    model = tiny_model(seed)
    return model, lines, unlearning(cfg, model, lines.append).train()


def weights(model: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


CUT = ["gdiff", "kl", "npo", "lossnorm", "ngdiff", "ngdiff_auto"]
CUT += ["dpo", "npo_sam", "dualoptim", "pdu", "famo", "idk_ap"]


@pytest.mark.parametrize("method", CUT)
def test_one_and_four_micro_batches_give_the_same_run(method: str) -> None:
    own = method.startswith("ngdiff")
    lr = 5e-4 if method == "pdu" else 0.05  # its multiplier begins at 100
    words = (f"method={method}", "optimizer=sgd", f"optimizer.lr={lr}", *(() if own else ("scheduler=constant",)))
    whole, lines, _ = unlearn(*words, steps_of_autolr=own)
    cut, cut_lines, _ = unlearn(*words, "trainer.micro_batch_size=1", steps_of_autolr=own)
    for line, cut_line in zip(lines, cut_lines, strict=True):
        for key in ("lr", "norm", "loss_forget", "loss_retain", "weight_forget", "weight_retain"):
            assert cut_line[key] == pytest.approx(line[key], rel=2e-5, abs=1e-7), (line["step"], key)
    torch.testing.assert_close(weights(cut), weights(whole), rtol=1e-5, atol=1e-6)


PRESETS = sorted(path.stem for path in (conf_dir() / "method").glob("*.yaml") if path.stem != "none")


@pytest.mark.parametrize("method", PRESETS)
def test_every_preset_takes_two_steps(method: str) -> None:
    """With its own scheduler, optimizer, rule and wrappers: finite numbers, and weights that have moved."""
    _, lines, outcome = unlearn(f"method={method}", "trainer.max_steps=2", "trainer.stop=none", steps_of_autolr=False)
    assert len(lines) == 2
    losses = [line[key] for line in lines for key in ("loss_forget", "loss_retain", "norm") if line[key] is not None]
    assert losses
    assert all(math.isfinite(value) for value in losses)
    assert outcome.changed_tensors > 0
    assert math.isfinite(outcome.relative_l2)


def test_one_step_of_gdiff_is_the_gradient_of_the_mean_over_all_tokens() -> None:
    """Two micro-batches of unequal length: mean over tokens, not mean of means."""
    model, lines, _ = unlearn(
        "method=gdiff", "optimizer=sgd", "optimizer.lr=0.1", "trainer.max_steps=1", "trainer.micro_batch_size=1",
        steps_of_autolr=False,
    )  # fmt: skip
    _, benchmark, _, encoder = tiny_setup()
    by_hand = tiny_model()
    cfg = compose_run(*SMALL[:-1], "method=gdiff")
    from unlearn.training.feed import pairing

    forget, retain = (encoder.answers(benchmark.sets[name]) for name in ("forget", "retain"))
    forget_rows, retain_rows = pairing(cfg, [len(forget)], len(retain)).at(0)
    nll = [
        -AnswerModel(by_hand)(collate([rows[k] for k in places], encoder.pad_id)).logp_N.mean()
        for rows, places in ((forget, forget_rows), (retain, retain_rows))
    ]
    assert lines[0]["loss_forget"] == pytest.approx(-nll[0].item(), rel=1e-6)
    assert lines[0]["nll_retain"] == pytest.approx(nll[1].item(), rel=1e-6)
    (nll[1] - nll[0]).backward()
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
    npo, npo_lines, _ = unlearn("method=npo", "method/retain=none", "trainer.max_steps=1", "optimizer=sgd",
                                steps_of_autolr=False)  # fmt: skip
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
    model = tiny_model()
    lines: list[dict[str, Any]] = []
    training = unlearning(compose_run(*SMALL, "method=ngdiff"), model, lines.append)
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


@pytest.mark.parametrize("stop", ["auto", "holdout"])
def test_a_run_without_a_forget_objective_is_not_watched(stop: str) -> None:
    _, lines, outcome = unlearn("method=finetune", f"trainer.stop={stop}", steps_of_autolr=False)
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
    from unlearn.training.feed import pairing

    cfg = compose_run(*overrides)
    assert pairing(cfg, [40], 160).total == steps


REQUESTS = ("data.requests=3", "trainer.max_steps=6", "trainer.batch_size=3", "optimizer.lr=0.01")


def test_every_removal_request_is_measured_when_it_ends() -> None:
    """Fault M26: three stages, three different rows; each covers this and all earlier requests."""
    model, lines, outcome = unlearn("method=gdiff", *REQUESTS, steps_of_autolr=False)
    assert [entry["request"] for entry in outcome.requests] == [1, 2, 3]
    assert [entry["rows"] for entry in outcome.requests] == [2, 5, 8]  # 8 rows in parts of 2, 3, 3
    assert len({entry["nll"] for entry in outcome.requests}) == 3
    assert len(lines) == 6
    _, benchmark, _, encoder = tiny_setup()
    rows = encoder.answers(benchmark.sets["forget"])
    nll = mean_nll(AnswerModel(model), [collate(rows, encoder.pad_id)], nullcontext)
    assert outcome.requests[-1]["nll"] == pytest.approx(nll, rel=1e-5), "the last one is the model that is returned"


def test_a_task_vector_is_subtracted_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """theta_start - 5 (theta_trained - theta_start), where the trained weights are those of the plain descent."""
    words = ("method=task_vector", "optimizer.lr=0.003")
    model, lines, _ = unlearn(*words, steps_of_autolr=False)
    descended, plain, _ = unlearn(*words, "method.forget.scale=1e-9", steps_of_autolr=False)
    assert [line["nll_forget"] for line in lines] == [line["nll_forget"] for line in plain]
    assert lines[-1]["nll_forget"] < lines[0]["nll_forget"], "the forget rows are learned better first"
    start = weights(tiny_model())
    torch.testing.assert_close(weights(descended), start, rtol=0, atol=1e-6)
    cfg = compose_run(*SMALL[:-1], *words)
    trained_model = tiny_model()
    training = unlearning(cfg, trained_model, lambda line: None)
    monkeypatch.setattr(StartWeights, "negate", lambda self, scale: None)
    training.train()
    trained = weights(trained_model)
    assert not torch.equal(trained, start)
    torch.testing.assert_close(weights(model), start - 5 * (trained - start), rtol=1e-5, atol=1e-6)


def test_sequential_task_vectors_go_on_from_the_weights_as_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """SSU: request 2 is learned from where request 1 ended, and only what is given out is negated."""
    model, lines, outcome = unlearn(
        "method=task_vector", "method.forget.scale=1", "data.requests=2", "trainer.max_steps=4", "optimizer=sgd",
        "optimizer.lr=0.05", steps_of_autolr=False,
    )  # fmt: skip
    cfg = compose_run(*SMALL[:-1], "method=task_vector", "data.requests=2", "trainer.max_steps=4", "optimizer=sgd",
                      "optimizer.lr=0.05")  # fmt: skip
    trained_model = tiny_model()
    plain: list[dict[str, Any]] = []
    training = unlearning(cfg, trained_model, plain.append)
    monkeypatch.setattr(StartWeights, "negate", lambda self, scale: None)
    training.train()
    assert [line["nll_forget"] for line in lines] == [line["nll_forget"] for line in plain]
    start = weights(tiny_model())
    torch.testing.assert_close(weights(model), 2 * start - weights(trained_model), rtol=1e-5, atol=1e-6)
    assert outcome.requests[0]["nll"] > plain[0]["nll_forget"], "measured on the negated weights"


def test_a_target_ends_the_run_and_says_so() -> None:
    _, lines, outcome = unlearn(
        "method=gdiff", "trainer.stop_forget_nll=8", "trainer.max_steps=60", "optimizer.lr=0.01", steps_of_autolr=False
    )
    assert outcome.stop is not None
    assert outcome.stop.step == len(lines) < 60
    assert "reached the target 8" in outcome.stop.reason
    assert (lines[-1]["nll_forget"] + lines[-2]["nll_forget"]) / 2 >= 8


def test_a_collapse_ends_the_run() -> None:
    _, lines, outcome = unlearn(
        "method=gdiff", "method.gamma=20", "trainer.stop_retain_ratio=1.2", "trainer.max_steps=60",
        "optimizer.lr=0.02", steps_of_autolr=False,
    )  # fmt: skip
    assert outcome.stop is not None
    assert outcome.stop.reason.startswith("collapsed")
    assert len(lines) < 60


def test_the_reference_rule_is_asked_after_each_epoch() -> None:
    asked: list[int] = []
    lines: list[dict[str, Any]] = []
    training = unlearning(
        compose_run(*SMALL[:-1], "method=gdiff", "trainer.stop=reference"), tiny_model(), lines.append
    )

    def known() -> float:
        asked.append(len(lines))
        return 0.5 if len(asked) < 2 else 0.1

    training.knowledge = (known, 0.2, "forget.prob")
    outcome = training.train()
    assert asked == [2, 4], "8 rows in batches of 4"
    assert outcome.stop is not None
    assert outcome.stop.reason == "after an epoch forget.prob of 0.100 is at most the reference's 0.200"


def test_alternates_take_turns_over_the_epochs() -> None:
    training = unlearning(compose_run(*SMALL[:-1], "method=dpo"), tiny_model(), lambda line: None)
    used: dict[str, list[int]] = {}
    for step in range(4):
        for batch in training.feed.at(step)[0]:
            assert batch.alternate is not None
            for id, other in zip(batch.ids, batch.alternate.ids, strict=True):
                assert other.startswith(f"{id}#")
                used.setdefault(id, []).append(int(other.rpartition("#")[2]))
    assert all(turns == [0, 1] for turns in used.values()), "one in the first epoch, the next in the second"


@pytest.mark.parametrize("method", ["gdiff", "kl", "npo", "rmu", "ssu", "dualoptim", "ngdiff_adam"])
def test_methods_train_an_adapter_and_leave_the_weights_below_it(method: str) -> None:
    from unlearn.models.adapter import attach
    from unlearn.models.trainable import select

    cfg = compose_run(*SMALL[:-1], f"method={method}", "scheduler=constant", "model/adapter=lora")
    model = attach(tiny_model(), cfg.model.adapter, 0)
    select(model, cfg.method.forget, cfg.trainer.params, cfg.trainer.layers)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    lines: list[dict[str, Any]] = []
    unlearning(cfg, model, lines.append).train()
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(before[name], parameter)}
    assert moved
    assert all("lora_" in name for name in moved)
    assert len(lines) == 4


def test_every_request_has_a_schedule_and_a_first_probe_of_its_own() -> None:
    words = ("data.requests=2", "trainer.max_steps=6", "trainer.batch_size=3")
    _, lines, _ = unlearn("method=gdiff", "scheduler=linear", *words, steps_of_autolr=False)
    rates = [line["lr"] for line in lines]
    assert rates[:3] == rates[3:]
    assert rates[0] > rates[1] > rates[2]
    _, lines, _ = unlearn("method=ngdiff", "scheduler.interval=5", *words)
    assert ["probe" in line for line in lines] == [True, False, False] * 2


def test_what_did_not_move_is_not_moved_by_the_negation() -> None:
    _, _, outcome = unlearn("method=task_vector", "optimizer=sgd", "optimizer.lr=1e-46", steps_of_autolr=False)
    assert outcome.changed_tensors == 0


def test_dropout_depends_on_the_seed_alone() -> None:
    from unlearn.models.adapter import LoRA, attach

    def run() -> Tensor:
        model = attach(tiny_model(), LoRA(dropout=0.5), 0)
        unlearning(compose_run(*SMALL[:-1], "method=gdiff"), model, lambda line: None).train()
        return weights(model)

    torch.manual_seed(1)
    first = run()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(run(), first)
    assert torch.equal(torch.get_rng_state(), state), "and the global random state is left alone"


def test_a_run_leaves_no_gradients_behind() -> None:
    model, _, _ = unlearn("method=gdiff", steps_of_autolr=False)
    assert all(parameter.grad is None for parameter in model.parameters())
