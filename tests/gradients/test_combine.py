"""One table of hand-derived weights for every rule, and what every registered rule says of itself."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import asdict
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.gradients.vectors import VECTORS, Pair, Step, gram, pair, random_pairs, take_steps, update, weights_of
from unlearn.gradients.combine import (
    BLUR,
    COMBINE,
    FAMO,
    GRU,
    HAMU,
    IMTLG,
    MGDA,
    PDU,
    RLW,
    AlignedMTL,
    CAGrad,
    CombineRule,
    Gram,
    Linear,
    Losses,
    LossNorm,
    Nash,
    NGDiff,
    NGDiffAdam,
    PCGrad,
    RuleState,
    Weights,
)

# Of g_R: <g_R, g_R> = 25. With AGAINST: <g_R, g_F> = -40, <g_F, g_F> = 100, cos = -0.8, det = 2500 - 1600 = 900,
# |g_R - g_F|^2 = 25 + 80 + 100 = 205, |g_R + g_F|^2 = 25 - 80 + 100 = 45. ALONG has <g_R, g_F> = +40.
RETAIN = (3.0, 4.0)
AGAINST, ALONG, ACROSS, ZERO = (0.0, -10.0), (0.0, 10.0), (-8.0, 6.0), (0.0, 0.0)

# random.Random("0 0") begins with these; z = sqrt(-2 ln(1 - u)) (cos 2 pi v, sin 2 pi v) are two draws from N(0, 1).
U, V = 0.3507602308235076, 0.8136920457619051
DRAWN = math.sqrt(-2 * math.log(1 - U)) * (math.cos(2 * math.pi * V) - math.sin(2 * math.pi * V))

KNOWN = {"mean": 0.0, "square": 0.0, "updates": 0.0, "retain": 2.0, "forget": 0.5}


class Row(NamedTuple):
    rule: CombineRule
    retain: tuple[float, float]
    forget: tuple[float, float]
    expected: tuple[float, float]
    losses: Losses = Losses(1.0, -2.0)
    state: RuleState = RuleState()


# The arithmetic stands in the row.
VALUES = [
    Row(Linear(), RETAIN, AGAINST, (1, 1)),
    Row(NGDiff(), RETAIN, (0.0, -100.0), (1 / 5, 1 / 100)),
    Row(NGDiff(retain_weight=2), RETAIN, (0.0, -100.0), (2 / 5, 1 / 100)),
    Row(NGDiff(), ZERO, AGAINST, (0, 1 / 10)),
    Row(NGDiffAdam(), RETAIN, AGAINST, (1 / 5, 1 / 10)),
    Row(NGDiffAdam(retain_weight=3), RETAIN, ZERO, (3 / 5, 0)),
    Row(LossNorm(), RETAIN, AGAINST, (1 / 0.5, 1 / 4), Losses(0.5, -4.0)),
    Row(LossNorm(), RETAIN, AGAINST, (0.0, 1 / 4), Losses(0.0, -4.0)),
    Row(RLW(), RETAIN, AGAINST, (1 / (1 + math.exp(-DRAWN)), 1 / (1 + math.exp(DRAWN)))),
    Row(PCGrad(), RETAIN, AGAINST, (1 + 40 / 25, 1 + 40 / 100)),
    Row(PCGrad(), RETAIN, ALONG, (1, 1)),
    Row(PCGrad(), ZERO, ALONG, (0, 1)),
    Row(GRU(), RETAIN, AGAINST, (40 / 25, 1)),
    Row(GRU(retain_weight=0.1), RETAIN, AGAINST, (0.1 + 40 / 25, 1)),
    Row(GRU(retain_weight=0.1), RETAIN, ALONG, (0.1, 1)),
    Row(GRU(), RETAIN, ZERO, (0, 0)),
    Row(GRU(retain_weight=0.1), RETAIN, ZERO, (0.1, 0)),
    Row(BLUR(), RETAIN, AGAINST, (1, 1 + 40 / 100)),
    Row(BLUR(gamma=0.3), RETAIN, ALONG, (1, 0.3 - 40 / 100)),
    Row(BLUR(gamma=0.3), ZERO, ALONG, (0, 0.3)),
    # sqrt((25 100 - 30^2)/900) = 4/3 and (30 + 40 4/3)/100 = 5/6: d = (4, -3) has length 5 and <d, g_F> = 30.
    Row(HAMU(quota=30), RETAIN, AGAINST, (4 / 3, 5 / 6)),
    Row(HAMU(quota=40), RETAIN, ALONG, (1, 0)),
    Row(HAMU(quota=60), RETAIN, AGAINST, (0, 5 / 10)),  # more than |g_R| |g_F| = 50: as far as |g_R| along g_F
    Row(HAMU(quota=30), RETAIN, (-6.0, -8.0), (0, 30 / 100)),  # opposite: nothing but the quota
    Row(HAMU(), ZERO, AGAINST, (0, 1)),
    Row(MGDA(), RETAIN, AGAINST, (140 / 205, 65 / 205)),
    Row(MGDA(), RETAIN, ALONG, (1, 0)),  # (100 - 40)/(25 - 80 + 100) = 60/45 > 1
    Row(MGDA(), RETAIN, RETAIN, (0.5, 0.5)),
    Row(MGDA(normalize="l2"), RETAIN, AGAINST, (1 / 10, 1 / 20)),
    Row(MGDA(normalize="l2"), ZERO, AGAINST, (0, 1 / 10)),
    Row(IMTLG(), RETAIN, AGAINST, (10 / 15, 5 / 15)),
    Row(IMTLG(), RETAIN, ZERO, (1, 0)),
    Row(Nash(), RETAIN, AGAINST, (1 / (5 * math.sqrt(0.2)), 1 / (10 * math.sqrt(0.2)))),
    Row(Nash(), RETAIN, (-6.0, -8.0), (1 / (5 * 1e-3), 1 / (10 * 1e-3))),  # 1 + cos is 1e-6 at least
    Row(Nash(), RETAIN, ZERO, (1 / 5, 0)),
    # |g_0|^2 = 45/4; slope = (100 - 25)/(2 c |g_0|), squared 125/c^2. At c = 0.4 over 205: w = 1, all pull on g_R.
    Row(CAGrad(c=0.4), RETAIN, AGAINST, ((0.5 + 0.4 * math.sqrt(45 / 4) / 5) / 1.16, 0.5 / 1.16)),
    # At c = 1: u = sqrt(125 900/(205 - 125)) = 37.5, w = (37.5 + 140)/205 = 71/82,
    # |g_w|^2 = (37.5^2 + 900)/205 = 45/4 = |g_0|^2.
    Row(CAGrad(c=1), RETAIN, AGAINST, ((0.5 + 71 / 82) / 2, (0.5 + 11 / 82) / 2)),
    # At one length w = 1/2 and g_w = g_0.
    Row(CAGrad(c=0.4), RETAIN, (0.0, -5.0), (0.5 * 1.4 / 1.16, 0.5 * 1.4 / 1.16)),
    Row(CAGrad(c=0), RETAIN, AGAINST, (0.5, 0.5)),
    Row(CAGrad(c=2), RETAIN, (-6.0, -8.0), (0, 0)),
    Row(CAGrad(c=0.4), RETAIN, ZERO, (1.4 / 1.16, 0)),
    # Orthogonal gradients are the principal directions: the one of length 10 is brought to 5.
    Row(AlignedMTL(), RETAIN, ACROSS, (1, 5 / 10)),
    # sqrt(det) = 30, largest eigenvalue (125 + sqrt(75^2 + 80^2))/2.
    Row(
        AlignedMTL(),
        RETAIN,
        AGAINST,
        (170 / ((125 + math.sqrt(12025)) / 2 + 30), 95 / ((125 + math.sqrt(12025)) / 2 + 30)),
    ),
    # One direction v = (1, 2)/sqrt(5), in units of the gradients: v (v^T 1) = (3/5, 6/5).
    Row(AlignedMTL(), RETAIN, (6.0, 8.0), (3 / 5, 6 / 5)),
    Row(FAMO(), RETAIN, AGAINST, (0.5, 0.5)),
    Row(FAMO(), RETAIN, AGAINST, (0.5 / 2.5, 2 / 2.5), state=RuleState(values={"logit": 0.0, **KNOWN})),
    # softmax(x, -x) = (3/4, 1/4): 0.75/2 to 0.25/0.5 is 3 to 4.
    Row(FAMO(), RETAIN, AGAINST, (3 / 7, 4 / 7), state=RuleState(values={"logit": math.log(3) / 2, **KNOWN})),
    Row(PDU(), RETAIN, AGAINST, (100, 1)),
    Row(PDU(multiplier=50, warmup=0), RETAIN, AGAINST, (50, 1)),
    Row(PDU(), RETAIN, AGAINST, (42, 1), state=RuleState(values={"lambda": 42.0})),
]


@pytest.mark.parametrize("row", VALUES, ids=lambda row: f"{row.rule.name}-{row.retain}-{row.forget}")
def test_value(row: Row) -> None:
    seen = gram(torch.tensor(row.retain), torch.tensor(row.forget))
    found = weights_of(row.rule, seen, row.losses, copy.deepcopy(row.state))
    assert found == pytest.approx(Weights(*row.expected), rel=1e-12)


def test_every_rule_has_a_row() -> None:
    assert {type(row.rule) for row in VALUES} == set(COMBINE.values())
    assert all(cls().name == name for name, cls in COMBINE.items())


RULES = [cls() for cls in COMBINE.values()]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
PAIRS = random_pairs()


def variants(rule: CombineRule) -> list[CombineRule]:
    """The rule at all options that the table has for it."""
    return [rule, *(row.rule for row in VALUES if type(row.rule) is type(rule))]


def series(retain_scale: float = 1.0, forget_scale: float = 1.0, pairs: list[Pair] = PAIRS) -> list[Step]:
    """One step for each pair, with losses of every size; a scale multiplies an objective's loss and gradient."""
    return [
        (
            (retain_scale * retain, forget_scale * forget),
            Losses(retain_scale * (0.2 + step % 7), forget_scale * (0.1 + step % 5)),
        )
        for step, (retain, forget) in enumerate(pairs)
    ]


def parallel(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first / first.norm(), second / second.norm(), atol=1e-6)


@every_rule
def test_weights_are_finite_and_negative_only_where_announced(rule: CombineRule) -> None:
    nasty = (Losses(0.3, -1.2), Losses(0.0, 0.0), Losses(7.0, 1e-30))
    steps = [(pair(case), losses) for case in VECTORS for losses in nasty]
    for variant in variants(rule):
        for weights in take_steps(variant, steps):
            assert all(math.isfinite(weight) and (weight >= 0 or rule.signed) for weight in weights)


@every_rule
def test_a_gram_matrix_that_rounding_made_impossible_is_taken(rule: CombineRule) -> None:
    for sign in (1, -1):
        for ff in (1.0, 1e-6, 1e6):
            seen = Gram(1.0, sign * math.sqrt(ff) * (1 + 1e-7), ff)
            for variant in variants(rule):
                weights = weights_of(variant, seen, Losses(1, 1), RuleState())
                assert all(map(math.isfinite, weights))


@every_rule
def test_a_zero_gradient_takes_no_part_and_the_other_is_never_reversed(rule: CombineRule) -> None:
    if rule.ahead(RuleState()) is not None:
        return
    for variant in variants(rule):
        for losses in (Losses(1, 1), Losses(0, 1), Losses(1, 0)):
            retain = weights_of(variant, Gram(0.0, 0.0, 4.0), losses, RuleState())
            forget = weights_of(variant, Gram(4.0, 0.0, 0.0), losses, RuleState())
            assert (retain.retain, forget.forget) == (0, 0)
            assert retain.forget >= 0
            assert forget.retain >= 0
            assert weights_of(variant, Gram(0.0, 0.0, 0.0), losses, RuleState()) == (0, 0)


@every_rule
def test_signed(rule: CombineRule) -> None:
    found = [min(weights) < 0 for variant in variants(rule) for weights in take_steps(variant, series())]
    assert any(found) == rule.signed


@every_rule
def test_scale_free(rule: CombineRule) -> None:
    changed = [
        not parallel(update(a, plain), update(b, scaled))
        for variant in variants(rule)
        for scale in ((7.0, 1.0), (1.0, 1e-3))
        for a, b, (plain, _), (scaled, _) in zip(
            take_steps(variant, series()), take_steps(variant, series(*scale)), series(), series(*scale), strict=True
        )
    ]
    assert any(changed) != rule.scale_free


@every_rule
def test_losses(rule: CombineRule) -> None:
    """What a rule says it reads of the losses is what moves its weights."""
    plain = [(vectors, Losses(1.0, 1.0)) for vectors in PAIRS[:4]]
    moved = {
        "retain": [(vectors, Losses(1.0 + step, 1.0)) for step, vectors in enumerate(PAIRS[:4])],
        "forget": [(vectors, Losses(1.0, 1.0 + step)) for step, vectors in enumerate(PAIRS[:4])],
    }
    read = {
        side
        for variant in variants(rule)
        for side, steps in moved.items()
        if take_steps(variant, steps) != take_steps(variant, plain)
    }
    expected: dict[str, set[str]] = {"": set(), "retain": {"retain"}}
    assert read == expected.get(rule.losses, {"retain", "forget"})


@every_rule
def test_common_descent(rule: CombineRule) -> None:
    def against(vectors: Pair, weights: Weights) -> bool:
        d = update(weights, vectors)
        size = abs(weights.retain) * vectors[0].norm() + abs(weights.forget) * vectors[1].norm()
        return any(float(d @ g) < -1e-9 * float(size * g.norm()) for g in vectors)

    pairs = [*PAIRS, *(pair(case) for case in VECTORS)]
    found = [
        against(vectors, weights) for vectors, weights in zip(pairs, take_steps(rule, series(pairs=pairs)), strict=True)
    ]
    assert any(found) != rule.common_descent


@every_rule
def test_symmetric(rule: CombineRule) -> None:
    pairs = [*PAIRS, *(pair(case) for case in VECTORS)]
    swapped = [(vectors[::-1], Losses(*losses[::-1])) for vectors, losses in series(pairs=pairs)]
    differs = [
        weights[::-1] != pytest.approx(other, rel=1e-9, abs=1e-300)
        for weights, other in zip(take_steps(rule, series(pairs=pairs)), take_steps(rule, swapped), strict=True)
    ]
    assert any(differs) != rule.symmetric


@every_rule
@pytest.mark.parametrize("stop", [0, 1, 7])
def test_a_saved_state_goes_on_with_the_same_weights(rule: CombineRule, stop: int) -> None:
    for variant in variants(rule):
        whole = take_steps(variant, series(), RuleState(seed=3))
        state = RuleState(seed=3)
        first = take_steps(variant, series()[:stop], state)
        saved = RuleState(**json.loads(json.dumps(asdict(state))))
        assert saved.step == stop
        assert first + take_steps(copy.deepcopy(variant), series()[stop:], saved) == whole


@every_rule
def test_a_rule_knows_its_weights_either_ahead_or_from_the_gradients(rule: CombineRule) -> None:
    state = RuleState()
    if rule.ahead(state) is None:
        rule.weights(Gram(1, 0, 1), Losses(1, 1), state)
    else:
        with pytest.raises(TypeError, match="ahead of the gradients"):
            rule.weights(Gram(1, 0, 1), Losses(1, 1), state)
    assert state == RuleState()


@every_rule
def test_what_the_docs_show(rule: CombineRule) -> None:
    assert rule.formula
    assert rule.source
    assert rule.losses in ("", "sizes", "logs", "retain")
    assert rule.metric in ("euclidean", "optimizer")
    assert not rule.deviation or rule.deviation.endswith(".")
    assert type(rule).__doc__ != CombineRule.__doc__


def test_cosine_of_a_zero_gradient() -> None:
    assert Gram(25, 0, 0).cosine is None
    assert Gram(25, -40, 100).cosine == -0.8
    assert Gram(1, -1.1, 1).cosine == -1


def test_the_random_pairs_are_at_every_angle() -> None:
    cosines = [gram(*vectors).cosine or 0 for vectors in PAIRS]
    assert all(a > b for a, b in pairwise(cosines))
    assert cosines[0] > 0.999
    assert cosines[-1] < -0.999
