"""Two gradients kept apart, combined into one, against autograd on the sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unlearn.gradients.collect import Pass, combined_gradient, gram_matrix
from unlearn.gradients.combine import Linear, LossNorm, NGDiff


def parameters() -> list[Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([[3.0]], requires_grad=True)]


def backward_of(loss_of: object, params: list[Tensor]) -> object:
    def backward(scale: float) -> Pass:
        loss = loss_of(params)  # type: ignore[operator]
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
        backward_of(retain_loss, params),
        backward_of(forget_loss, params),  # type: ignore[arg-type]
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
        Linear(c=0.3),
        backward_of(retain_loss, params),
        backward_of(forget_loss, params),  # type: ignore[arg-type]
    )
    (0.3 * retain_loss(summed) + 0.7 * forget_loss(summed)).backward()
    for parameter, other in zip(params, summed, strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)
    assert combined.gram is None, "fixed weights need no second gradient"


def test_weights_of_zero_run_no_pass() -> None:
    params = parameters()

    def never(scale: float) -> Pass:
        raise AssertionError("ran a pass for a weight of 0")

    combined = combined_gradient(params, Linear(c=0.0), never, backward_of(forget_loss, params))  # type: ignore[arg-type]
    assert combined.retain is None
    torch.testing.assert_close(params[0].grad, torch.tensor([-1.0, -3.0]))
    assert params[1].grad is None


def test_one_objective_alone_is_normalised() -> None:
    params = parameters()
    combined = combined_gradient(params, NGDiff(), None, backward_of(forget_loss, params))  # type: ignore[arg-type]
    torch.testing.assert_close(params[0].grad, torch.tensor([-1.0, -3.0]) / 10**0.5)
    assert combined.weights.retain == 0
    assert combined.norm == pytest.approx(1.0)


def test_lossnorm_divides_by_the_losses() -> None:
    params = parameters()
    combined = combined_gradient(
        params,
        LossNorm(),
        backward_of(retain_loss, params),
        backward_of(forget_loss, params),  # type: ignore[arg-type]
    )
    assert combined.weights == pytest.approx((1 / 8, 1 / 7))  # L_R = 1 + 4 + 3, L_F = -(1 + 6)
    torch.testing.assert_close(params[0].grad, torch.tensor([2 / 8 - 1 / 7, 4 / 8 - 3 / 7]))


def test_norms_come_after_accumulation() -> None:
    """Micro gradients (1, 0) and (-1, 0.2): the mean is (0, 0.1), of norm 0.1; the mean of norms would be 1.01."""
    mean = [torch.tensor([0.0, 0.1])]
    assert gram_matrix(mean, mean).norm_retain == pytest.approx(0.1)


def test_a_bf16_gradient_is_summed_in_fp32() -> None:
    """65,536 ones: a bf16 running sum stops growing at 256."""
    ones = [torch.ones(2**16, dtype=torch.bfloat16)]
    assert gram_matrix(ones, ones).rr == 2**16


def test_not_finite_is_seen() -> None:
    params = parameters()
    nan = backward_of(lambda params: params[0].sum() * float("nan"), params)
    combined = combined_gradient(params, NGDiff(), backward_of(retain_loss, params), nan)  # type: ignore[arg-type]
    assert not combined.finite
