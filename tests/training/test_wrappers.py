"""Two states kept apart, and a mask that masks, by hand; both under the probe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from unlearn.schedulers.autolr import AutoLR
from unlearn.training.optimizer import SGD, AdamW
from unlearn.training.probe import Probe, set_lr
from unlearn.training.wrappers import Saliency, SeparateStates

LR = 0.1


def weight(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def grad(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def separate(theta: Tensor, config: Any) -> SeparateStates:
    return SeparateStates([theta], config.build([theta]), config.build([theta]))


def test_two_states_by_hand_against_one() -> None:
    """SGD, momentum 0.5. Retain gradients 1, 0; forget gradients 0, -2: each part remembers its own.

    Step 1: 1 + 0. Step 2: (0.5 * 1 + 0) + (0.5 * 0 - 2) = -1.5. Linear, so the sum has the same: one state does too.
    AdamW (betas 0) is not linear: apart, each gradient is a unit step of its own: 1 + 1 = 2 for (3, 0.01); mixed,
    3.01 / 3.01 = 1.
    """
    theta = weight(0.0)
    optimizer = separate(theta, SGD(lr=LR, momentum=0.5))
    for retain, forget in ((1.0, 0.0), (0.0, -2.0)):
        theta.grad, optimizer.forget_grads = grad(retain), [grad(forget)]
        optimizer.step()
    assert theta.item() == pytest.approx(-LR * 1 + LR * 1.5)

    apart, mixed = weight(0.0), weight(0.0)
    config = AdamW(lr=LR, beta1=0.0, beta2=0.0)
    optimizer, one = separate(apart, config), config.build([mixed])
    apart.grad, optimizer.forget_grads, mixed.grad = grad(3.0), [grad(0.01)], grad(3.01)
    optimizer.step()
    one.step()
    assert apart.item() == pytest.approx(-2 * LR, rel=1e-5)
    assert mixed.item() == pytest.approx(-LR, rel=1e-5)


def test_moments_of_the_two_are_not_mixed() -> None:
    """AdamW, betas 0.5: retain 2 then 2, forget -1 then 3.

    Retain: m = 1, then 1.5; v = 2, then 3. Forget: m = -0.5, then 1.25; v = 0.5, then 4.75.
    In one state the second m would be 0.5 * (0.5 * 1) + 0.5 * 5 = 2.75.
    """
    theta = weight(0.0)
    config = AdamW(lr=LR, beta1=0.5, beta2=0.5)
    optimizer = separate(theta, config)
    for retain, forget in ((2.0, -1.0), (2.0, 3.0)):
        theta.grad, optimizer.forget_grads = grad(retain), [grad(forget)]
        optimizer.step()
        assert theta.grad.item() == retain, ".grad is the retain part again"
        assert optimizer.forget_grads is None, "let go"
    retain_state, forget_state = optimizer.retain.state[theta], optimizer.forget.state[theta]
    assert (retain_state["exp_avg"].item(), retain_state["exp_avg_sq"].item()) == (1.5, 3.0)
    assert (forget_state["exp_avg"].item(), forget_state["exp_avg_sq"].item()) == (1.25, 4.75)
    # m^ / sqrt(v^) with 1 - 0.5^t: 1 and -1 at step 1; 2 / 2 and (1.25 / 0.75) / sqrt(4.75 / 0.75) at step 2.
    assert theta.item() == pytest.approx(-LR * (1 - 1 + 1 + (1.25 / 0.75) / (4.75 / 0.75) ** 0.5), rel=1e-6)


def test_weight_decay_is_applied_once() -> None:
    from tests.helpers import compose_run
    from unlearn.training.wrappers import build

    cfg = compose_run("method=gdiff", "method.separate_states=true", "optimizer.weight_decay=0.5", f"optimizer.lr={LR}")
    theta = weight(4.0)
    optimizer = build(cfg.optimizer, cfg.method, [theta])
    assert isinstance(optimizer, SeparateStates)
    theta.grad, optimizer.forget_grads = grad(0.0), [grad(0.0)]
    optimizer.step()
    assert theta.item() == pytest.approx(4 * (1 - LR * 0.5))


def test_a_gradient_that_one_objective_lacks() -> None:
    first, second = weight(0.0), weight(0.0)
    config = SGD(lr=LR)
    optimizer = SeparateStates([first, second], config.build([first, second]), config.build([first, second]))
    first.grad, second.grad = grad(1.0), None
    optimizer.forget_grads = [None, grad(2.0)]
    optimizer.step()
    assert (first.item(), second.item()) == pytest.approx((-LR, -2 * LR))
    assert second.grad is None


def test_a_step_without_its_forget_part_is_a_defect() -> None:
    theta = weight(0.0)
    optimizer = separate(theta, SGD(lr=LR))
    theta.grad = grad(1.0)
    with pytest.raises(AssertionError, match="forget_grads"):
        optimizer.step()


def test_one_learning_rate_reaches_both_states() -> None:
    theta = weight(0.0)
    optimizer = separate(theta, SGD(lr=LR))
    set_lr(optimizer, 0.5)
    theta.grad, optimizer.forget_grads = grad(1.0), [grad(3.0)]
    optimizer.step()
    assert theta.item() == -0.5 * 4


def test_the_threshold_by_hand() -> None:
    """|g| = 1, 2, 3 and 0, 4 (one entry of two tensors has no gradient at all): mean 2, mean square deviation 2."""
    params = [weight(0.0, 0.0, 0.0), weight(0.0), weight(0.0)]
    params[0].grad, params[1].grad = grad(-1.0, 2.0, -3.0), grad(4.0)
    wrapped = Saliency(params, SGD(lr=LR).build(params), 0.5)
    assert wrapped.threshold() == pytest.approx(2 + 0.5 * 2**0.5)
    wrapped.step()
    # Above 2.707: -3 and 4.
    assert params[0].tolist() == pytest.approx([0, 0, 3 * LR])
    assert params[1].item() == pytest.approx(-4 * LR)
    assert params[2].item() == 0


def test_a_masked_entry_stays_to_the_bit_under_momentum_and_weight_decay() -> None:
    """Entry 0 moves in step 1 and is masked in step 2, where AdamW's momentum and decay would move it on."""
    theta, plain = weight(1.0, 1.0), weight(1.0, 1.0)
    config = AdamW(lr=LR, weight_decay=0.3)
    wrapped, bare = Saliency([theta], config.build([theta]), 0.0), config.build([plain])
    theta.grad, plain.grad = grad(5.0, 0.1), grad(5.0, 0.0)
    wrapped.step()
    bare.step()
    assert theta[1].item() == 1.0
    assert theta[0].item() == plain[0].item() != 1.0
    kept = theta[0].item()
    theta.grad, plain.grad = grad(0.2, 4.0), grad(0.0, 4.0)  # the mean is 2.1
    wrapped.step()
    bare.step()
    assert theta[0].item() == kept
    assert plain[0].item() != kept, "what it would have been without being put back"
    assert theta[1].item() != 1.0


def test_equal_gradients_all_pass_the_mean() -> None:
    theta = torch.zeros(1001, requires_grad=True)
    theta.grad = torch.full((1001,), 0.1)
    Saliency([theta], SGD(lr=LR).build([theta]), 0.0).step()
    assert (theta != 0).all()


@pytest.mark.parametrize("kind", ["separate", "saliency"])
def test_under_the_probe_the_state_advances_once_and_the_step_is_rescaled(kind: str) -> None:
    """L = |theta|^2 / 2 at (2, 1) along (1, 1) or (1, 0): the best rate is 3 / 2 or 2, within twice the old rate 1."""
    theta = weight(2.0, 1.0)
    config = AdamW(lr=LR, beta1=0.0, beta2=0.0)
    optimizer: Any
    if kind == "separate":
        optimizer = separate(theta, config)
        theta.grad, optimizer.forget_grads = grad(2.0, 0.0), [grad(0.0, 1.0)]
        best = 3 / 2  # d = (1, 1): b = 2 + 1, h = 2
        expected = [2 - best, 1 - best]
    else:
        optimizer = Saliency([theta], config.build([theta]), 0.0)
        theta.grad = grad(2.0, 1.0)
        best = 2.0  # d = (1, 0): b = 2, h = 1
        expected = [0.0, 1.0]
    probe = Probe(AutoLR(max_lr=10.0), 1.0)
    probe.step(optimizer, [theta], lambda: float(theta.detach().square().sum() / 2))
    assert probe.lr == pytest.approx(best)
    assert theta.tolist() == pytest.approx(expected)
    inner = [optimizer.retain, optimizer.forget] if kind == "separate" else [optimizer.base]
    assert [int(each.state[theta]["step"]) for each in inner] == [1] * len(inner)
