"""The forget gradient at the worst point nearby, on quadratics by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unlearn.gradients.collect import Backward, Pass, combined_gradient
from unlearn.gradients.combine import Linear, NGDiff, RuleState
from unlearn.gradients.sharpness import sharp


def quadratic(theta: Tensor, curvature: Tensor, seen: list[Tensor] | None = None) -> Backward:
    """L = sum of a theta^2 / 2, of gradient a theta."""

    def backward(scale: float) -> Pass:
        if seen is not None:
            seen.append(theta.detach().clone())
        loss = (curvature * theta**2).sum() / 2
        (scale * loss).backward()
        return Pass(loss.item(), 0.0, 0.0)

    return backward


@pytest.mark.parametrize("scale", [1.0, 0.25, -2.0])
def test_a_quadratic_by_hand(scale: float) -> None:
    """a = (1, 2) at (3, 2): g = (3, 4), |g| = 5. With rho 0.5: theta + 0.1 g = (3.3, 2.4), gradient (3.3, 4.8).

    The worst point is that of the objective, so a factor on it (of either sign) only scales the gradient found there.
    """
    theta = torch.tensor([3.0, 2.0], requires_grad=True)
    seen: list[Tensor] = []
    found = sharp(quadratic(theta, torch.tensor([1.0, 2.0]), seen), [theta], rho=0.5)(scale)
    torch.testing.assert_close(theta.grad, scale * torch.tensor([3.3, 4.8]))
    torch.testing.assert_close(seen, [torch.tensor([3.0, 2.0]), torch.tensor([3.3, 2.4])])
    assert found.loss == (9 + 2 * 4) / 2, "the loss at theta"


def test_the_parameters_return_to_the_bit_and_the_radius_spans_all_of_them() -> None:
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(7, 5, generator=generator).requires_grad_(), torch.randn(11, generator=generator)]
    params[1].requires_grad_()
    unused = torch.ones(3, requires_grad=True)
    start = [parameter.detach().clone() for parameter in params]
    distances: list[float] = []

    def backward(scale: float) -> Pass:
        moved = sum(((a - b) ** 2).sum() for a, b in zip(params, start, strict=True))
        distances.append(float(torch.as_tensor(moved).detach() ** 0.5))
        loss = torch.stack([(parameter**4).sum() for parameter in params]).sum()
        (scale * loss).backward()
        return Pass(loss.item(), 0.0, 0.0)

    sharp(backward, [*params, unused], rho=0.01)(1.0)
    assert all(torch.equal(a, b) for a, b in zip(params, start, strict=True))
    assert distances == pytest.approx([0.0, 0.01], rel=1e-4)
    assert unused.grad is None


@pytest.mark.parametrize("curvature", [0.0, math.nan, math.inf])
def test_no_direction_moves_nothing(curvature: float) -> None:
    theta = torch.tensor([3.0, 2.0], requires_grad=True)
    seen: list[Tensor] = []
    sharp(quadratic(theta, torch.tensor([curvature, 0.0]), seen), [theta], rho=0.5)(1.0)
    assert all(torch.equal(point, torch.tensor([3.0, 2.0])) for point in seen)
    assert torch.equal(theta.detach(), torch.tensor([3.0, 2.0]))
    torch.testing.assert_close(theta.grad, torch.tensor([3 * curvature, 0.0]), equal_nan=True)


def test_an_error_at_the_far_point_restores_the_parameters() -> None:
    theta = torch.tensor([3.0, 2.0], requires_grad=True)
    calls: list[float] = []

    def backward(scale: float) -> Pass:
        calls.append(scale)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return quadratic(theta, torch.ones(2))(scale)

    with pytest.raises(RuntimeError, match="out of memory"):
        sharp(backward, [theta], rho=0.5)(1.0)
    assert torch.equal(theta.detach(), torch.tensor([3.0, 2.0]))


@pytest.mark.parametrize("rule", [Linear(), NGDiff()], ids=lambda rule: rule.name)
def test_in_a_step_only_the_forget_part_is_sharp(rule: Linear | NGDiff) -> None:
    """Forget gradient (3.3, 4.8) as above; retain a = (1, 0): gradient (3, 0)."""
    theta = torch.tensor([3.0, 2.0], requires_grad=True)
    forget = sharp(quadratic(theta, torch.tensor([1.0, 2.0])), [theta], rho=0.5)
    combined_gradient([theta], rule, RuleState(), quadratic(theta, torch.tensor([1.0, 0.0])), forget)
    far = torch.tensor([3.3, 4.8])
    expected = torch.tensor([3.0, 0.0]) + far
    if isinstance(rule, NGDiff):
        expected = torch.tensor([1.0, 0.0]) + far / math.sqrt(3.3**2 + 4.8**2)
    torch.testing.assert_close(theta.grad, expected)


def test_it_adds_to_the_gradient_that_is_there() -> None:
    theta = torch.tensor([3.0, 2.0], requires_grad=True)
    theta.grad = torch.tensor([10.0, -7.0])
    sharp(quadratic(theta, torch.tensor([1.0, 2.0])), [theta], rho=0.5)(1.0)
    torch.testing.assert_close(theta.grad, torch.tensor([13.3, -2.2]))
