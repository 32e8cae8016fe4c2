"""Answers made by hand or at random, with everything that an objective may need.

Shapes: N answer tokens, B rows, V vocabulary, D hidden size; the suffix of a field's name tells which it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from unlearn.objectives.forget import FORGET
from unlearn.objectives.logprobs import Answers
from unlearn.objectives.objective import Objective
from unlearn.objectives.retain import RETAIN
from unlearn.setting import permits

CLASSES = [cls for cls in (*FORGET.values(), *RETAIN.values()) if cls().active]


def log(p: Sequence[Sequence[float]]) -> Tensor:
    """Logits that are log-probabilities: [N, V]."""
    return torch.tensor(p).log()


def answers_from(p: list[list[float]], rows: list[int], **more: Any) -> Answers:
    """Answers whose distributions are given, and whose every label is 0."""
    labels = torch.zeros(len(rows), dtype=torch.long)
    return Answers(log(p), labels, torch.tensor(rows), max(rows) + 1, **more)


def two_rows(**more: Any) -> Answers:
    """Row 0: tokens of probability 1/2 and 1/4 (log p = -3 ln 2 in all). Row 1: one token of probability 1/8."""
    return answers_from([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.125, 0.375, 0.5]], [0, 0, 1], **more)


def alternates(**more: Any) -> Answers:
    """Row 0: one token of probability 1/4 (log p = -2 ln 2). Row 1: 1/2 and 1/4 (-3 ln 2)."""
    return answers_from([[0.25, 0.25, 0.5], [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], [0, 1, 1], **more)


def random_answers(seed: int = 0, extreme: float = 0.0) -> Answers:
    """Three rows of 2, 2 and 1 tokens over seven words, and alternates of 1, 3 and 2, with everything filled in.

    With `extreme` above 0, the policy, the start model and the reinforced one are all but certain of some tokens and
    hold others for impossible: their logits stand that far from the rest.
    """
    generator = torch.Generator().manual_seed(seed)

    def answers(labels: list[int], rows: list[int]) -> Answers:
        policy, start, reinforced = (torch.randn(len(rows), 7, generator=generator) for _ in range(3))
        targets = [(label + 3) % 7 for label in labels]
        if extreme:
            for logits, sign in ((policy, 1), (start, -1), (reinforced, 1)):
                logits[0, labels[0]] = sign * extreme
                logits[-1, labels[-1]] = -sign * extreme
            policy[1 % len(rows), targets[1 % len(rows)]] = extreme
        hidden, start_hidden = (torch.randn(len(rows), 4, generator=generator) for _ in range(2))
        start_model = Answers(start, torch.tensor(labels), torch.tensor(rows), 3)
        return Answers(
            policy,
            torch.tensor(labels),
            torch.tensor(rows),
            3,
            reference_logp_B=start_model.per_row(start_model.logp_N),
            reference_logits_NV=start,
            reinforced_logits_NV=reinforced,
            targets_N=torch.tensor(targets),
            hidden_ND=hidden,
            reference_hidden_ND=start_hidden,
        )

    whole = answers([3, 1, 0, 6, 2], [0, 0, 1, 1, 2])
    return replace(whole, alternate=answers([5, 4, 4, 1, 0, 6], [0, 1, 1, 1, 2, 2]))


def at_start(answers: Answers) -> Answers:
    """The same where the policy still is the start model."""
    policy = replace(
        answers,
        logits_NV=answers.reference_logits_NV,
        hidden_ND=answers.reference_hidden_ND,
        alternate=at_start(answers.alternate) if answers.alternate is not None else None,
    )
    return replace(policy, reference_logp_B=policy.per_row(policy.logp_N))


def mapped(answers: Answers, change: Any) -> Answers:
    """Every tensor replaced by `change(name of its field, tensor)`, in the alternates too."""
    new: dict[str, Any] = {}
    for item in fields(Answers):
        value = getattr(answers, item.name)
        if isinstance(value, Tensor):
            new[item.name] = change(item.name, value)
        elif isinstance(value, Answers):
            new[item.name] = mapped(value, change)
    return replace(answers, **new)


def take(answers: Answers, rows: Sequence[int]) -> Answers:
    """The rows that are named, in that order."""
    tokens = torch.cat([(answers.row_N == row).nonzero().flatten() for row in rows])
    place = {row: place for place, row in enumerate(rows)}

    def chosen(name: str, tensor: Tensor) -> Tensor:
        if name == "row_N":
            return torch.tensor([place[int(row)] for row in tensor[tokens]])
        return tensor[torch.tensor(rows)] if name.endswith("_B") else tensor[tokens]

    new = mapped(replace(answers, alternate=None), chosen)
    alternate = take(answers.alternate, rows) if answers.alternate is not None else None
    return replace(new, n_rows=len(rows), alternate=alternate)


def with_empty_row(answers: Answers) -> Answers:
    """The same with a row of no tokens, neither of the answer nor of the alternate, between row 0 and the next."""

    def widened(name: str, tensor: Tensor) -> Tensor:
        if name == "row_N":
            return tensor + (tensor > 0)
        return torch.cat([tensor[:1], tensor.new_zeros(1), tensor[1:]]) if name.endswith("_B") else tensor

    new = mapped(replace(answers, alternate=None), widened)
    alternate = with_empty_row(answers.alternate) if answers.alternate is not None else None
    return replace(new, n_rows=answers.n_rows + 1, alternate=alternate)


def by_row(objective: Objective, answers: Answers) -> Tensor:
    """Sums of the terms of each row, one line per unit: [units, B]."""
    parts = objective.parts(answers)
    alternate = answers.alternate
    lines = []
    for unit, terms in parts.items():
        if unit == "alternate_token":
            assert alternate is not None
            lines.append(alternate.per_row(terms))
        else:
            lines.append(answers.per_row(terms) if unit == "token" else terms)
    return torch.stack(lines)


def loss(objective: Objective, answers: Answers) -> Tensor:
    """Each part divided by the count of its units, and added."""
    counts = {"token": len(answers.labels_N), "sequence": answers.n_rows}
    if answers.alternate is not None:
        counts["alternate_token"] = len(answers.alternate.labels_N)
    parts = objective.parts(answers)
    return sum((terms.sum() / counts[unit] for unit, terms in parts.items()), torch.zeros(()))


def gradient(objective: Objective, answers: Answers) -> Tensor:
    """Gradient of the loss in all that the policy gives: logits, hidden states, the alternates' logits. In a line."""
    leaves: list[Tensor] = []

    def leaf(name: str, tensor: Tensor) -> Tensor:
        if name not in ("logits_NV", "hidden_ND"):
            return tensor
        leaves.append(tensor.clone().requires_grad_())
        return leaves[-1]

    loss(objective, mapped(answers, leaf)).backward()
    return torch.cat([(torch.zeros_like(x) if x.grad is None else x.grad).flatten() for x in leaves])


def variants(cls: type[Objective]) -> list[Objective]:
    """The objective at its defaults, and with every one of its settings at another value."""
    made = [cls()]
    for item in fields(cls):
        default = getattr(made[0], item.name)
        if item.name == "name" or (isinstance(default, str) and "choices" not in item.metadata):
            continue
        others = item.metadata.get("choices") or [1 if default is None else default + (1 if default == 0 else default)]
        assert all(permits(item.metadata, other) for other in others)
        made += [cls(**{item.name: other}) for other in others if other != default]
    return made


VARIANTS = [variant for cls in CLASSES for variant in variants(cls)]


def label(objective: Objective) -> str:
    """What pytest calls a variant: npo, or npo-beta=0.2."""
    default = type(objective)()
    changed = [item.name for item in fields(default) if getattr(default, item.name) != getattr(objective, item.name)]
    return "-".join([objective.name, *(f"{name}={getattr(objective, name)}" for name in changed)])
