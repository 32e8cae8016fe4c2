"""Rules that look at the losses: at their sizes, at how fast they fall, or at a bound on one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from unlearn.gradients.rule import CombineRule, Gram, Losses, RuleState, Weights, over
from unlearn.setting import setting

SEEN = 1e-12
"""Least weight of a rule that learns from losses: neither objective is ever left out of the update altogether."""


@dataclass
class LossNorm(CombineRule):
    """Each loss divided by its own size, the scalarisation of log L_R - log L_F for ascent."""

    name: str = "lossnorm"

    scale_free: ClassVar[bool] = True
    losses: ClassVar[str] = "sizes"
    symmetric: ClassVar[bool] = True
    formula: ClassVar[str] = "g_R/|L_R| + g_F/|L_F|"
    source: ClassVar[str] = "arXiv 2410.22086 (baseline)"

    def weights(self, gram: Gram, losses: Losses, state: RuleState) -> Weights:
        retain = over(1.0, abs(losses.retain)) if gram.rr > 0 else 0.0
        forget = over(1.0, abs(losses.forget)) if gram.ff > 0 else 0.0
        return Weights(retain, forget)


@dataclass
class FAMO(CombineRule):
    """Fast adaptive multitask optimisation: weights under which both log-losses fall at the same rate.

    w_i = z_i/L_i, scaled to sum 1, with z = softmax of two logits. After each step the logits go, by a step of Adam,
    against J^T (log L before - log L after) + decay logits, J the Jacobian of the softmax: the objective that fell
    faster loses weight. The two logits are always opposite, so one number holds both.
    """

    name: str = "famo"
    lr: float = setting(0.025, "learning rate of the logits", above=0)
    decay: float = setting(0.001, "pull of the logits to 0", minimum=0)

    losses: ClassVar[str] = "logs"
    symmetric: ClassVar[bool] = True
    formula: ClassVar[str] = "w_i = (z_i/L_i)/(z_R/L_R + z_F/L_F), z = softmax(logits)"
    source: ClassVar[str] = "arXiv 2306.03792"
    deviation: ClassVar[str] = (
        "Published code computes the losses of the same batch again after the step; here the losses of consecutive "
        "steps stand for them, and w is known one step ahead, without a second gradient. Equal weights in step 1. Its "
        "example has decay 0.01, its experiments 0.001."
    )

    floor: ClassVar[float] = 1e-8
    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)

    def ahead(self, state: RuleState) -> Weights:
        if "retain" not in state.values:
            return Weights(0.5, 0.5)
        logit = state.values["logit"]
        retain = _logistic(2 * logit) / max(state.values["retain"], self.floor)
        forget = _logistic(-2 * logit) / max(state.values["forget"], self.floor)
        return Weights(max(retain / (retain + forget), SEEN), max(forget / (retain + forget), SEEN))

    def observe(self, losses: Losses, state: RuleState) -> None:
        values = state.values
        if "retain" in values:
            z = _logistic(2 * values["logit"])
            fall = {side: _log(values[side], self.floor) - _log(loss, self.floor) for side, loss in _sides(losses)}
            slope = z * (1 - z) * (fall["retain"] - fall["forget"]) + self.decay * values["logit"]
            self._adam(slope, values)
        else:
            values.update(logit=0.0, mean=0.0, square=0.0, updates=0.0)
        values.update(_sides(losses))

    def _adam(self, slope: float, values: dict[str, float]) -> None:
        first, second = self.betas
        values["updates"] += 1
        values["mean"] = first * values["mean"] + (1 - first) * slope
        values["square"] = second * values["square"] + (1 - second) * slope * slope
        mean = values["mean"] / (1 - first ** values["updates"])
        square = values["square"] / (1 - second ** values["updates"])
        values["logit"] -= self.lr * mean / (math.sqrt(square) + 1e-8)


@dataclass
class PDU(CombineRule):
    """Primal-dual unlearning: the forget loss is minimised under the constraint L_R <= epsilon.

    The multiplier of the constraint is the retain gradient's weight. It rises while the retain loss is above epsilon
    and falls, down to 0, while it is below.
    """

    name: str = "pdu"
    multiplier: float = setting(100.0, "multiplier at the start", minimum=0)
    step: float = setting(5.0, "step size of the multiplier", minimum=0)
    epsilon: float = setting(0.3, "bound on the retain loss, nats per token")
    warmup: int = setting(5, "epochs before the multiplier moves", minimum=0)

    losses: ClassVar[str] = "retain"
    formula: ClassVar[str] = "lambda g_R + g_F; lambda <- max(0, lambda + step (L_R - epsilon)) after each step"
    source: ClassVar[str] = (
        "arXiv 2506.05314 (defaults: its TOFU runs; MUSE has multiplier 50, step 1, 3 epochs of warm-up, epsilon 1.5 "
        "for News and 0.1 for Books)"
    )
    deviation: ClassVar[str] = (
        "Published code moves lambda with each micro-batch and on each device by itself; here once per optimizer step, "
        "with the loss of the whole step."
    )

    @property
    def waits(self) -> int:
        return self.warmup

    def ahead(self, state: RuleState) -> Weights:
        return Weights(max(self._multiplier(state), SEEN), 1.0)

    def observe(self, losses: Losses, state: RuleState) -> None:
        if state.step >= self.warmup * state.steps_per_epoch:
            state.values["lambda"] = max(0.0, self._multiplier(state) + self.step * (losses.retain - self.epsilon))

    def _multiplier(self, state: RuleState) -> float:
        return state.values.get("lambda", self.multiplier)


def _sides(losses: Losses) -> list[tuple[str, float]]:
    return [("retain", losses.retain), ("forget", losses.forget)]


def _log(loss: float, floor: float) -> float:
    return math.log(max(loss, floor))


def _logistic(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))
