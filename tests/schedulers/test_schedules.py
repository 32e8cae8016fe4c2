"""Schedules at their breakpoints."""

from __future__ import annotations

import math

import pytest

from unlearn.schedulers.schedules import Constant, Cosine, Linear


def test_constant_is_one_everywhere() -> None:
    assert [Constant().factor(step, 4) for step in range(4)] == [1.0] * 4


def test_linear_with_warmup_at_each_step() -> None:
    # 10 steps, 20 % warm-up: 1/2, 1, then 1 - k/8
    found = [Linear(warmup=0.2).factor(step, 10) for step in range(10)]
    assert found == pytest.approx([0.5, 1.0, *(1 - k / 8 for k in range(8))])


def test_cosine_at_its_quarters() -> None:
    found = [Cosine().factor(step, 4) for step in range(4)]
    assert found == pytest.approx([1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])


@pytest.mark.parametrize("schedule", [Constant, Linear, Cosine])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_never_zero_never_above_one(schedule: type, warmup: float, total: int) -> None:
    factors = [schedule(warmup=warmup).factor(step, total) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)
