"""Two gradients kept apart, combined into one, against autograd on the sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from unlearn.gradients.collect import Backward, Grads, Pass, combined_gradient, gram_matrix
from unlearn.gradients.combine import CombineRule, Gram, Linear, Losses, LossNorm, NGDiff, RuleState, Weights


def parameters() -> list[Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([[3.0]], requires_grad=True)]


def backward_of(loss_of: Callable[[list[Tensor]], Tensor], params: list[Tensor]) -> Backward:
    def backward(scale: float) -> Pass:
        loss = loss_of(params)
        (scale * loss).backward()
        return Pass(loss.item(), loss.item(), 0.0)

    return backward


def retain_loss(params: list[Tensor]) -> Tensor:
    return (params[0] ** 2).sum() + params[1].sum()  # gradient ((2, 4), (1))


def forget_loss(params: list[Tensor]) -> Tensor:
    return -(params[0] * torch.tensor([1.0, 3.0])).sum()  # gradient ((-1, -3), none)


def test_ngdiff_over_tensors_uses_global_norms_and_one_missing_gradient() -> None:
    params = parameters()
    combined = combined_gradient(
        params,
        NGDiff(),
        RuleState(),
        backward_of(retain_loss, params),
        backward_of(forget_loss, params),
    )
    norm_r, norm_f = 21**0.5, 10**0.5  # 4 + 16 + 1; 1 + 9
    assert combined.gram is not None
    assert combined.gram == pytest.approx((21.0, -14.0, 10.0))  # 2 * -1 + 4 * -3
    torch.testing.assert_close(params[0].grad, torch.tensor([2 / norm_r - 1 / norm_f, 4 / norm_r - 3 / norm_f]))
    torch.testing.assert_close(params[1].grad, torch.tensor([[1 / norm_r]]))
    assert combined.norm**2 == pytest.approx(2 * (1 - 14 / (norm_r * norm_f)), rel=1e-5)


def test_linear_equals_the_gradient_of_the_weighted_sum() -> None:
    params, summed = parameters(), parameters()
    combined = combined_gradient(
        params,
        Linear(),
        RuleState(),
        backward_of(retain_loss, params),
        backward_of(forget_loss, params),
        coefficients=Weights(0.3, 0.7),
    )
    (0.3 * retain_loss(summed) + 0.7 * forget_loss(summed)).backward()
    for parameter, other in zip(params, summed, strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)
    assert combined.gram is None, "fixed weights need no second gradient"


@pytest.mark.parametrize("apart", [False, True])
def test_a_weight_of_zero_keeps_the_loss_in_sight(apart: bool) -> None:
    params, state = parameters(), RuleState()
    rule = Learning(retain=0.0)
    retain, forget = backward_of(retain_loss, params), backward_of(forget_loss, params)
    combined = combined_gradient(params, rule, state, retain, forget, apart=apart)
    assert state.values == {"retain": 8.0, "forget": -7.0}, "or the rule would never give it weight again"
    grad = combined.forget_grads[0] if combined.forget_grads is not None else params[0].grad
    torch.testing.assert_close(grad, 2 * torch.tensor([-1.0, -3.0]))
    assert combined.norm == pytest.approx(2 * 10**0.5)


def test_one_objective_alone_is_normalised() -> None:
    params = parameters()
    combined = combined_gradient(params, NGDiff(), RuleState(), None, backward_of(forget_loss, params))
    torch.testing.assert_close(params[0].grad, torch.tensor([-1.0, -3.0]) / 10**0.5)
    assert combined.weights.retain == 0
    assert combined.norm == pytest.approx(1.0)


def test_lossnorm_divides_by_the_losses() -> None:
    params = parameters()
    combined = combined_gradient(
        params,
        LossNorm(),
        RuleState(),
        backward_of(retain_loss, params),
        backward_of(forget_loss, params),
    )
    assert combined.weights == pytest.approx((1 / 8, 1 / 7))  # L_R = 1 + 4 + 3, L_F = -(1 + 6)
    torch.testing.assert_close(params[0].grad, torch.tensor([2 / 8 - 1 / 7, 4 / 8 - 3 / 7]))


def test_norms_come_after_accumulation() -> None:
    """Micro gradients (1, 0) and (-1, 0.2): the mean is (0, 0.1), of norm 0.1; the mean of norms would be 1.01."""
    params = parameters()

    def two_micro_batches(scale: float) -> Pass:
        for micro in (torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.2])):
            (scale * (params[0] * micro).sum() / 2).backward()
        return Pass(1.0, 1.0, 0.5)

    combined = combined_gradient(params, NGDiff(), RuleState(), two_micro_batches, two_micro_batches)
    assert combined.gram is not None
    assert combined.gram == pytest.approx((0.01, 0.01, 0.01))
    torch.testing.assert_close(params[0].grad, torch.tensor([0.0, 2.0]))


def test_a_bf16_gradient_is_summed_in_fp32() -> None:
    """65,536 ones: a bf16 running sum stops growing at 256."""
    ones = [torch.ones(2**16, dtype=torch.bfloat16)]
    assert gram_matrix(ones, ones).rr == 2**16


def test_not_finite_is_seen() -> None:
    params = parameters()
    nan = backward_of(lambda params: params[0].sum() * float("nan"), params)
    combined = combined_gradient(params, NGDiff(), RuleState(), backward_of(retain_loss, params), nan)
    assert not combined.finite


@dataclass
class Learning(CombineRule):
    """Weights that go on with the steps; `observe` keeps the losses it was given."""

    name: str = "learning"
    retain: float = 1.0

    def ahead(self, state: RuleState) -> Weights:
        return Weights(self.retain, 2.0 + state.step)

    def observe(self, losses: Losses, state: RuleState) -> None:
        state.values = {"retain": losses.retain, "forget": losses.forget}


@dataclass
class Signed(CombineRule):
    """Takes part of the forget gradient away again."""

    name: str = "signed"
    signed: ClassVar[bool] = True

    @property
    def fixed(self) -> Weights:
        return Weights(1.0, -0.5)


@dataclass
class InMetric(NGDiff):
    name: str = "in_metric"
    metric: ClassVar[str] = "optimizer"


def test_a_rule_that_knows_its_weights_ahead_keeps_one_gradient_and_learns_once_a_step() -> None:
    params, state = parameters(), RuleState()
    retain, forget = backward_of(retain_loss, params), backward_of(forget_loss, params)
    for step in range(2):
        combined = combined_gradient(params, Learning(), state, retain, forget)
        # (2, 4) + (2 + step) (-1, -3)
        torch.testing.assert_close(params[0].grad, torch.tensor([2.0, 4.0]) - (2 + step) * torch.tensor([1.0, 3.0]))
        assert combined.gram is None
    assert state.step == 2
    assert state.values == {"retain": 8.0, "forget": -7.0}


@pytest.mark.parametrize("apart", [False, True])
def test_a_step_that_is_not_finite_teaches_nothing(apart: bool) -> None:
    params, state = parameters(), RuleState()
    nan = backward_of(lambda params: params[0].sum() * float("nan"), params)
    for rule in (Learning(), NGDiff(), Linear()):
        combined = combined_gradient(params, rule, state, backward_of(retain_loss, params), nan, apart=apart)
        assert not combined.finite
    assert state == RuleState()


def test_a_rule_is_not_asked_about_gradients_that_are_not_finite() -> None:
    class Fussy(NGDiff):
        def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
            raise AssertionError("asked")

    params = parameters()
    overflow = backward_of(lambda params: (params[0] * 1e30).sum(), params)  # 1e60 is no fp32 number
    combined = combined_gradient(params, Fussy(), RuleState(), backward_of(retain_loss, params), overflow)
    assert not combined.finite


def test_a_negative_weight_known_ahead_is_a_pass_as_any_other() -> None:
    params = parameters()
    retain, forget = backward_of(retain_loss, params), backward_of(forget_loss, params)
    combined_gradient(params, Signed(), RuleState(), retain, forget)
    torch.testing.assert_close(params[0].grad, torch.tensor([2 + 0.5, 4 + 1.5]))


@pytest.mark.parametrize("rule", [Linear(), NGDiff(), LossNorm(), Learning()], ids=lambda rule: rule.name)
def test_coefficients_are_those_of_the_objectives(rule: CombineRule) -> None:
    """3 L_R and 5 L_F as objectives of their own, against coefficients 3 and 5."""
    params, scaled = parameters(), parameters()
    with_them, without = RuleState(), RuleState()
    found = combined_gradient(
        params,
        rule,
        with_them,
        backward_of(retain_loss, params),
        backward_of(forget_loss, params),
        coefficients=Weights(3.0, 5.0),
    )
    expected = combined_gradient(
        scaled,
        rule,
        without,
        backward_of(lambda params: 3 * retain_loss(params), scaled),
        backward_of(lambda params: 5 * forget_loss(params), scaled),
    )
    for parameter, other in zip(params, scaled, strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)
    assert found.weights == pytest.approx(expected.weights)
    assert found.gram == (pytest.approx(expected.gram) if expected.gram is not None else None)
    assert with_them == without, "the rule learns from the scaled losses"
    assert found.retain is not None
    assert found.forget is not None
    assert (found.retain.loss, found.forget.loss) == (8.0, -7.0), "what is logged is the objective itself"


@pytest.mark.parametrize("rule", [Linear(), NGDiff(), Learning()], ids=lambda rule: rule.name)
def test_apart_the_two_parts_add_up_to_the_sum(rule: CombineRule) -> None:
    params, summed = parameters(), parameters()
    coefficients = Weights(2.0, 0.5)
    parts = combined_gradient(
        params,
        rule,
        RuleState(),
        backward_of(retain_loss, params),
        backward_of(forget_loss, params),
        coefficients=coefficients,
        apart=True,
    )
    whole = combined_gradient(
        summed,
        rule,
        RuleState(),
        backward_of(retain_loss, summed),
        backward_of(forget_loss, summed),
        coefficients=coefficients,
    )
    assert parts.forget_grads is not None
    assert whole.forget_grads is None
    retain_share, forget_share = 2.0 * parts.weights.retain, 0.5 * parts.weights.forget
    torch.testing.assert_close(params[0].grad, retain_share * torch.tensor([2.0, 4.0]))
    torch.testing.assert_close(parts.forget_grads[0], forget_share * torch.tensor([-1.0, -3.0]))
    assert parts.forget_grads[1] is None
    assert params[0].grad is not None
    assert parts.forget_grads[0] is not None
    torch.testing.assert_close(params[0].grad + parts.forget_grads[0], summed[0].grad)
    assert parts.norm == pytest.approx(whole.norm)
    assert parts.gram == pytest.approx((4 * 21.0, 2 * 0.5 * -14.0, 0.25 * 10.0))


def test_a_rule_in_the_optimizers_metric_weighs_in_it_and_logs_without_it() -> None:
    """P = (4, 1), (9): |g_R|_P^2 = 4*4 + 16 + 9 = 41 and |g_F|_P^2 = 4 + 9 = 13."""
    params = parameters()
    asked: list[tuple[Grads, Grads]] = []

    def preconditioner(retain: Grads, forget: Grads) -> Iterator[Tensor]:
        asked.append((list(retain), list(forget)))
        return iter([torch.tensor([4.0, 1.0]), torch.tensor([[9.0]])])

    combined = combined_gradient(
        params,
        InMetric(),
        RuleState(),
        backward_of(retain_loss, params),
        backward_of(forget_loss, params),
        preconditioner=preconditioner,
    )
    assert combined.weights == pytest.approx((41**-0.5, 13**-0.5))
    assert combined.gram == pytest.approx((21.0, -14.0, 10.0))
    torch.testing.assert_close(params[0].grad, torch.tensor([2.0, 4.0]) / 41**0.5 - torch.tensor([1.0, 3.0]) / 13**0.5)
    assert len(asked) == 1


def test_a_rule_in_the_optimizers_metric_without_one_is_a_defect() -> None:
    params = parameters()
    retain, forget = backward_of(retain_loss, params), backward_of(forget_loss, params)
    with pytest.raises(AssertionError, match="preconditioner"):
        combined_gradient(params, InMetric(), RuleState(), retain, forget)


def peak_gradients(rule: CombineRule, apart: bool = False) -> float:
    """Most bytes allocated at once during a step over four parameters, in gradients of one parameter."""
    size = 50_000
    params = [torch.ones(size, requires_grad=True) for _ in range(4)]

    def backward(scale: float) -> Pass:
        for parameter in params:
            grad = torch.full((size,), scale)
            parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
            del grad  # or it lives until the next one is there
        return Pass(1.0, 1.0, 0.5)

    def preconditioner(retain: Grads, forget: Grads) -> Iterator[Tensor]:
        return (torch.ones(size) for _ in retain)

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        combined_gradient(params, rule, RuleState(), backward, backward, apart=apart, preconditioner=preconditioner)
    assert profiled.profiler is not None
    alive = highest = 0
    for event in sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            alive += event.nbytes()
            highest = max(highest, alive)
    return highest / (4 * size)


def test_a_rule_holds_one_more_gradient_only_if_it_looks_at_them() -> None:
    assert peak_gradients(Linear()) == pytest.approx(4 + 1, abs=0.1), "one, and a parameter's own on its way into it"
    assert peak_gradients(NGDiff()) == pytest.approx(4 + 4, abs=0.1)
    assert peak_gradients(NGDiff(), apart=True) <= 4 + 4 + 2.1, "and the sum of one parameter at a time, for the norm"
    assert peak_gradients(InMetric()) <= 4 + 4 + 3, "and P of one parameter, with its products"
