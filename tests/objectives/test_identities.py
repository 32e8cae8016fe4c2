"""What objectives become in limits and special cases, and weights that the gradient must not see."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.objectives.builders import at_start, gradient, loss, random_answers
from unlearn.objectives.activation import RMU
from unlearn.objectives.distribution import CEU, JensUn, MaxEntropy, Undial
from unlearn.objectives.forget import NPO, WGA, Ascent, SatImp, SimNPO
from unlearn.objectives.logprobs import Answers
from unlearn.objectives.objective import Objective
from unlearn.objectives.preference import DPO
from unlearn.objectives.retain import KL, NLL, ProbWeighted


def sequence_ascent(answers: Answers, mean: bool = False) -> Tensor:
    """Gradient of the rows' mean log-probability, summed over the answer or, with `mean`, per token of it."""
    logits = answers.logits_NV.clone().requires_grad_()
    policy = Answers(logits, answers.labels_N, answers.row_N, answers.n_rows)
    logp_B = policy.per_row(policy.logp_N)
    (logp_B / policy.length_B if mean else logp_B).mean().backward()
    assert logits.grad is not None
    return logits.grad.flatten()


def logit_gradient(objective: Objective, answers: Answers) -> Tensor:
    """The part of the gradient in the answers' own logits."""
    return gradient(objective, answers)[: answers.logits_NV.numel()]


def one_hot_minus_p(answers: Answers) -> Tensor:
    """Gradient of log pi(y_t) in the logits: [N, V]."""
    return torch.eye(7)[answers.labels_N] - answers.logits_NV.softmax(-1)


def test_npo_is_ascent_for_small_beta_and_at_the_start_model() -> None:
    answers = random_answers()
    torch.testing.assert_close(logit_gradient(NPO(beta=1e-6), answers), sequence_ascent(answers), rtol=1e-3, atol=1e-4)
    start = at_start(answers)
    torch.testing.assert_close(logit_gradient(NPO(beta=0.1), start), sequence_ascent(start), rtol=1e-4, atol=1e-6)


def test_simnpo_is_ascent_on_the_mean_token_for_small_beta() -> None:
    answers = random_answers()
    found = logit_gradient(SimNPO(beta=1e-6), answers)
    torch.testing.assert_close(found, sequence_ascent(answers, mean=True), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("objective", [WGA(beta=0), SatImp(beta1=0, beta2=0)], ids=lambda objective: objective.name)
@pytest.mark.parametrize("extreme", [0, 60])
def test_weighted_ascent_without_weights_is_ascent(objective: Objective, extreme: float) -> None:
    answers = random_answers(extreme=extreme)
    torch.testing.assert_close(objective.terms(answers), Ascent().terms(answers))
    torch.testing.assert_close(gradient(objective, answers), gradient(Ascent(), answers))


def test_prob_weighted_without_a_weight_is_nll() -> None:
    answers = random_answers()
    torch.testing.assert_close(ProbWeighted(beta=0).terms(answers), NLL().terms(answers))


@pytest.mark.parametrize("beta", [0.05, 0.1, 0.5])
def test_dpo_at_the_start_model_is_two_over_beta_times_ln_2(beta: float) -> None:
    terms = DPO(beta=beta).terms(at_start(random_answers()))
    torch.testing.assert_close(terms, torch.full((3,), 2 / beta * math.log(2)))


def test_dpo_is_npo_where_the_alternate_has_not_moved() -> None:
    answers = random_answers()
    assert answers.alternate is not None
    alternate = answers.alternate
    still = replace(alternate, reference_logp_B=alternate.per_row(alternate.logp_N))
    torch.testing.assert_close(DPO().terms(replace(answers, alternate=still)), NPO().terms(answers))


def test_undial_that_lowers_nothing_stands_still_at_the_start_model() -> None:
    start = at_start(random_answers())
    assert gradient(Undial(beta=0), start).abs().max() < 1e-6
    assert gradient(Undial(beta=1), start).abs().max() > 1e-2


def test_kl_of_a_model_with_itself_is_0_and_no_cross_entropy() -> None:
    """The cross-entropy would be ln 2 for (1/2, 1/2)."""
    same = Answers(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0]), 1, reference_logits_NV=torch.zeros(1, 2))
    for objective in (KL(), KL(critical=1)):
        assert objective.terms(same).item() == pytest.approx(0, abs=1e-7)


def test_kl_with_critical_tokens_spares_what_the_start_model_is_sure_of() -> None:
    """A start model that is certain has entropy 0, so its token weighs 0; a uniform one has log V and weighs 1."""
    start = torch.tensor([[100.0, 0, 0, 0], [0, 0, 0, 0]])
    answers = Answers(
        torch.randn(2, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([1, 1]),
        torch.tensor([0, 0]),
        1,
        reference_logits_NV=start,
    )
    plain = KL().terms(answers)
    assert plain.min() > 0.1
    for critical in (0.5, 1, 3):
        torch.testing.assert_close(KL(critical=critical).terms(answers), plain * torch.tensor([0.0, 1.0]))


def test_jensun_lies_between_0_and_log_2() -> None:
    logits = torch.tensor([[-1e4, 0.0, 0.0], [0.0, 0.0, 0.0], [1e4, 0.0, 0.0]])  # p of the target: 0, 1/3, 1
    answers = Answers(logits, torch.zeros(3).long(), torch.zeros(3).long(), 1, targets_N=torch.zeros(3).long())
    terms = JensUn().terms(answers)
    assert terms[0].item() == pytest.approx(math.log(2), abs=1e-7)
    assert 0.1 < terms[1].item() < 0.6
    assert terms[2].item() == pytest.approx(0, abs=1e-6)


def test_me_is_0_for_the_uniform_distribution_alone() -> None:
    answers = random_answers()
    uniform = replace(answers, logits_NV=torch.full_like(answers.logits_NV, 3.0))
    assert loss(MaxEntropy(), uniform).abs() < 1e-6
    assert gradient(MaxEntropy(), uniform).abs().max() < 1e-6
    assert MaxEntropy().terms(answers).min() > 1e-2


@pytest.mark.parametrize(
    ("objective", "weight"),
    [
        (WGA(beta=1), lambda p: p),
        (WGA(beta=3), lambda p: p**3),
        (SatImp(beta1=5, beta2=1), lambda p: p**5 * (1 - p)),
        (ProbWeighted(beta=2), lambda p: -(p**2)),
    ],
    ids=["wga-1", "wga-3", "satimp", "prob_weighted"],
)
def test_weights_are_no_part_of_the_gradient(objective: Objective, weight: object) -> None:
    """weight(p_t) (onehot(y_t) - pi) over 5 tokens: no term for the change of the weight itself."""
    answers = random_answers()
    p_N = answers.logits_NV.softmax(-1)[torch.arange(5), answers.labels_N]
    assert callable(weight)
    expected = weight(p_N)[:, None] * one_hot_minus_p(answers) / 5
    torch.testing.assert_close(logit_gradient(objective, answers), expected.flatten(), rtol=1e-4, atol=1e-7)


def test_the_target_of_ceu_is_no_part_of_the_gradient() -> None:
    """pi - target, where the target is pi without the true token: its share p_y is spread over the others."""
    answers = random_answers()
    p_NV = answers.logits_NV.softmax(-1)
    true_NV = torch.eye(7)[answers.labels_N]
    p_N1 = (p_NV * true_NV).sum(-1, keepdim=True)
    target_NV = p_NV * (1 - true_NV) / (1 - p_N1)
    found = logit_gradient(CEU(), answers)
    torch.testing.assert_close(found, ((p_NV - target_NV) / 5).flatten(), rtol=1e-4, atol=1e-7)


def test_the_direction_of_rmu_is_one_nonnegative_unit_vector_per_seed() -> None:
    """At h = 0 the gradient of one token's term is -2 c u / D, so u = -gradient D / (2 c)."""
    hidden = torch.zeros(3, 64)

    def direction(seed: int) -> Tensor:
        leaf = hidden.clone().requires_grad_()
        answers = Answers(torch.zeros(3, 2), torch.zeros(3).long(), torch.zeros(3).long(), 1, hidden_ND=leaf)
        RMU(coefficient=2, direction_seed=seed).terms(answers).sum().backward()
        assert leaf.grad is not None
        return -leaf.grad * 64 / 4

    first = direction(0)
    torch.manual_seed(123)
    torch.testing.assert_close(direction(0), first)
    torch.testing.assert_close(first[0], first[2])
    assert first.min() >= 0
    assert first[0].norm().item() == pytest.approx(1, abs=1e-5)
    assert (direction(1) - first).abs().max() > 0.01
