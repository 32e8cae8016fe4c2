"""Each rule against what it is derived from: projections of vectors, optimality, published algorithms, other rules."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from tests.gradients.vectors import VECTORS, Pair, first_update, gram, pair, random_pairs, take_steps, weights_of
from unlearn.gradients.combine import (
    BLUR,
    FAMO,
    GRU,
    HAMU,
    IMTLG,
    MGDA,
    PDU,
    RLW,
    AlignedMTL,
    CAGrad,
    Gram,
    Linear,
    Losses,
    Nash,
    NGDiff,
    NGDiffAdam,
    PCGrad,
    RuleState,
)

TWO_SIDED = [pair(case) for case in VECTORS if case not in ("no retain", "no forget", "nothing")]
PAIRS = random_pairs()
CONFLICT = [vectors for vectors in PAIRS if gram(*vectors).rf < 0]
AGREEMENT = [vectors for vectors in PAIRS if gram(*vectors).rf >= 0]


def assert_close(found: Tensor, expected: Tensor, scale: float | Tensor = 1.0) -> None:
    """Equal to 1e-9 of the length that rounding is to be measured by."""
    assert float((found - expected).norm()) <= 1e-9 * max(float(scale), float(expected.norm()))


def along(a: Tensor, b: Tensor) -> Tensor:
    """The part of a along b."""
    return (a @ b) / (b @ b) * b


def cosine(vectors: Pair) -> float:
    found = gram(*vectors).cosine
    assert found is not None
    return found


# NGDiff


def test_the_squared_norm_of_ngdiff_is_two_plus_two_cosines() -> None:
    for vectors in TWO_SIDED:
        g = first_update(NGDiff(), vectors)
        assert float(g @ g) == pytest.approx(2 * (1 + cosine(vectors)), abs=1e-9)


def test_ngdiff_of_the_paper_in_its_own_signs() -> None:
    """g_R = (3, 4) and an NLL gradient of the forget set (0, 100) give (3/5, 4/5) - (0, 1) = (0.6, -0.2)."""
    g = first_update(NGDiff(), (torch.tensor([3.0, 4.0]), -torch.tensor([0.0, 100.0])))
    torch.testing.assert_close(g, torch.tensor([0.6, -0.2]))


def test_exactly_opposite_gradients_cancel() -> None:
    for rule in (NGDiff(), IMTLG(), Nash(), MGDA(normalize="l2"), MGDA(), PCGrad(), GRU()):
        assert first_update(rule, pair("opposite")).norm() < 1e-12


def test_a_zero_gradient_leaves_the_other_sides_unit_vector() -> None:
    vector, zero = torch.tensor([3.0, 4.0]), torch.zeros(2)
    for rule in (NGDiff(), NGDiffAdam(), Nash(), MGDA(normalize="l2")):
        torch.testing.assert_close(first_update(rule, (vector, zero)), torch.tensor([0.6, 0.8]))
        torch.testing.assert_close(first_update(rule, (zero, vector)), torch.tensor([0.6, 0.8]))


def test_imtl_g_nash_and_normalised_mgda_are_ngdiff_at_another_length() -> None:
    """imtl_g: |g_R||g_F|/(|g_R| + |g_F|) times; nash: 1/sqrt(1 + cos) times; mgda of unit gradients: half."""
    for vectors in PAIRS:
        g = first_update(NGDiff(), vectors)
        retain, forget = (float(vector.norm()) for vector in vectors)
        assert_close(
            first_update(IMTLG(), vectors), retain * forget / (retain + forget) * g, retain * forget / (retain + forget)
        )
        assert_close(
            first_update(Nash(), vectors), g / math.sqrt(1 + cosine(vectors)), 1 / math.sqrt(1 + cosine(vectors))
        )
        assert_close(first_update(MGDA(normalize="l2"), vectors), g / 2)


def test_ngdiff_adam_goes_against_neither_gradient_after_preconditioning() -> None:
    """The Gram matrix in the metric of P: d is what the optimizer gets, P d the step that it takes."""
    generator = torch.Generator().manual_seed(1)
    plain_fails = 0
    for retain, forget in PAIRS:
        p = 10 ** (4 * torch.rand(retain.shape, generator=generator, dtype=torch.float64) - 2)
        seen = Gram(float(retain @ (p * retain)), float(retain @ (p * forget)), float(forget @ (p * forget)))
        weights = weights_of(NGDiffAdam(), seen, Losses(1, 1), RuleState())
        step = p * (weights.retain * retain + weights.forget * forget)
        assert min(float(step @ retain) / seen.norm_retain, float(step @ forget) / seen.norm_forget) >= -1e-12
        plain = p * first_update(NGDiff(), (retain, forget))
        plain_fails += min(float(plain @ retain), float(plain @ forget)) < 0
    assert plain_fails > 0


# Projections


def test_without_conflict_pcgrad_is_the_sum_and_gru_the_forget_gradient() -> None:
    for vectors in AGREEMENT:
        retain, forget = vectors
        assert_close(first_update(PCGrad(), vectors), retain + forget)
        assert_close(first_update(GRU(), vectors), forget)
        assert_close(first_update(GRU(retain_weight=0.1), vectors), forget + 0.1 * retain)


def test_in_conflict_pcgrad_and_gru_project() -> None:
    for vectors in CONFLICT:
        retain, forget = vectors
        scale = retain.norm() + forget.norm()
        assert_close(
            first_update(PCGrad(), vectors), retain - along(retain, forget) + forget - along(forget, retain), scale
        )
        d = first_update(GRU(), vectors)
        assert_close(d, forget - along(forget, retain), scale)
        assert float(d @ retain) == pytest.approx(0, abs=1e-9 * float(scale * retain.norm()))


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.5])
def test_blur_is_the_retain_gradient_off_the_forget_gradient(gamma: float) -> None:
    for vectors in PAIRS:
        retain, forget = vectors
        d = first_update(BLUR(gamma=gamma), vectors)
        assert_close(d, retain - along(retain, forget) + gamma * forget, retain.norm() + forget.norm())
        assert float(d @ forget) == pytest.approx(
            gamma * float(forget @ forget), rel=1e-6, abs=1e-9 * float(retain.norm())
        )


@pytest.mark.parametrize(("quota", "expected"), [(0.01, 56), (0.5, 29), (5.0, 20)])
def test_hamu_is_the_best_step_for_the_retain_loss_that_meets_quota_and_radius(quota: float, expected: int) -> None:
    """`expected` of the 60 pairs are long enough for the quota."""
    within_reach = 0
    for vectors in PAIRS:
        retain, forget = vectors
        radius, slack = float(retain.norm()), 1 + 1e-6
        d = first_update(HAMU(quota=quota), vectors)
        assert float(d.norm()) <= radius * slack
        if quota > radius * float(forget.norm()):
            assert_close(d, radius * forget / forget.norm())
            continue
        within_reach += 1
        assert float(d @ forget) * slack >= quota
        angles = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)
        normal = forget - along(forget, retain)
        others = radius * (
            angles.cos()[:, None] * retain / retain.norm() + angles.sin()[:, None] * normal / normal.norm()
        )
        allowed = others[others @ forget >= quota]
        assert (allowed @ retain <= float(d @ retain) + 1e-6 * radius * radius).all()
    assert within_reach == expected


def test_hamu_costs_retain_loss_exactly_past_the_published_stop() -> None:
    """<d, g_R> < 0 where <g_R, g_F> < -sqrt(|g_R|^2 |g_F|^2 - quota^2): here -sqrt(25 100 - 30^2) = -40."""
    for rf, rises in ((-39.0, False), (-41.0, True)):
        weights = HAMU(quota=30).weights(Gram(25, rf, 100), Losses(1, 1), RuleState())
        assert (weights.retain * 25 + weights.forget * rf < 0) == rises


# Bargaining


def test_mgda_is_the_shortest_vector() -> None:
    for vectors in PAIRS + TWO_SIDED:
        retain, forget = vectors
        shares = torch.linspace(0, 1, 401, dtype=torch.float64)[:, None]
        shortest = float((shares * retain + (1 - shares) * forget).norm(dim=1).min())
        scale = float(torch.minimum(retain.norm(), forget.norm()))
        assert float(first_update(MGDA(), vectors).norm()) <= shortest + 1e-9 * scale


def test_imtl_g_projects_equally_on_both() -> None:
    for vectors in PAIRS:
        d = first_update(IMTLG(), vectors)
        onto = [float(d @ vector / vector.norm()) for vector in vectors]
        assert onto[0] == pytest.approx(onto[1], rel=1e-6)


def test_nash_solves_its_equation() -> None:
    """G w = 1/w, hence |d|^2 = w^T G w = 2."""
    for vectors in PAIRS:
        seen = gram(*vectors)
        w = Nash().weights(seen, Losses(1, 1), RuleState())
        assert w.retain * (seen.rr * w.retain + seen.rf * w.forget) == pytest.approx(1, rel=1e-6)
        assert w.forget * (seen.rf * w.retain + seen.ff * w.forget) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("c", [0.1, 0.4, 0.9, 3.0])
def test_cagrad_is_as_good_for_the_worse_off_as_a_numeric_minimiser_finds(c: float) -> None:
    """max over |d - g_0| <= c |g_0| of min_i <d, g_i> equals min over w of <g_w, g_0> + c |g_0| |g_w|."""
    for vectors in PAIRS:
        retain, forget = vectors
        g_0 = (retain + forget) / 2
        radius = c * float(g_0.norm())
        d = first_update(CAGrad(c=c), vectors) * (1 + c * c)
        assert float((d - g_0).norm()) == pytest.approx(radius, rel=1e-9)
        scale = float(retain.norm() * forget.norm()) + float(g_0.norm() ** 2)
        least = least_bound(vectors, radius)
        assert min(float(d @ retain), float(d @ forget)) == pytest.approx(least, abs=1e-7 * scale)


def least_bound(vectors: Pair, radius: float) -> float:
    retain, forget = vectors

    def bound(w: float) -> float:
        g_w = w * retain + (1 - w) * forget
        return float(g_w @ (retain + forget) / 2) + radius * float(g_w.norm())

    solved = minimize_scalar(bound, bounds=(0, 1), method="bounded", options={"xatol": 1e-12})
    return min(float(solved.fun), bound(0.0), bound(1.0))


def test_cagrad_goes_from_the_mean_to_mgda() -> None:
    for vectors in PAIRS:
        assert_close(first_update(CAGrad(c=0), vectors), first_update(Linear(), vectors) / 2)
        far, shortest = first_update(CAGrad(c=1e6), vectors), first_update(MGDA(), vectors)
        torch.testing.assert_close(far / far.norm(), shortest / shortest.norm(), atol=1e-3, rtol=0)


def test_aligned_mtl_brings_all_singular_values_to_the_smallest() -> None:
    for vectors in PAIRS:
        jacobian = torch.stack(vectors).numpy()
        u, sigma, vt = np.linalg.svd(jacobian, full_matrices=False)
        aligned = sigma[-1] * u @ vt
        np.testing.assert_allclose(np.linalg.svd(aligned)[1][:2], sigma[-1], rtol=1e-9)
        assert_close(
            first_update(AlignedMTL(), vectors), torch.from_numpy(aligned.sum(axis=0)), float(vectors[0].norm())
        )


def test_aligned_mtl_keeps_a_single_direction_as_long_as_it_is() -> None:
    """Parallel gradients: the sum, whether they agree or not."""
    for case in ("parallel", "the same", "opposite"):
        retain, forget = pair(case)
        assert_close(first_update(AlignedMTL(), (retain, forget)), retain + forget)


# Losses and draws


def test_rlw_draws_anew_in_each_step_and_from_each_seed() -> None:
    """log(w_R/w_F) is the difference of two draws from N(0, 1): mean 0, variance 2."""
    drawn = {
        (seed, step): math.log(w.retain / w.forget)
        for seed in (0, 1, 2**31 - 1)
        for step in range(2000)
        if (w := RLW().ahead(RuleState(seed=seed, step=step)))
    }
    assert len(set(drawn.values())) == len(drawn)
    assert abs(statistics.fmean(drawn.values())) < 4 * math.sqrt(2 / len(drawn))
    assert statistics.pvariance(drawn.values()) == pytest.approx(2, abs=4 * 2 * math.sqrt(2 / len(drawn)))
    inside = sum(abs(value) < math.sqrt(2) for value in drawn.values()) / len(drawn)
    assert inside == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.03)


@pytest.mark.parametrize("decay", [0.0, 0.001, 0.5])
def test_famo_is_adam_on_two_logits(decay: float) -> None:
    """torch's own Adam with the Jacobian of its own softmax; the weights are d(sum z log L)/dL over its sum."""
    losses = [Losses(2.0 / (1 + 0.1 * step), 1.0 + math.sin(step)) for step in range(40)]
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([logits], lr=0.025, weight_decay=decay)
    expected = [(0.5, 0.5)]
    for before, after in zip([None, *losses], losses, strict=False):
        if before is not None:
            adam.zero_grad()
            fall = torch.tensor(before, dtype=torch.float64).log() - torch.tensor(after, dtype=torch.float64).log()
            (logits.softmax(0) @ fall).backward()
            adam.step()
        share = logits.detach().softmax(0) / torch.tensor(after, dtype=torch.float64)
        expected.append(tuple((share / share.sum()).tolist()))
    found = take_steps(FAMO(decay=decay), [(pair("acute"), loss) for loss in losses])
    assert len(found) == 40
    for one, other in zip(found, expected[:-1], strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_famo_gives_way_to_the_loss_that_falls_more_slowly() -> None:
    falling = [(pair("acute"), Losses(2.0 * 0.8**step, 2.0)) for step in range(30)]
    state = RuleState()
    take_steps(FAMO(), falling, state)
    assert state.values["logit"] < -0.1


def test_the_multiplier_of_pdu_follows_the_constraint() -> None:
    """From 10 by 5 (L_R - 0.3), two steps late, never below 0."""
    rule = PDU(multiplier=10, warmup=2)
    assert rule.waits == 2
    retain = [1.3, 1.3, 1.3, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0]
    found = take_steps(rule, [(pair("acute"), Losses(loss, 1.0)) for loss in retain])
    # After step 2: 10 + 5; after step 3: - 1; then - 1.5 in each of 11 steps, of which the last one meets the floor.
    falling = [max(14 - 1.5 * step, 0) for step in range(12)]
    assert [w.retain for w in found] == pytest.approx([10, 10, 10, 15, *falling, 1.0], abs=1e-9)
    assert all(w.forget == 1 for w in found)


def test_the_warm_up_of_pdu_is_in_epochs() -> None:
    """2 epochs of 3 steps: the losses of steps 0 to 5 teach nothing, that of step 6 adds 5 (1.3 - 0.3)."""
    state = RuleState(steps_per_epoch=3)
    found = take_steps(PDU(multiplier=10, warmup=2), [(pair("acute"), Losses(1.3, 1.0))] * 9, state)
    assert [w.retain for w in found] == pytest.approx([10] * 7 + [15, 20])


def test_rules_that_learn_from_losses_never_leave_an_objective_out() -> None:
    assert take_steps(PDU(multiplier=0), [(pair("acute"), Losses(0, 1))])[0].retain > 0
    for losses in (Losses(0.0, 1.0), Losses(1.0, 0.0), Losses(1e30, 1e-30)):
        assert min(take_steps(FAMO(), [(pair("acute"), losses)] * 3)[-1]) > 0
