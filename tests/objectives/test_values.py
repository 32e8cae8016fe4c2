"""One table of hand-derived values for every objective, and published numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.objectives.builders import CLASSES, alternates, answers_from, label, log, two_rows
from unlearn.objectives.activation import RMU, Activation
from unlearn.objectives.distribution import (
    CEU,
    IHL,
    PDU,
    WHP,
    AdversarialLabel,
    JensUn,
    MaxEntropy,
    RandomLabel,
    Undial,
)
from unlearn.objectives.forget import FORGET, NPO, WGA, Ascent, SatImp, SimNPO, TaskVector
from unlearn.objectives.logprobs import Answers
from unlearn.objectives.objective import Objective
from unlearn.objectives.preference import DPO, FLAT, IDK, LLMU, SSU, AnswerPreservation
from unlearn.objectives.retain import JSD, KL, NLL, RETAIN, ProbWeighted

L = math.log(2)
ln, exp, tanh = math.log, math.exp, math.tanh


def refs(*logp: float) -> Tensor:
    """Reference log-probabilities of the rows, in units of ln 2."""
    return torch.tensor(logp) * L


def one_token(p: list[float], **more: object) -> Answers:
    return answers_from([p], [0], **more)


HALF = [0.5, 0.25, 0.25]  # log p = -L, -2L, -2L; the label is the first word
REFUSALS = two_rows(targets_N=torch.tensor([1, 1, 2]))  # of probability 1/4, 1/2, 1/2

# objective, answers, expected terms (by unit where there are several). The arithmetic stands in the row.
VALUES: list[tuple[Objective, Answers, list[float] | dict[str, list[float]]]] = [
    # log p of the tokens: ln 1/2, ln 1/4, ln 1/8
    (Ascent(), two_rows(), [-L, -2 * L, -3 * L]),
    (NLL(), two_rows(), [L, 2 * L, 3 * L]),
    (TaskVector(), two_rows(), [L, 2 * L, 3 * L]),
    # policy = reference: (2/beta) ln 2 = 13.863 for beta 0.1
    (NPO(beta=0.1), two_rows(reference_logp_B=refs(-3, -3)), [20 * L, 20 * L]),
    # beta 1, r = -ln 2 and +2 ln 2: 2 ln(1 + 1/2), 2 ln(1 + 4)
    (NPO(beta=1), two_rows(reference_logp_B=refs(-2, -5)), [2 * ln(1.5), 2 * ln(5)]),
    # mean NLL 1.5 ln 2 and 3 ln 2, times beta 2: ln(1 + 2^-3), ln(1 + 2^-6)
    (SimNPO(beta=2), two_rows(), [ln(9 / 8), ln(65 / 64)]),
    # margin ln 2 outside: exponents 3 - 1 and 6 - 1
    (SimNPO(beta=2, gamma=L), two_rows(), [ln(1 + 1 / 4), ln(1 + 1 / 32)]),
    # published default: exponents 4.5 * 1.5 = 6.75 and 4.5 * 3 = 13.5; 2/4.5 = 4/9
    (SimNPO(), two_rows(), [4 / 9 * ln(1 + 2**-6.75), 4 / 9 * ln(1 + 2**-13.5)]),
    # policy = reference on both answers: 13.863
    (
        DPO(beta=0.1),
        two_rows(reference_logp_B=refs(-3, -3), alternate=alternates(reference_logp_B=refs(-2, -3))),
        [20 * L, 20 * L],
    ),
    # log-ratios of the alternate +2, +1, of the answer +1, -1 (in ln 2): margins +1, +2: 2 ln(1 + 1/2), 2 ln(1 + 1/4)
    (
        DPO(beta=1),
        two_rows(reference_logp_B=refs(-4, -2), alternate=alternates(reference_logp_B=refs(-4, -4))),
        [2 * ln(1.5), 2 * ln(1.25)],
    ),
    # -log p of the alternates' tokens 1/4, 1/2, 1/4
    (IDK(), two_rows(alternate=alternates()), [2 * L, L, 2 * L]),
    # z_ref = ln(1/2, 1/4, 1/4), the first lowered by ln 2: uniform, so CE = (L + 2L + 2L) / 3
    (Undial(beta=L), one_token(HALF, reference_logits_NV=log([HALF])), [5 / 3 * L]),
    # lowered by 10: e = e^-10/2 : 1/4 : 1/4 = 1/(1 + e^10) for the label, the rest costs 2L each: e L + (1 - e) 2L
    (Undial(), one_token(HALF, reference_logits_NV=log([HALF])), [(2 - 1 / (1 + exp(10))) * L]),
    # p log p: -L/2, -2L/4, -3L/8; p^2 log p: -L/4, -2L/16, -3L/64
    (WGA(beta=1), two_rows(), [-L / 2, -L / 2, -3 / 8 * L]),
    (WGA(beta=2), two_rows(), [-L / 4, -L / 8, -3 / 64 * L]),
    # p^5 (1 - p) log p: (1/32)(1/2)(-L), (1/1024)(3/4)(-2L), (1/32768)(7/8)(-3L)
    (SatImp(), two_rows(), [-L / 64, -3 / 2048 * L, -21 / 262144 * L]),
    # beta 1 and 2: (1/2)(1/4)(-L), (1/4)(9/16)(-2L), (1/8)(49/64)(-3L)
    (SatImp(beta1=1, beta2=2), two_rows(), [-L / 8, -9 / 32 * L, -147 / 512 * L]),
    # without the label: (1/2, 1/2), (2/3, 1/3), (3/7, 4/7), against policies (1/4, 1/4), (1/2, 1/4), (3/8, 1/2)
    (CEU(), two_rows(), [2 * L, 4 / 3 * L, 3 / 7 * ln(8 / 3) + 4 / 7 * L]),
    # sum_v (1/3) ln((1/3) / p_v) = -ln 3 - (1/3) sum_v ln p_v
    (MaxEntropy(), two_rows(), [-ln(3) + 5 / 3 * L, -ln(3) + 5 / 3 * L, -ln(3) + (3 * L + ln(8 / 3) + L) / 3]),
    # 1 + 1/2 - 1/4, 1 + 1/4 - 1/2, 1 + 1/8 - 1/2
    (IHL(), two_rows(), [1.25, 0.75, 0.625]),
    # m = (p + e)/2. Token 0, e on the second word: m = (1/4, 5/8, 1/8), KL(p||m) = L/2 + ln(2/5)/4 + L/4, KL(e||m) =
    # ln(8/5). Token 1, second word: m = (1/8, 3/4, 1/8): L/4 + ln(2/3)/2 + L/4, ln(4/3). Token 2, third word:
    # m = (1/16, 3/16, 3/4): L/8 + 3L/8 + ln(2/3)/2, ln(4/3).
    (
        JensUn(),
        REFUSALS,
        [
            (0.75 * L + ln(2 / 5) / 4 + ln(8 / 5)) / 2,
            (0.5 * L + ln(2 / 3) / 2 + ln(4 / 3)) / 2,
            (0.5 * L + ln(2 / 3) / 2 + ln(4 / 3)) / 2,
        ],
    ),
    # mean p of the answers (1/2 + 1/4)/2 = 3/8 and 1/8, of the alternates 1/4 and (1/2 + 1/4)/2 = 3/8
    (
        FLAT(),
        two_rows(alternate=alternates()),
        [(tanh(0.375) - tanh(0.25)) / 2, (tanh(0.125) - tanh(0.375)) / 2],
    ),
    (FLAT(divergence="kl"), two_rows(alternate=alternates()), [exp(-5 / 8) - 1 / 4, exp(-7 / 8) - 3 / 8]),
    # (3/8)^2/4 + 3/8 - 1/4, (1/8)^2/4 + 1/8 - 3/8
    (FLAT(divergence="pearson"), two_rows(alternate=alternates()), [9 / 256 + 1 / 8, 1 / 256 - 1 / 4]),
    # -log p of the targets: 1/4, 1/2, 1/2
    (RandomLabel(), REFUSALS, [2 * L, L, L]),
    (AdversarialLabel(), REFUSALS, [2 * L, L, L]),
    # one dimension, so u = 1: (2.5 - 6.5)^2, (6.5 - 6.5)^2, (0 - 6.5)^2
    (RMU(), two_rows(hidden_ND=torch.tensor([[2.5], [6.5], [0.0]])), [16, 0, 42.25]),
    # hidden states of zero: |c u|^2 / D = 6.5^2 / 4 and 2^2 / 4, whatever the direction
    (RMU(), two_rows(hidden_ND=torch.zeros(3, 4)), [10.5625] * 3),
    (RMU(coefficient=2, direction_seed=5), two_rows(hidden_ND=torch.zeros(3, 4)), [1.0] * 3),
    # max - mean: logits (3, 0, 0): 3 - 1 = 2; (1, 2, 6): 6 - 3 = 3; (5, 5, 5): 0
    (
        PDU(),
        Answers(
            torch.tensor([[3.0, 0, 0], [1, 2, 6], [5, 5, 5]]), torch.zeros(3).long(), torch.zeros(3).long(), n_rows=1
        ),
        [4, 9, 0],
    ),
    # z_ref = ln(1/2, 1/4, 1/4), z_reinforced = ln(1, 1/4, 1/8): only the first rises, by ln 2. alpha 1: uniform,
    # (L + 2L + 2L)/3. alpha 5: 1/64 : 1/4 : 1/4 = 1 : 16 : 16, (L + 16 * 2L + 16 * 2L)/33
    (
        WHP(),
        one_token(HALF, reference_logits_NV=log([HALF]), reinforced_logits_NV=log([[1, 0.25, 0.125]])),
        [5 / 3 * L],
    ),
    (
        WHP(alpha=5),
        one_token(HALF, reference_logits_NV=log([HALF]), reinforced_logits_NV=log([[1, 0.25, 0.125]])),
        [65 / 33 * L],
    ),
    (
        SSU(),
        two_rows(alternate=alternates()),
        {"token": [L, 2 * L, 3 * L], "alternate_token": [2 * L, L, 2 * L]},
    ),
    (
        SSU(epsilon=0.25),
        two_rows(alternate=alternates()),
        {"token": [L, 2 * L, 3 * L], "alternate_token": [L / 2, L / 4, L / 2]},
    ),
    (
        LLMU(),
        two_rows(alternate=alternates()),
        {"token": [-L / 2, -L, -1.5 * L], "alternate_token": [2 * L, L, 2 * L]},
    ),
    # p (-log p), then p^2 (-log p)
    (ProbWeighted(), two_rows(), [L / 2, L / 2, 3 / 8 * L]),
    (ProbWeighted(beta=2), two_rows(), [L / 4, L / 8, 3 / 64 * L]),
    # start (1/2, 1/2), policy (9/10, 1/10): (1/2) ln(5/9) + (1/2) ln 5 = 0.511 (the reverse is 0.368); then equal: 0
    (
        KL(),
        answers_from([[0.9, 0.1], [0.5, 0.5]], [0, 0], reference_logits_NV=log([[0.5, 0.5]] * 2)),
        [0.5 * ln(5 / 9) + 0.5 * ln(5), 0],
    ),
    # start (1/2, 1/4, 1/8, 1/8): H = 7/4 ln 2 of 2 ln 2, a weight of 7/8; policy uniform: KL = 2 ln 2 - H = ln 2 / 4
    (
        KL(critical=1),
        one_token([0.25] * 4, reference_logits_NV=log([[0.5, 0.25, 0.125, 0.125]])),
        [7 / 8 * L / 4],
    ),
    (
        KL(critical=2),
        one_token([0.25] * 4, reference_logits_NV=log([[0.5, 0.25, 0.125, 0.125]])),
        [49 / 64 * L / 4],
    ),
    # m = (7/10, 3/10): KL((1/2, 1/2)||m) = ln(5/7)/2 + ln(5/3)/2; KL((9/10, 1/10)||m) = 9/10 ln(9/7) + 1/10 ln(1/3)
    (
        JSD(),
        one_token([0.9, 0.1], reference_logits_NV=log([[0.5, 0.5]])),
        [(ln(5 / 7) / 2 + ln(5 / 3) / 2 + 0.9 * ln(9 / 7) + 0.1 * ln(1 / 3)) / 2],
    ),
    # mean of squared differences: (1 + 9)/2, 0, (4 + 0)/2
    (
        Activation(),
        two_rows(
            hidden_ND=torch.tensor([[1.0, 2], [3, 4], [0, 5]]),
            reference_hidden_ND=torch.tensor([[2.0, -1], [3, 4], [2, 5]]),
        ),
        [5, 0, 2],
    ),
    # answers -3, -3, alternates -2, -3 (in ln 2): differences -1 and 0: (1/beta) ln(1 + 2^beta), (1/beta) ln 2
    (AnswerPreservation(beta=1), two_rows(alternate=alternates()), [ln(3), L]),
    (AnswerPreservation(), two_rows(alternate=alternates()), [10 * ln(1 + 2**0.1), 10 * L]),
]


@pytest.mark.parametrize(("objective", "answers", "expected"), VALUES, ids=[label(row[0]) for row in VALUES])
def test_value(objective: Objective, answers: Answers, expected: list[float] | dict[str, list[float]]) -> None:
    parts = objective.parts(answers)
    wanted = expected if isinstance(expected, dict) else {objective.unit: expected}
    assert list(parts) == list(wanted)
    for unit, terms in wanted.items():
        torch.testing.assert_close(parts[unit], torch.tensor(terms, dtype=torch.float32), rtol=1e-5, atol=1e-6)


def test_every_objective_that_takes_part_in_a_step_has_a_row() -> None:
    assert {type(objective) for objective, *_ in VALUES} == set(CLASSES)
    assert all(cls().name == name for group in (FORGET, RETAIN) for name, cls in group.items())


class Fixed(Answers):
    """Answers of one token per row, whose log-probabilities are given."""

    def __init__(self, logp_N: Tensor, reference_logp_B: Tensor | None = None) -> None:
        n = len(logp_N)
        super().__init__(torch.zeros(n, 2), torch.zeros(n).long(), torch.arange(n), n, reference_logp_B)
        self.__dict__["logp_N"] = logp_N


def test_published_npo_numbers() -> None:
    """(2/0.1) ln(1 + exp(0.1 r)) and its gradient weight 2 sigmoid(0.1 r), as printed to three digits."""
    values = {0: (13.863, 1.0), -10: (6.265, 0.538), -50: (0.134, 0.0134), 5: (19.48, 1.245)}
    for ratio, (value, weight) in values.items():
        logp = torch.tensor([float(ratio)], requires_grad=True)
        terms = NPO(beta=0.1).terms(Fixed(logp, torch.zeros(1)))
        terms.sum().backward()
        assert terms.item() == pytest.approx(value, abs=6e-3)
        assert logp.grad is not None
        assert logp.grad.item() == pytest.approx(weight, abs=6e-4)


def test_the_margin_of_simnpo_stands_outside_of_the_product_with_beta() -> None:
    """Mean NLL 2, beta 2.5, gamma 0.5: 0.8 ln(1 + e^-(5 - 0.5)) = 0.00884.

    A margin delta inside is gamma = beta delta: 0.8 ln(1 + e^-3.75) = 0.01860 for delta 0.5, 0.00884 for delta 0.2.
    """
    answers = Fixed(torch.tensor([-2.0]))
    for gamma, value in {0.5: 0.00884, 2.5 * 0.5: 0.01860, 2.5 * 0.2: 0.00884}.items():
        assert SimNPO(beta=2.5, gamma=gamma).terms(answers).item() == pytest.approx(value, abs=6e-6)


def test_rmu_trains_the_down_projections_of_three_layers() -> None:
    """Layer 7 of 32 as published, with 5 and 6 before it; 16 * 7 // 32 = 3; 2 * 7 // 32 = 0."""
    import re

    for depth, layers in {32: [5, 6, 7], 16: [1, 2, 3], 2: [0]}.items():
        pattern, numbers = RMU().trains(depth)
        assert (RMU().layer_of(depth), list(numbers)) == (layers[-1], layers)
        assert Activation().layer_of(depth) == layers[-1]
    assert RMU(layer=9).layer_of(32) == 9
    names = {
        "model.layers.5.mlp.down_proj.weight": True,  # Llama, Mistral
        "model.layers.5.mlp.fc2.weight": True,  # Phi
        "transformer.h.5.mlp.c_proj.weight": True,  # GPT-2
        "transformer.h.5.mlp.dense_4h_to_h.weight": True,  # Falcon
        "model.layers.5.mlp.down_proj.lora_A.default.weight": True,
        "model.layers.5.mlp.down_proj.lora_B.default.weight": True,
        "model.layers.5.mlp.down_proj.base_layer.weight": False,
        "model.layers.5.mlp.up_proj.lora_A.default.weight": False,
        "transformer.h.5.attn.c_proj.weight": False,
        "model.layers.5.mlp.up_proj.weight": False,
        "model.layers.5.mlp.fc2.bias": False,
    }
    assert {name: re.search(pattern, name) is not None for name in names} == names


def test_negation() -> None:
    """MUSE subtracts five task vectors, SSU one; all other objectives end where training ends."""
    negated = {cls().name: cls().negation for cls in CLASSES if cls().negation is not None}
    assert negated == {"task_vector": 5.0, "ssu": 1.0}
    assert TaskVector(scale=2).negation == 2
