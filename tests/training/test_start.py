"""What is known of the start model: computed once, from the right model, and checked before the first step."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from tests.helpers import compose_run, tiny_model, tiny_setup
from unlearn.data.batches import Batch, micro_batches
from unlearn.errors import UserError
from unlearn.models.adapter import LoRA, attach
from unlearn.objectives.distribution import AdversarialLabel, RandomLabel
from unlearn.objectives.forget import NPO, Ascent
from unlearn.objectives.logprobs import AnswerModel
from unlearn.objectives.retain import KL
from unlearn.training.start import StartModel

CPU = torch.device("cpu")


def batches() -> list[Batch]:
    _, benchmark, _, encoder = tiny_setup()
    return micro_batches(encoder.answers(benchmark.sets["forget"][:4]), 2, encoder.pad_id)


def started(model: Any, *words: str) -> StartModel:
    return StartModel(compose_run(*words), AnswerModel(model), tiny_setup()[3], nullcontext)


def nudge(model: Any, size: float = 1e-3) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size


def test_the_log_probabilities_are_those_from_before_the_first_step() -> None:
    model = tiny_model()
    start = started(model, "method=npo")
    answers = AnswerModel(tiny_model())(batches()[0])
    expected_B = answers.per_row(answers.logp_N).tolist()
    start.remember(NPO(), batches())
    nudge(model)
    completed = start.complete(NPO(), batches()[0], step=5)
    assert completed.reference_logp_B is not None
    assert completed.reference_logp_B.tolist() == pytest.approx(expected_B)
    assert (completed.per_row(completed.logp_N) - completed.reference_logp_B).abs().min() > 1e-4


def test_an_objective_gets_what_it_needs_and_nothing_else() -> None:
    completed = started(tiny_model(), "method=gdiff").complete(Ascent(), batches()[0], step=0)
    others = (completed.reference_logp_B, completed.reference_logits_NV, completed.targets_N, completed.alternate)
    assert others == (None, None, None, None)


@pytest.mark.parametrize(("adapter", "on_host"), [(False, False), (False, True), (True, False)])
def test_the_whole_distribution_comes_from_the_start_model(adapter: bool, on_host: bool) -> None:
    """From a frozen copy, or from the policy with its adapter off: in both cases to the bit what it was."""
    model = attach(tiny_model(), LoRA(), 0) if adapter else tiny_model()
    before = AnswerModel(tiny_model())(batches()[0]).logits_NV
    start = started(model, "method=kl")
    start.freeze(CPU, on_host)
    assert (start.frozen is None) is adapter, "an adapter needs no copy"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not adapter or "lora_B" in name:
                parameter += 0.01
    completed = start.complete(KL(), batches()[0], step=0)
    assert completed.reference_logits_NV is not None
    assert torch.equal(completed.reference_logits_NV, before)
    assert not torch.equal(completed.logits_NV, before)
    assert completed.logits_NV.requires_grad
    assert not completed.reference_logits_NV.requires_grad


def test_adversarial_labels_are_the_start_models_first_choice_other_than_the_truth() -> None:
    model = tiny_model()
    start = started(model, "method=adversarial_label")
    start.remember(AdversarialLabel(), batches())
    batch = batches()[1]
    logits_NV = AnswerModel(model)(batch).logits_NV
    nudge(model, 0.1)
    targets_N = start.complete(AdversarialLabel(), batch, step=3).targets_N
    assert targets_N is not None
    for n, label in enumerate(batch.labels_N.tolist()):
        ranked = logits_NV[n].argsort(descending=True).tolist()
        assert targets_N[n] == next(token for token in ranked if token != label)


def test_random_labels_are_drawn_again_at_each_step() -> None:
    start = started(tiny_model(), "method=random_label")
    first, again, later = (start.complete(RandomLabel(), batches()[0], step).targets_N for step in (0, 0, 1))
    assert first is not None
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


@pytest.mark.parametrize("objective", [NPO(), KL()], ids=["npo", "kl"])
def test_a_policy_that_has_moved_is_refused_before_the_first_step(objective: Any) -> None:
    """Fault L8: the reference is the model before unlearning, and the log-ratio starts at 0."""
    model = tiny_model()
    start = started(model, "method=npo" if isinstance(objective, NPO) else "method=kl")
    start.remember(objective, batches())
    start.freeze(CPU, on_host=False)
    start.check(objective, batches())
    nudge(model, 1e-2)
    with pytest.raises(UserError, match=rf"method {objective.name}: needs a policy that equals its reference"):
        start.check(objective, batches())
