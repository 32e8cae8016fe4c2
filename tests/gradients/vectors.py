"""Pairs of gradients on which every rule is tried, and steps taken with a rule as a run takes them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from unlearn.gradients.combine import CombineRule, Gram, Losses, RuleState, Weights

Pair = tuple[Tensor, Tensor]
Step = tuple[Pair, Losses]

# Retain and forget gradient in the plane.
VECTORS = {
    "orthogonal": ((3.0, 4.0), (-40.0, 30.0)),
    "acute": ((1.0, 0.0), (1.0, 1.0)),
    "obtuse": ((1.0, 0.0), (-5.0, 1.0)),
    "the same": ((3.0, -4.0), (3.0, -4.0)),
    "opposite": ((2.0, 0.0), (-100.0, 0.0)),
    "opposite at one length": ((3.0, 4.0), (-3.0, -4.0)),
    "nearly opposite": ((2.0, 0.0), (-2.0, 1e-6)),
    "parallel": ((2.0, 1.0), (4.0, 2.0)),
    "nearly parallel": ((2.0, 0.0), (4.0, 1e-6)),
    "tiny": ((1e-12, 0.0), (0.0, 1e-12)),
    "huge": ((1e12, 0.0), (1e12, 1e12)),
    "short beside long": ((1e-9, 2e-9), (1e9, -1e9)),
    "long beside short": ((1e9, -1e9), (1e-9, 2e-9)),
    "no retain": ((0.0, 0.0), (3.0, 4.0)),
    "no forget": ((3.0, 4.0), (0.0, 0.0)),
    "nothing": ((0.0, 0.0), (0.0, 0.0)),
}


def pair(case: str) -> Pair:
    retain, forget = (torch.tensor(vector).double() for vector in VECTORS[case])
    return retain, forget


def random_pairs(count: int = 60, dimension: int = 5) -> list[Pair]:
    """Pairs at every angle, lengths over four orders of magnitude."""
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for index in range(count):
        first, second = torch.randn(2, dimension, generator=generator, dtype=torch.float64)
        first, second = first / first.norm(), second / second.norm()
        second = second - (second @ first) * first
        angle = math.pi * (index + 0.5) / count
        lengths = 10 ** (4 * torch.rand(2, generator=generator, dtype=torch.float64) - 2)
        turned = math.cos(angle) * first + math.sin(angle) * second / second.norm()
        pairs.append((float(lengths[0]) * first, float(lengths[1]) * turned))
    return pairs


def gram(retain: Tensor, forget: Tensor) -> Gram:
    return Gram(*(float(a.double() @ b.double()) for a, b in ((retain, retain), (retain, forget), (forget, forget))))


def weights_of(rule: CombineRule, seen: Gram, losses: Losses, state: RuleState) -> Weights:
    return rule.ahead(state) or rule.weights(seen, losses, state)


def take_steps(rule: CombineRule, steps: Iterable[Step], state: RuleState | None = None) -> list[Weights]:
    """The weights of consecutive steps, each observed as a run does it."""
    state = state or RuleState()
    taken = []
    for vectors, losses in steps:
        taken.append(weights_of(rule, gram(*vectors), losses, state))
        rule.observe(losses, state)
        state.step += 1
    return taken


def update(weights: Weights, vectors: Pair) -> Tensor:
    return weights.retain * vectors[0] + weights.forget * vectors[1]


def first_update(rule: CombineRule, vectors: Pair) -> Tensor:
    """The update of step 0, both losses 1."""
    return update(take_steps(rule, [(vectors, Losses(1.0, 1.0))])[0], vectors)
