"""Every optimizer's first two steps by hand, the learning rate it starts from, and what is refused."""

from __future__ import annotations

import copy
import importlib.util
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import compose_run
from unlearn.cli import help as help_page
from unlearn.cli.method_checks import conflicts
from unlearn.gradients.collect import gram_matrix
from unlearn.gradients.combine import COMBINE, Gram, Losses, NGDiff, RuleState, Weights
from unlearn.training import optimizer as configs
from unlearn.training.adamw_pair import AdamWPair
from unlearn.training.optimizer import OPTIMIZERS, OptimizerConfig
from unlearn.training.wrappers import build

LR = 0.1
G1, G2 = 2.0, -1.0
"""Gradients of the two steps by hand, on one weight that begins at 1."""


def two_steps(config: OptimizerConfig) -> list[float]:
    theta = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = config.build([theta])
    found = []
    for grad in (G1, G2):
        theta.grad = torch.tensor([grad], dtype=torch.float64)
        optimizer.step()
        found.append(theta.item())
    return found


def test_sgd_by_hand() -> None:
    """Step 1: 2. Step 2: momentum 0.5 * 2 - 1 = 0. Without momentum: -1."""
    assert two_steps(configs.SGD(lr=LR, momentum=0.5)) == pytest.approx([1 - LR * 2, 0.8 - LR * 0])
    assert two_steps(configs.SGD(lr=LR)) == pytest.approx([0.8, 0.8 + LR])


def test_adamw_by_hand() -> None:
    """Betas 0.5 and 0.75, weight decay 0.1, so that a weight is first multiplied by 1 - 0.1 * 0.1 = 0.99.

    Step 1: m^ = g, v^ = g^2: a step of 1. Step 2: m = 0.5 * 1 - 0.5 * 1 = 0.5 of 1 - 0.25 = 0.75, so m^ = 0 with
    m = 0.5 * (0.5 * 2) + 0.5 * -1 = 0; the weight only decays.
    """
    config = configs.AdamW(lr=LR, beta1=0.5, beta2=0.75, weight_decay=0.1)
    first = 0.99 * 1 - LR * 1
    assert two_steps(config) == pytest.approx([first, 0.99 * first], abs=1e-8)


def test_sophia_by_hand() -> None:
    """Betas 0.5 and 0.75, rho 0.5, 4 rows, weight decay 0.1.

    Step 1: m = 0.5 * 2 = 1, h = 0.25 * 4 = 1, rho B h = 2: a share of 1/2.
    Step 2: m = 0.5 * 1 - 0.5 = 0: nothing but the decay.
    """
    config = configs.Sophia(lr=LR, beta1=0.5, beta2=0.75, rho=0.5, weight_decay=0.1, batch_size=4)
    first = 0.99 - LR / 2
    assert two_steps(config) == pytest.approx([first, 0.99 * first])
    # Without memory of the first gradient (beta1 = 0): m = -1, h = 0.75 * 1 + 0.25 * 1 = 1, a share of 1/2 upwards.
    config = configs.Sophia(lr=LR, beta1=0.0, beta2=0.75, rho=0.5, weight_decay=0.0, batch_size=4)
    assert two_steps(config)[0] == pytest.approx(1 - LR * 1), "2 / 2: the share is cut at 1"
    assert two_steps(config)[1] == pytest.approx(1 - LR + LR / 2)


def test_sophia_is_sign_descent_where_the_curvature_is_small_and_still_where_there_is_no_gradient() -> None:
    theta = torch.zeros(4, requires_grad=True)
    optimizer = configs.Sophia(lr=LR, weight_decay=0.1, batch_size=32).build([theta])
    theta.grad = torch.tensor([1e-3, -1e-30, 0.0, 1e3])
    optimizer.step()
    # m = 0.1 g and h = 0.05 g^2: |m| / (0.04 * 32 h) = 1.5625 / |g|, above 1 for the first two.
    torch.testing.assert_close(theta.detach(), torch.tensor([-LR, LR, 0.0, -LR * 0.1 / (0.04 * 32 * 0.05 * 1e3)]))


def pair_step(theta: Tensor, optimizer: AdamWPair, retain: Tensor, forget: Tensor) -> Weights:
    """One step with NGDiff's weights in the optimizer's metric; leaves what it did in theta."""
    gram = gram_matrix([retain], [forget], optimizer.preconditioner([retain], [forget]))
    weights = NGDiff().weights(gram, Losses(0.0, 0.0), RuleState())
    theta.grad = weights.retain * retain + weights.forget * forget
    optimizer.step()
    return weights


def test_adamw_pair_by_hand() -> None:
    """Two entries, beta2 0.75, weight decay 0.1.

    Step 1: u_R = (1, 0), u_F = (0.6, 0.8), so v^ = ((1 + 0.36) / 2, 0.64 / 2) = (0.68, 0.32), P = sqrt(2 / v^).
    Step 2: u_R = (0, 1), u_F = (0, -1): v = 0.75 * 0.25 * (0.68, 0.32) + 0.25 * (0, 1), v^ = v / (1 - 0.75^2).
    """
    config = configs.AdamWPair(lr=LR, beta2=0.75, weight_decay=0.1)
    theta = torch.ones(2, dtype=torch.float64, requires_grad=True)
    optimizer = config.build([theta])
    assert isinstance(optimizer, AdamWPair)
    pairs = [((5.0, 0.0), (3.0, 4.0)), ((0.0, 2.0), (0.0, -7.0))]
    v_hats = [(0.68, 0.32), (0.75 * 0.25 * 0.68 / 0.4375, (0.75 * 0.25 * 0.32 + 0.25) / 0.4375)]
    expected = before = [1.0, 1.0]
    for (retain, forget), v_hat in zip(pairs, v_hats, strict=True):
        grads = torch.tensor(retain, dtype=torch.float64), torch.tensor(forget, dtype=torch.float64)
        before = theta.tolist()
        weights = pair_step(theta, optimizer, *grads)
        p = [math.sqrt(2 / v) for v in v_hat]
        norm_r = math.sqrt(sum(a * a * b for a, b in zip(retain, p, strict=True)))
        norm_f = math.sqrt(sum(a * a * b for a, b in zip(forget, p, strict=True)))
        assert weights == pytest.approx((1 / norm_r, 1 / norm_f))
        expected = [
            0.99 * x - LR * b * (r / norm_r + f / norm_f)
            for x, b, r, f in zip(expected, p, retain, forget, strict=True)
        ]
        assert theta.tolist() == pytest.approx(expected, rel=1e-6)
    # Step 2: opposite gradients of any length are a step of zero, and the weights only decay.
    assert theta.tolist() == pytest.approx([0.99 * x for x in before], rel=1e-6)


def conflicting(generator: torch.Generator, size: int = 40) -> tuple[Tensor, Tensor]:
    """Gradients in conflict over entries of very different scale, as the layers of a model have."""
    scales = 10 ** torch.linspace(-3, 2, size, dtype=torch.float64)
    retain = torch.randn(size, generator=generator, dtype=torch.float64) * scales
    noise = torch.randn(size, generator=generator, dtype=torch.float64) * scales
    return retain, 30 * (-retain + 0.7 * noise)


@pytest.mark.parametrize("size", [40, 4000])
def test_ngdiff_in_the_metric_of_adamw_pair_goes_uphill_for_neither(size: int) -> None:
    """d . g_R = |g_R|_P (1 + cos_P) >= 0 for the step really taken, over many steps with a memory of old gradients."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimizer = configs.AdamWPair(lr=1.0, beta2=0.9).build([theta])
    assert isinstance(optimizer, AdamWPair)
    for _ in range(200):
        retain, forget = conflicting(generator, size)
        before = theta.detach().clone()
        weights = pair_step(theta, optimizer, retain, forget)
        direction = before - theta.detach()
        p = optimizer._preconditioner(optimizer.param_groups[0], theta)
        cosine = float((retain * forget * p).sum()) * weights.retain * weights.forget
        for grad, weight in ((retain, weights.retain), (forget, weights.forget)):
            assert float(direction @ grad) * weight == pytest.approx(1 + cosine, abs=1e-6)  # fp32 sums
            assert float(direction @ grad) > 0


def test_plain_adamw_after_plain_ngdiff_can_go_uphill() -> None:
    """The same gradients: NGDiff's own vector never does, the step that AdamW makes of it does."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.zeros(40, dtype=torch.float64, requires_grad=True)
    optimizer = configs.AdamW(lr=1.0, beta1=0.0, beta2=0.9).build([theta])
    uphill = 0
    for _ in range(200):
        retain, forget = conflicting(generator)
        before = theta.detach().clone()
        theta.grad = retain / retain.norm() + forget / forget.norm()
        assert min(theta.grad @ retain, theta.grad @ forget) >= 0
        optimizer.step()
        direction = before - theta.detach()
        uphill += int(min(direction @ retain, direction @ forget) < 0)
    assert uphill > 10


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_step_of_adamw_pair_has_adams_size_whatever_the_size_of_the_model(size: int) -> None:
    """Root mean square of an entry's move: about lr sqrt(2) for two gradients at right angles."""
    generator = torch.Generator().manual_seed(1)
    theta = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimizer = configs.AdamWPair(lr=LR).build([theta])
    assert isinstance(optimizer, AdamWPair)
    retain, forget = (torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
    pair_step(theta, optimizer, 1e-3 * retain, 1e3 * forget)
    assert 0.5 < theta.detach().square().mean().sqrt().item() / LR < 2


def test_adamw_pair_takes_no_step_on_an_old_metric() -> None:
    theta = torch.zeros(2, requires_grad=True)
    optimizer = configs.AdamWPair(lr=LR).build([theta])
    assert isinstance(optimizer, AdamWPair)
    pair_step(theta, optimizer, torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    with pytest.raises(AssertionError, match="preconditioner"):
        optimizer.step()


def test_adamw_pair_with_one_gradient_missing_or_zero() -> None:
    params = [torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)]
    optimizer = configs.AdamWPair(lr=LR).build(params)
    assert isinstance(optimizer, AdamWPair)
    retain = [torch.tensor([3.0, 4.0]), None]
    metric = list(optimizer.preconditioner(retain, [torch.zeros(2), None]))
    assert all(torch.isfinite(p).all() and (p > 0).all() for p in metric)
    params[0].grad = torch.tensor([3.0, 4.0])
    optimizer.step()
    assert torch.equal(params[1], torch.ones(1))
    assert torch.isfinite(params[0]).all()


def test_the_mean_of_adamw_pair_is_corrected_for_its_start() -> None:
    """A constant pair of gradients: the same steps with beta1 = 0.9 as without."""
    ends = []
    for beta1 in (0.0, 0.9):
        theta = torch.ones(2, dtype=torch.float64, requires_grad=True)
        optimizer = configs.AdamWPair(lr=LR, beta1=beta1).build([theta])
        assert isinstance(optimizer, AdamWPair)
        for _ in range(3):
            pair_step(
                theta,
                optimizer,
                torch.tensor([1.0, 2.0], dtype=torch.float64),
                torch.tensor([-3.0, 1.0], dtype=torch.float64),
            )
        ends.append(theta.detach())
    torch.testing.assert_close(ends[0], ends[1])


CONFIGS: dict[str, OptimizerConfig] = {
    "adamw": configs.AdamW(lr=LR),
    "adamw_8bit": configs.AdamW8bit(lr=LR),
    "adamw_pair": configs.AdamWPair(lr=LR, beta1=0.5),
    "sophia": configs.Sophia(lr=LR, batch_size=2),
    "sgd": configs.SGD(lr=LR, momentum=0.5),
}


def without_bitsandbytes() -> bool:
    return importlib.util.find_spec("bitsandbytes") is None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_optimizer_goes_on_to_the_bit(name: str) -> None:
    if name == "adamw_8bit" and without_bitsandbytes():
        pytest.skip("bitsandbytes is not installed")
    generator = torch.Generator().manual_seed(0)
    grads = [[torch.randn(5000, generator=generator) for _ in range(2)] for _ in range(4)]

    def step(theta: Tensor, optimizer: Any, pair: list[Tensor]) -> None:
        if isinstance(optimizer, AdamWPair):
            pair_step(theta, optimizer, *pair)
        else:
            theta.grad = pair[0].clone()
            optimizer.step()

    theta = torch.ones(5000, requires_grad=True)
    optimizer = CONFIGS[name].build([theta])
    for pair in grads[:2]:
        step(theta, optimizer, pair)
    resumed = theta.detach().clone().requires_grad_()
    other = CONFIGS[name].build([resumed])
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for pair in grads[2:]:
        step(theta, optimizer, pair)
        step(resumed, other, pair)
    assert torch.equal(theta, resumed)
    assert not torch.equal(theta.detach(), torch.ones(5000))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_counts_the_tensors_that_are_kept(name: str) -> None:
    if name == "adamw_8bit" and without_bitsandbytes():
        pytest.skip("bitsandbytes is not installed")
    theta = torch.ones(2**16, requires_grad=True)
    optimizer: Any = CONFIGS[name].build([theta])
    grad = torch.linspace(-1, 1, 2**16)
    if isinstance(optimizer, AdamWPair):
        pair_step(theta, optimizer, grad, grad.flip(0))
    else:
        theta.grad = grad
        optimizer.step()
    tensors = [value for value in optimizer.state[theta].values() if isinstance(value, Tensor)]
    kept = sum(value.numel() * value.element_size() for value in tensors)
    assert kept / (4 * theta.numel()) == pytest.approx(CONFIGS[name].states, rel=0.05)
    assert CONFIGS[name].name == name


def test_adamw_pair_without_momentum_keeps_one_tensor() -> None:
    assert configs.AdamWPair().states == 1
    assert configs.SGD().states == 0


def test_8_bits_follow_32() -> None:
    if without_bitsandbytes():
        pytest.skip("bitsandbytes is not installed")
    generator = torch.Generator().manual_seed(0)
    plain, coarse = torch.ones(8192, requires_grad=True), torch.ones(8192, requires_grad=True)
    optimizers = configs.AdamW(lr=1e-3).build([plain]), configs.AdamW8bit(lr=1e-3).build([coarse])
    for _ in range(5):
        grad = torch.randn(8192, generator=generator)
        plain.grad, coarse.grad = grad.clone(), grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    moved, apart = (plain - 1).norm(), (plain - coarse).norm()
    assert 0 < apart < 0.1 * moved


def test_the_learning_rate_is_the_models_times_the_methods() -> None:
    plain = compose_run("method=gdiff")
    assert plain.optimizer.lr == plain.model.lr
    assert compose_run("method=gdiff", "method.lr_scale=10").optimizer.lr == pytest.approx(10 * plain.model.lr)
    assert compose_run("method=gdiff", "method.lr_scale=10", "optimizer.lr=1e-4").optimizer.lr == 1e-4
    assert compose_run("optimizer=sophia", "method.lr_scale=10", "model.lr=3e-4").optimizer.lr == 0.003


def test_the_learning_rate_on_the_projects_own_command_line() -> None:
    from unlearn.cli import overrides

    def lr(*texts: str) -> float:
        return float(overrides.check([*texts, "logger=none"]).jobs[0].optimizer.lr)

    assert lr("method=gdiff", "method.lr_scale=10", "model.lr=3e-4") == 0.003
    assert lr("method=gdiff", "method.lr_scale=10", "optimizer.lr=1e-4") == 1e-4


def test_help_names_the_product() -> None:
    line = next(line for line in help_page.everything().splitlines() if line.startswith("  optimizer.lr "))
    assert "model.lr x method.lr_scale  learning rate" in line
    assert "$" not in help_page.everything()


def test_sophias_batch_is_the_trainers() -> None:
    assert compose_run("optimizer=sophia", "trainer.batch_size=7").optimizer.batch_size == 7


def test_soul_is_what_was_released_for_tofu() -> None:
    """SO_GradDiff: lr 5e-6, loss = -forget + 2 retain."""
    cfg = compose_run("method=soul", "model=llama-3.2-1b-instruct")
    sophia = cfg.optimizer
    assert (sophia.beta1, sophia.beta2, sophia.rho, sophia.weight_decay) == (0.9, 0.95, 0.04, 0.1)
    assert sophia.lr == pytest.approx(5e-6)
    assert (cfg.method.gamma, cfg.method.alpha) == (1, 2)


CONFLICTS = [
    (("method.separate_states=true", "method.saliency_std=1"), "method.saliency_std: has no gradient of its own"),
    (("optimizer=adamw_pair", "method.saliency_std=1"), "method.saliency_std: voids the guarantee"),
]


@pytest.mark.parametrize(("words", "start"), CONFLICTS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_does_not_go_together_is_named(words: tuple[str, ...], start: str) -> None:
    cfg = compose_run("method=gdiff", *words)
    assert any(line.startswith(start) for line in conflicts(cfg.optimizer, cfg.method))


def test_a_rule_in_the_optimizers_metric_needs_one() -> None:
    cfg = compose_run("method=gdiff")
    cfg.method.combine = COMBINE["ngdiff_adam"]()
    assert conflicts(cfg.optimizer, cfg.method) == [
        "method.combine=ngdiff_adam: needs optimizer=adamw_pair; found adamw"
    ]
    assert conflicts(configs.AdamWPair(), cfg.method) == []


def test_what_goes_together_is_built() -> None:
    theta = torch.ones(2, requires_grad=True)
    for words in ((), ("method.separate_states=true",), ("method.saliency_std=1",)):
        cfg = compose_run("method=gdiff", *words)
        assert conflicts(cfg.optimizer, cfg.method) == []
        assert build(cfg.optimizer, cfg.method, [theta]).param_groups[0]["lr"] == cfg.optimizer.lr


def test_ngdiff_adam_is_ngdiff_on_the_gram_matrix_it_is_given() -> None:
    rule = COMBINE["ngdiff_adam"]()
    gram = Gram(16.0, -3.0, 25.0)
    assert rule.metric == "optimizer"
    assert rule.weights(gram, Losses(1.0, 1.0), RuleState()) == pytest.approx((1 / 4, 1 / 5))
