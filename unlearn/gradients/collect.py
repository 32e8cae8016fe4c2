"""The gradients of the two objectives, kept apart as long as the rule needs them apart, combined into `.grad`.

A rule that knows its weights ahead accumulates both weighted losses straight into `.grad`: no second copy. A rule that
looks at the gradients keeps exactly one more copy, that of the forget objective. Where several processes share the
step, gradients are summed over them as soon as they are complete: the norm of a sum is not a sum of norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from unlearn import ranks
from unlearn.gradients.combine import CombineRule, Gram, Losses, RuleState, Weights


@dataclass(frozen=True)
class Pass:
    """One objective's backward pass over the whole optimizer step.

    loss  the objective's value
    nll   cross-entropy of the answers, nats per token
    prob  mean over rows of the answer's probability, exp of its mean log-probability per token
    """

    loss: float
    nll: float
    prob: float


Backward = Callable[[float], Pass]
"""Adds `scale` times the gradient of one objective to every parameter's `.grad`; its Pass is that of scale 1."""

Grads = Sequence[Tensor | None]
"""A gradient, one tensor for each parameter; None is zero."""

Preconditioner = Callable[[Grads, Grads], Iterable[Tensor]]
"""From the retain and the forget gradient to the diagonal P > 0 of the optimizer's metric, parameter by parameter."""

ONE_EACH = Weights(1.0, 1.0)


@dataclass(frozen=True)
class Combined:
    """What one step's gradients were.

    gram          Euclidean inner products of the two gradients, each times its objective's coefficient; None for rules
                  that never saw them apart
    weights       the rule's, on top of the coefficients
    norm          L2 norm of the weighted sum
    forget_grads  the weighted forget part, where it was to stay apart; `.grad` then holds the retain part alone
    """

    retain: Pass | None
    forget: Pass | None
    gram: Gram | None
    weights: Weights
    norm: float
    forget_grads: list[Tensor | None] | None = None

    @property
    def finite(self) -> bool:
        values = [self.norm, *(part.loss for part in (self.retain, self.forget) if part is not None)]
        return all(math.isfinite(value) for value in values)


def combined_gradient(
    parameters: Sequence[Tensor],
    rule: CombineRule,
    state: RuleState,
    retain: Backward | None,
    forget: Backward | None,
    *,
    coefficients: Weights = ONE_EACH,
    apart: bool = False,
    preconditioner: Preconditioner | None = None,
) -> Combined:
    """Leave `w_R a_R g_R + w_F a_F g_F` in `.grad` of every parameter; an objective that is None has gradient zero.

    The rule sees gradients and losses times their objective's coefficient `a`. Where the step is finite, it learns from
    the losses and `state` moves on to the next step, here and nowhere else.

    apart           leave the retain part alone in `.grad` and give the forget part as `forget_grads`
    preconditioner  for rules in the optimizer's metric: called once, with the two gradients
    """
    ahead = rule.ahead(state)
    if ahead is not None and not apart:
        combined = _accumulated(parameters, ahead, retain, forget, coefficients)
    else:
        combined = _weighed(parameters, rule, state, retain, forget, coefficients, ahead, apart, preconditioner)
    if combined.finite:
        rule.observe(_losses(combined.retain, combined.forget, coefficients), state)
        state.step += 1
    return combined


def _accumulated(
    parameters: Sequence[Tensor],
    weights: Weights,
    retain: Backward | None,
    forget: Backward | None,
    coefficients: Weights,
) -> Combined:
    _take_grads(parameters)
    forget_pass = _run(forget, weights.forget * coefficients.forget)
    retain_pass = _run(retain, weights.retain * coefficients.retain)
    ranks.reduce_grads(parameters)
    norm = global_norm(parameter.grad for parameter in parameters)
    return Combined(retain_pass, forget_pass, None, weights, norm)


def _weighed(
    parameters: Sequence[Tensor],
    rule: CombineRule,
    state: RuleState,
    retain: Backward | None,
    forget: Backward | None,
    coefficients: Weights,
    ahead: Weights | None,
    apart: bool,
    preconditioner: Preconditioner | None,
) -> Combined:
    _take_grads(parameters)
    forget_pass = _run(forget, coefficients.forget)
    ranks.reduce_grads(parameters)
    # Taken, not copied: the next backward pass allocates new `.grad` tensors. A wrapper that reuses its gradient
    # buffers between passes (DDP with gradient_as_bucket_view) must hand out clones here.
    forget_grads = _take_grads(parameters)
    retain_pass = _run(retain, coefficients.retain)
    ranks.reduce_grads(parameters)
    retain_grads = [parameter.grad for parameter in parameters]
    gram = seen = gram_matrix(retain_grads, forget_grads)
    if rule.metric == "optimizer":
        assert preconditioner is not None, f"the rule '{rule.name}' needs an optimizer with a preconditioner"
        seen = gram_matrix(retain_grads, forget_grads, preconditioner(retain_grads, forget_grads))
    losses = _losses(retain_pass, forget_pass, coefficients)
    if ahead is not None:
        weights = ahead
    elif all(math.isfinite(value) for value in (*seen, *losses)):
        weights = rule.weights(seen, losses, state)
    else:  # nothing that a rule could weigh, or should remember
        weights = Weights(math.nan, math.nan)
    _scale(retain_grads, weights.retain)
    _scale(forget_grads, weights.forget)
    if apart:
        norm = global_norm(_sums(retain_grads, forget_grads))
        return Combined(retain_pass, forget_pass, gram, weights, norm, forget_grads)
    for parameter, forget_grad in zip(parameters, forget_grads, strict=True):
        if parameter.grad is None:
            parameter.grad = forget_grad
        elif forget_grad is not None:
            parameter.grad.add_(forget_grad)
    return Combined(retain_pass, forget_pass, gram, weights, global_norm(parameter.grad for parameter in parameters))


def _run(backward: Backward | None, scale: float) -> Pass | None:
    """A weight of 0 runs its pass as any other does: the loss is logged, and a rule may learn from it."""
    return backward(scale) if backward is not None else None


def _losses(retain: Pass | None, forget: Pass | None, coefficients: Weights) -> Losses:
    return Losses(
        coefficients.retain * retain.loss if retain is not None else 0.0,
        coefficients.forget * forget.loss if forget is not None else 0.0,
    )


def _take_grads(parameters: Sequence[Tensor]) -> list[Tensor | None]:
    grads = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return grads


def _scale(grads: Grads, weight: float) -> None:
    for grad in grads:
        if grad is not None:
            grad.mul_(weight)


def _sums(left: Grads, right: Grads) -> Iterator[Tensor | None]:
    for a, b in zip(left, right, strict=True):
        yield a if b is None else b if a is None else a + b


def gram_matrix(retain: Grads, forget: Grads, metric: Iterable[Tensor] | None = None) -> Gram:
    """Inner products `sum of a b P` over all parameters, P = 1 without a metric; a missing gradient is zero.

    In fp32 per tensor and fp64 over tensors.
    """
    assert len(retain) == len(forget)
    rr, rf, ff = [], [], []
    for a, b, scale in zip(retain, forget, metric if metric is not None else repeat(None), strict=False):
        if a is not None:
            rr.append(_inner(a, a, scale))
        if a is not None and b is not None:
            rf.append(_inner(a, b, scale))
        if b is not None:
            ff.append(_inner(b, b, scale))
    return Gram(_total(rr), _total(rf), _total(ff))


def global_norm(grads: Iterable[Tensor | None]) -> float:
    """L2 norm over all parameters."""
    square = _total([_inner(grad, grad, None) for grad in grads if grad is not None])
    return math.sqrt(square) if square >= 0 else math.nan


def _inner(a: Tensor, b: Tensor, metric: Tensor | None) -> Tensor:
    left = a.flatten().float()
    return torch.dot(left if metric is None else left * metric.flatten().float(), b.flatten().float())


def _total(parts: list[Tensor]) -> float:
    return torch.stack(parts).cpu().double().sum().item() if parts else 0.0
