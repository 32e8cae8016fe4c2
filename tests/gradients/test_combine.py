"""One table of hand-derived weights for every rule, and NGDiff's invariants on vectors of the plane."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unlearn.gradients.combine import COMBINE, CombineRule, Gram, Linear, Losses, LossNorm, NGDiff, Weights

VECTORS = {
    "orthogonal": ((3.0, 4.0), (-40.0, 30.0)),
    "acute": ((1.0, 0.0), (1.0, 1.0)),
    "obtuse": ((1.0, 0.0), (-5.0, 1.0)),
    "opposite": ((2.0, 0.0), (-100.0, 0.0)),
    "parallel": ((2.0, 1.0), (4.0, 2.0)),
    "tiny": ((1e-12, 0.0), (0.0, 1e-12)),
    "huge": ((1e12, 0.0), (1e12, 1e12)),
    "no retain": ((0.0, 0.0), (3.0, 4.0)),
    "no forget": ((3.0, 4.0), (0.0, 0.0)),
    "nothing": ((0.0, 0.0), (0.0, 0.0)),
}


def gram(retain: Tensor, forget: Tensor) -> Gram:
    return Gram(*(float(a.double() @ b.double()) for a, b in ((retain, retain), (retain, forget), (forget, forget))))


# rule, retain gradient, forget gradient, losses, expected weights. The arithmetic stands in the row.
VALUES: list[tuple[CombineRule, tuple[float, float], tuple[float, float], Losses, tuple[float, float]]] = [
    (NGDiff(), (3.0, 4.0), (0.0, -100.0), Losses(1, -2), (1 / 5, 1 / 100)),
    (NGDiff(retain_weight=2), (3.0, 4.0), (0.0, -100.0), Losses(1, -2), (2 / 5, 1 / 100)),
    (LossNorm(), (3.0, 4.0), (0.0, -100.0), Losses(0.5, -4.0), (1 / 0.5, 1 / 4)),
    (LossNorm(), (3.0, 4.0), (0.0, -100.0), Losses(0.0, -4.0), (0.0, 1 / 4)),
    (Linear(c=0.25), (3.0, 4.0), (0.0, -100.0), Losses(1, -2), (0.25, 0.75)),
]


@pytest.mark.parametrize(("rule", "retain", "forget", "losses", "expected"), VALUES)
def test_value(
    rule: CombineRule,
    retain: tuple[float, float],
    forget: tuple[float, float],
    losses: Losses,
    expected: tuple[float, float],
) -> None:
    found = rule.fixed or rule.weights(gram(torch.tensor(retain), torch.tensor(forget)), losses)
    assert found == pytest.approx(Weights(*expected), rel=1e-12)


def test_every_rule_has_a_row() -> None:
    assert {type(rule) for rule, *_ in VALUES} == set(COMBINE.values())
    assert all(cls().name == name for name, cls in COMBINE.items())


@pytest.mark.parametrize("rule", [cls() for cls in COMBINE.values()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("case", VECTORS)
def test_weights_are_finite_and_never_negative(rule: CombineRule, case: str) -> None:
    retain, forget = (torch.tensor(vector).double() for vector in VECTORS[case])
    for losses in (Losses(0.3, -1.2), Losses(0.0, 0.0)):
        weights = rule.fixed or rule.weights(gram(retain, forget), losses)
        assert all(math.isfinite(weight) and weight >= 0 for weight in weights)


def ngdiff_update(retain: Tensor, forget: Tensor) -> Tensor:
    weights = NGDiff().weights(gram(retain, forget), Losses(1, 1))
    return weights.retain * retain + weights.forget * forget


@pytest.mark.parametrize("case", [case for case in VECTORS if case not in ("no retain", "no forget", "nothing")])
def test_ngdiff_never_goes_against_either_gradient(case: str) -> None:
    retain, forget = (torch.tensor(vector).double() for vector in VECTORS[case])
    g = ngdiff_update(retain, forget)
    cosine = gram(retain, forget).cosine
    assert cosine is not None
    assert float(g @ retain) >= -1e-9 * retain.norm()
    assert float(g @ forget) >= -1e-9 * forget.norm()
    assert float(g @ g) == pytest.approx(2 * (1 + cosine), abs=1e-9)


def test_ngdiff_of_the_paper_in_its_own_signs() -> None:
    """g_R = (3, 4) and an NLL gradient of the forget set (0, 100) give (3/5, 4/5) - (0, 1) = (0.6, -0.2)."""
    g = ngdiff_update(torch.tensor([3.0, 4.0]), -torch.tensor([0.0, 100.0]))
    torch.testing.assert_close(g, torch.tensor([0.6, -0.2]))


def test_ngdiff_is_blind_to_the_scale_of_either_loss() -> None:
    retain, forget = torch.tensor([3.0, 4.0]), torch.tensor([1.0, -2.0])
    torch.testing.assert_close(ngdiff_update(7 * retain, forget / 1000), ngdiff_update(retain, forget))


def test_exactly_opposite_gradients_cancel() -> None:
    assert ngdiff_update(torch.tensor([2.0, 0.0]), torch.tensor([-100.0, 0.0])).norm() == 0


def test_a_zero_gradient_leaves_the_other_sides_unit_vector() -> None:
    retain, forget = torch.tensor([3.0, 4.0]), torch.zeros(2)
    torch.testing.assert_close(ngdiff_update(retain, forget), torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(ngdiff_update(forget, retain), torch.tensor([0.6, 0.8]))
    assert gram(retain, forget).cosine is None
