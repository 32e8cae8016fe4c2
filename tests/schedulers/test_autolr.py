"""AutoLR's parabola in closed form, and the probe on functions whose best step is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unlearn.schedulers.autolr import MAX_FIRST_PROBES, NOISE_BF16, AutoLR, fit, next_lr
from unlearn.training.probe import Probe


def test_the_worked_example_of_a_quadratic() -> None:
    """L = 2 w^2 at w = 1, step 0.1 along its gradient 4: losses 3.92, 2, 0.72; slope 16, curvature 64, best lr 0.25."""
    found = fit(minus=3.92, zero=2.0, plus=0.72, lr=0.1)
    assert found.slope == pytest.approx(16)
    assert found.curvature == pytest.approx(64)
    assert found.lr_star == pytest.approx(0.25)
    assert next_lr(AutoLR(), 0.1, 0.25) == pytest.approx(0.2), "capped at twice the old lr"
    assert next_lr(AutoLR(), 0.1, 0.25, smoothing=0.9) == pytest.approx(0.9 * 0.1 + 0.1 * 0.2)
    assert next_lr(AutoLR(max_lr=0.15), 0.1, 0.25) == 0.15
    assert next_lr(AutoLR(min_lr=0.07), 0.1, 0.0) == 0.07


CASES = [
    # minus, zero, plus, lr_star, note
    (3.0, 2.0, 0.5, math.inf, "grow"),  # falls and bends down: 0.5 + 3 - 4 < 0
    (2.5, 2.0, 1.5, math.inf, "grow"),  # a straight line down
    (1.5, 2.0, 2.6, 0.0, "shrink"),  # rises along the update
    (2.2, 2.0, 2.2, 0.0, "shrink"),  # at the minimum
    (2.0, 2.0, 2.0, None, "keep: differences"),  # flat
    (2.0 + 1e-7, 2.0, 2.0 - 1e-7, None, "keep: differences"),  # noise
    (math.nan, 2.0, 1.0, None, "keep: loss not finite"),
    (2.0, 2.0, math.inf, None, "keep: loss not finite"),
]


@pytest.mark.parametrize(("minus", "zero", "plus", "star", "note"), CASES)
def test_every_shape_of_the_three_points(minus: float, zero: float, plus: float, star: float | None, note: str) -> None:
    found = fit(minus, zero, plus, lr=0.1)
    assert found.lr_star == star
    assert found.note.startswith(note)


def points(b: float, h: float, zero: float, lr: float) -> tuple[float, float, float]:
    """Losses at -lr, 0, +lr of L = zero - b x + h x^2 / 2."""
    return zero + b * lr + h * lr**2 / 2, zero, zero - b * lr + h * lr**2 / 2


@pytest.mark.parametrize("b", [3.0, 1e-3, 0.0, -1e-3, -3.0])
@pytest.mark.parametrize("h", [50.0, 1.0])
def test_the_budget_is_met_exactly_whatever_the_slope(b: float, h: float) -> None:
    zero, budget = 2.0, 0.05
    star = fit(*points(b, h, zero, 0.1), lr=0.1, budget=budget).lr_star
    assert star is not None
    assert star > 0
    assert zero - b * star + h * star**2 / 2 == pytest.approx(zero * (1 + budget), rel=1e-6)
    assert star == pytest.approx((b + math.sqrt(b * b + 2 * h * budget * zero)) / h, rel=1e-6)


def test_a_vanishing_budget_is_the_largest_step_that_does_not_raise_the_loss() -> None:
    star = fit(*points(3.0, 50.0, 2.0, 0.1), lr=0.1, budget=1e-12).lr_star
    assert star == pytest.approx(2 * 3.0 / 50.0, rel=1e-6)


def test_a_budget_without_upward_curvature() -> None:
    assert fit(*points(3.0, -1.0, 2.0, 0.1), lr=0.1, budget=0.05).lr_star == math.inf
    star = fit(*points(-1.0, -2.0, 2.0, 0.1), lr=0.1, budget=0.05).lr_star  # x - x^2 reaches 0.1 at (1 - sqrt(0.6)) / 2
    assert star == pytest.approx((1 - math.sqrt(0.6)) / 2, rel=1e-6)
    assert fit(*points(-0.1, -2.0, 2.0, 0.1), lr=0.1, budget=0.05).lr_star == math.inf, "never rises by that much"


def quadratic_problem(lr: float, settings: AutoLR) -> tuple[Tensor, torch.optim.Optimizer, Probe, Callable[[], float]]:
    """L = (1/2) w^T diag(1, 4) w at (2, -1), with SGD."""
    w = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)

    def loss() -> float:
        return float(0.5 * (torch.tensor([1.0, 4.0], dtype=torch.float64) * w.detach() ** 2).sum())

    w.grad = torch.tensor([2.0, -4.0], dtype=torch.float64)
    return w, torch.optim.SGD([w], lr=lr), Probe(settings, lr), loss


BEST = 20 / 68
"""g = (2, -4): g^T g / g^T H g = 20 / (1 * 4 + 4 * 16)."""


def test_a_quadratic_gives_its_exact_minimiser_and_the_step_is_rescaled_to_it() -> None:
    w, optimizer, probe, loss = quadratic_problem(0.2, AutoLR())
    fits = probe.step(optimizer, [w], loss)
    assert len(fits) == 1
    assert probe.lr == pytest.approx(BEST, rel=1e-12)
    torch.testing.assert_close(w.detach(), torch.tensor([2 - 2 * BEST, -1 + 4 * BEST], dtype=torch.float64))


@pytest.mark.parametrize("start", [BEST / 1000, BEST / 100, 10 * BEST])
def test_the_first_probe_repeats_until_the_lr_is_right(start: float) -> None:
    w, optimizer, probe, loss = quadratic_problem(start, AutoLR())
    fits = probe.step(optimizer, [w], loss)
    assert probe.lr == pytest.approx(BEST, rel=1e-9)
    assert 1 < len(fits) <= MAX_FIRST_PROBES
    assert probe.settled


def test_the_horizon_factor_scales_the_step_and_is_not_fed_back() -> None:
    w, optimizer, probe, loss = quadratic_problem(0.2, AutoLR(decay="linear"))
    for decay in (0.5, 0.25):
        before = w.detach().clone()
        w.grad = torch.tensor([1.0, 4.0], dtype=torch.float64) * before
        step = w.grad.clone()
        best = float((step @ step) / (step @ (torch.tensor([1.0, 4.0], dtype=torch.float64) * step)))
        probe.lr = 0.9 * best
        probe.step(optimizer, [w], loss, decay=decay)
        assert probe.lr == pytest.approx(best, rel=1e-9)
        torch.testing.assert_close(w.detach(), before - decay * best * step)


def test_growth_into_a_loss_that_is_not_finite_falls_back_to_the_last_good_rate() -> None:
    """L = 1 - x, not finite from x = 3: from 1 the search goes to 2, then 4 fails."""
    w = torch.tensor([0.0], dtype=torch.float64, requires_grad=True)
    w.grad = torch.tensor([-1.0], dtype=torch.float64)
    probe = Probe(AutoLR(max_lr=100.0), 1.0)
    fits = probe.step(torch.optim.SGD([w], lr=1.0), [w], lambda: 1 - w.item() if w.item() < 3 else math.nan)
    assert [found.note.split(":")[0] for found in fits] == ["grow", "grow", "keep"]
    assert probe.lr == w.item() == 2.0


def test_the_noise_of_low_precision_is_a_floor_of_its_own() -> None:
    assert fit(2.003, 2.0, 1.998, lr=0.1).note == "fit"
    assert fit(2.003, 2.0, 1.998, lr=0.1, noise=NOISE_BF16).note.startswith("keep: differences")
    assert fit(1e-3 + 5e-8, 1e-3, 1e-3 - 5e-8, lr=0.1).note.startswith("keep: differences"), "a memorised retain set"


def test_later_probes_change_the_lr_by_at_most_the_clip() -> None:
    w, optimizer, probe, loss = quadratic_problem(BEST / 1000, AutoLR())
    probe.settled = True
    probe.step(optimizer, [w], loss)
    assert probe.lr == pytest.approx(2 * BEST / 1000)


def test_the_known_training_loss_saves_one_forward() -> None:
    calls = 0
    w, optimizer, probe, loss = quadratic_problem(0.2, AutoLR())

    def counted() -> float:
        nonlocal calls
        calls += 1
        return loss()

    probe.step(optimizer, [w], counted, loss_before=loss())
    assert calls == 2
    assert probe.lr == pytest.approx(BEST, rel=1e-12)


def adamw_step(probe_loss: Callable[[Tensor], float] | None) -> tuple[Tensor, dict[str, object], float]:
    """One AdamW step from the same point, with or without a probe."""
    w = torch.linspace(-1, 1, 7, requires_grad=True)
    w.grad = torch.linspace(3, -2, 7)
    optimizer = torch.optim.AdamW([w], lr=0.01, weight_decay=0.1)
    probe = Probe(AutoLR(), 0.01)
    if probe_loss is None:
        optimizer.step()
    else:
        probe.step(optimizer, [w], lambda: probe_loss(w.detach()))
    assert not [name for name in vars(w) if name != "grad"], "no attribute is left on a parameter"
    return w.detach(), dict(optimizer.state[w]), probe.lr


@pytest.mark.parametrize("value", [math.nan, 1.0], ids=["nan", "flat"])
def test_a_probe_that_learns_nothing_is_a_plain_step_to_the_bit(value: float) -> None:
    plain, plain_state, _ = adamw_step(None)
    probed, state, lr = adamw_step(lambda w: value)
    assert torch.equal(plain, probed)
    assert lr == 0.01
    assert state["step"] == plain_state["step"] == 1, "the optimizer advanced once"
    assert torch.equal(state["exp_avg"], plain_state["exp_avg"])  # type: ignore[arg-type]


def test_a_probe_that_fails_leaves_the_parameters_where_the_step_began() -> None:
    w = torch.linspace(-1, 1, 7, requires_grad=True)
    start = w.detach().clone()
    w.grad = torch.ones(7)

    def broken() -> float:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        Probe(AutoLR(), 0.1).step(torch.optim.SGD([w], lr=0.1), [w], broken, loss_before=1.0)
    assert torch.equal(w.detach(), start)


def test_a_rising_loss_shrinks_the_step_that_was_taken() -> None:
    w = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    w.grad = torch.tensor([-1.0], dtype=torch.float64)  # uphill for L = w^2 / 2
    probe = Probe(AutoLR(), 0.1, settled=True)
    probe.step(torch.optim.SGD([w], lr=0.1), [w], lambda: float(w.detach() ** 2 / 2))
    assert probe.lr == pytest.approx(0.05)
    assert w.item() == pytest.approx(1.05)
