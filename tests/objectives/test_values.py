"""One table of hand-derived values for every objective, and the properties that all of them share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearn.objectives.forget import FORGET, NPO, Ascent
from unlearn.objectives.logprobs import Answers
from unlearn.objectives.objective import Objective
from unlearn.objectives.retain import KL, NLL, RETAIN

LN2 = math.log(2)
OBJECTIVES = {**FORGET, **RETAIN}


def answers_from(p: list[list[float]], labels: list[int], rows: list[int], **reference: Any) -> Answers:
    """Answers whose distributions are given as probabilities [N, V]."""
    return Answers(torch.tensor(p).log(), torch.tensor(labels), torch.tensor(rows), max(rows) + 1, **reference)


def two_rows(**reference: Any) -> Answers:
    """Row 0: tokens of probability 1/2 and 1/4 (log p = -3 ln 2 in all). Row 1: one token of probability 1/8."""
    p = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.125, 0.375, 0.5]]
    return answers_from(p, [0, 0, 0], [0, 0, 1], **reference)


def npo_term(beta: float, ratio: float) -> float:
    return 2 / beta * math.log1p(math.exp(beta * ratio))


# objective, answers, expected terms. The arithmetic stands in the row.
VALUES: list[tuple[Objective, Answers, list[float]]] = [
    # -CE per token: log 1/2, log 1/4, log 1/8
    (Ascent(), two_rows(), [-LN2, -2 * LN2, -3 * LN2]),
    (NLL(), two_rows(), [LN2, 2 * LN2, 3 * LN2]),
    # policy = reference: (2/beta) ln 2 = 13.863 for beta 0.1
    (NPO(beta=0.1), two_rows(reference_logp_B=torch.tensor([-3 * LN2, -3 * LN2])), [20 * LN2, 20 * LN2]),
    # r = -10 -> 20 ln(1 + e^-1) = 6.265; r = -50 -> 20 ln(1 + e^-5) = 0.134
    (
        NPO(beta=0.1),
        two_rows(reference_logp_B=torch.tensor([10 - 3 * LN2, 50 - 3 * LN2])),
        [20 * math.log1p(math.exp(-1)), 20 * math.log1p(math.exp(-5))],
    ),
    # r = +5 -> 20 ln(1 + e^0.5) = 19.48
    (NPO(beta=0.1), two_rows(reference_logp_B=torch.tensor([-5 - 3 * LN2, -3 * LN2])), [npo_term(0.1, 5), 20 * LN2]),
    # KL(start || policy), start (1/2, 1/2), policy (9/10, 1/10): (1/2) ln(5/9) + (1/2) ln 5 = 0.511; the reverse: 0.368
    (
        KL(),
        answers_from(
            [[0.9, 0.1], [0.5, 0.5]], [0, 1], [0, 0], reference_logits_NV=torch.tensor([[0.5, 0.5]] * 2).log()
        ),
        [0.5 * math.log(5 / 9) + 0.5 * math.log(5), 0.0],
    ),
]


@pytest.mark.parametrize(("objective", "answers", "expected"), VALUES)
def test_value(objective: Objective, answers: Answers, expected: list[float]) -> None:
    torch.testing.assert_close(objective.terms(answers), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_every_objective_that_takes_part_in_a_step_has_a_row() -> None:
    assert {type(objective) for objective, *_ in VALUES} == {cls for cls in OBJECTIVES.values() if cls().active}
    assert all(cls().name == name for name, cls in OBJECTIVES.items())


def test_published_npo_numbers() -> None:
    """(2/0.1) ln(1 + exp(0.1 r)) and its gradient weight 2 sigmoid(0.1 r), as printed to three digits."""
    values = {0: (13.863, 1.0), -10: (6.265, 0.538), -50: (0.134, 0.0134), 5: (19.48, 1.245)}
    for ratio, (loss, weight) in values.items():
        logp_ref = torch.tensor([0.0])
        logp = torch.tensor([float(ratio)], requires_grad=True)
        answers = Fixed(logp, logp_ref)
        terms = NPO(beta=0.1).terms(answers)
        terms.sum().backward()
        assert terms.item() == pytest.approx(loss, abs=6e-3)
        assert logp.grad is not None
        assert logp.grad.item() == pytest.approx(weight, abs=6e-4)


class Fixed(Answers):
    """Answers whose one token has the log-probability that is given."""

    def __init__(self, logp_N: Tensor, reference_logp_B: Tensor) -> None:
        super().__init__(torch.zeros(1, 2), torch.zeros(1).long(), torch.zeros(1).long(), 1, reference_logp_B)
        self.__dict__["logp_N"] = logp_N


def random_answers(seed: int = 0) -> Answers:
    """Five tokens of three rows over seven words, one of which is nearly certain and one nearly impossible."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, 7, generator=generator)
    labels = torch.tensor([3, 1, 0, 6, 2])
    logits[0, 3], logits[1, 1] = 60.0, -60.0
    start = torch.randn(5, 7, generator=generator)
    rows = torch.tensor([0, 0, 1, 1, 2])
    start_answers = Answers(start, labels, rows, 3)
    return Answers(logits, labels, rows, 3, start_answers.per_row(start_answers.logp_N), start)


ACTIVE = [cls() for cls in OBJECTIVES.values() if cls().active]
every_objective = pytest.mark.parametrize("objective", ACTIVE, ids=lambda objective: objective.name)


def gradient(objective: Objective, answers: Answers) -> Tensor:
    logits = answers.logits_NV.clone().requires_grad_()
    objective.terms(replace(answers, logits_NV=logits)).sum().backward()
    assert logits.grad is not None
    return logits.grad


@every_objective
def test_a_constant_added_to_all_logits_changes_nothing(objective: Objective) -> None:
    answers = random_answers()
    shifted = replace(answers, logits_NV=answers.logits_NV + 7)
    torch.testing.assert_close(objective.terms(shifted), objective.terms(answers), rtol=1e-4, atol=1e-4)


@every_objective
def test_finite_with_finite_gradient_for_p_towards_0_and_1(objective: Objective) -> None:
    answers = random_answers()
    assert objective.terms(answers).isfinite().all()
    assert gradient(objective, answers).isfinite().all()


@every_objective
def test_terms_follow_their_rows_in_any_order(objective: Objective) -> None:
    answers = random_answers()
    order = torch.tensor([4, 2, 3, 0, 1])
    new_row = torch.tensor([1, 2, 0])  # row 0 -> 1, row 1 -> 2, row 2 -> 0
    moved = Answers(
        answers.logits_NV[order],
        answers.labels_N[order],
        new_row[answers.row_N[order]],
        3,
        answers.reference_logp_B[torch.tensor([2, 0, 1])] if answers.reference_logp_B is not None else None,
        answers.reference_logits_NV[order] if answers.reference_logits_NV is not None else None,
    )
    assert objective.terms(moved).sum() == pytest.approx(objective.terms(answers).sum().item(), rel=1e-5)


@every_objective
def test_bf16_logits_give_fp32_terms(objective: Objective) -> None:
    answers = random_answers()
    rounded = replace(answers, logits_NV=answers.logits_NV.bfloat16())
    terms = objective.terms(rounded)
    assert terms.dtype == torch.float32
    exact = objective.terms(replace(answers, logits_NV=answers.logits_NV.bfloat16().float()))
    torch.testing.assert_close(terms, exact)


def test_npo_is_ascent_for_small_beta_and_at_the_start_model() -> None:
    answers = random_answers()
    start = replace(answers, reference_logp_B=answers.per_row(answers.logp_N))
    ascent = gradient(Ascent(), answers)
    torch.testing.assert_close(gradient(NPO(beta=0.1), start), ascent, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradient(NPO(beta=1e-6), answers), ascent, rtol=1e-3, atol=1e-4)


def test_kl_of_identical_models_is_zero_with_zero_gradient() -> None:
    answers = random_answers()
    same = replace(answers, reference_logits_NV=answers.logits_NV)
    assert KL().terms(same).abs().max() < 1e-6
    assert gradient(KL(), same).abs().max() < 1e-6


def test_a_row_without_answer_tokens_sums_to_zero() -> None:
    answers = Answers(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([1]), 3)
    torch.testing.assert_close(answers.per_row(answers.logp_N), torch.tensor([0.0, -math.log(3), 0.0]))
