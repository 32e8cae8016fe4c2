"""What all registered objectives have in common, each at its defaults and with every setting changed, none named."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.objectives.builders import (
    CLASSES,
    VARIANTS,
    at_start,
    by_row,
    gradient,
    label,
    loss,
    mapped,
    random_answers,
    take,
    with_empty_row,
)
from unlearn.objectives.logprobs import Answers
from unlearn.objectives.objective import Objective
from unlearn.setting import permits

every_objective = pytest.mark.parametrize("objective", VARIANTS, ids=label)
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls().name)

FIELDS = {
    "reference_logp": ("reference_logp_B",),
    "reference_logits": ("reference_logits_NV",),
    "reinforced_logits": ("reinforced_logits_NV",),
    "alternates": ("alternate",),
    "targets": ("targets_N",),
    "hidden": ("hidden_ND",),
    "reference_hidden": ("reference_hidden_ND",),
}
GIVEN = ("logits_NV", "labels_N", "row_N", "n_rows")


@every_class
def test_an_objective_says_what_it_is(cls: type[Objective]) -> None:
    assert cls.formula
    assert cls.source
    assert cls.needs <= FIELDS.keys()
    assert (cls.targets in ("random", "adversarial", "refusal")) == ("targets" in cls.needs)
    for item in fields(cls):
        default = getattr(cls(), item.name)
        taken_from_elsewhere = isinstance(default, str) and default.startswith("${")
        assert item.name == "name" or item.metadata["help"]
        assert taken_from_elsewhere or permits(item.metadata, default)


@every_objective
def test_terms_are_one_per_unit(objective: Objective) -> None:
    answers = random_answers()
    assert answers.alternate is not None
    shapes = {"token": answers.labels_N.shape, "sequence": (3,), "alternate_token": answers.alternate.labels_N.shape}
    parts = objective.parts(answers)
    assert objective.unit in parts
    assert {unit: terms.shape for unit, terms in parts.items()} == {unit: shapes[unit] for unit in parts}
    if len(parts) == 1:
        assert torch.equal(objective.terms(answers), parts[objective.unit])
    else:  # terms of one unit alone would be part of the loss
        with pytest.raises(TypeError, match="no terms of a single unit"):
            objective.terms(answers)


@every_objective
def test_a_constant_added_to_all_logits_changes_nothing(objective: Objective) -> None:
    answers = random_answers(extreme=60)

    def raised(*names: str) -> Answers:
        return mapped(answers, lambda name, tensor: tensor + 7 if name in names else tensor)

    for shifted in (raised("logits_NV"), raised("logits_NV", "reference_logits_NV", "reinforced_logits_NV")):
        torch.testing.assert_close(by_row(objective, shifted), by_row(objective, answers), rtol=1e-4, atol=1e-4)


@every_objective
@pytest.mark.parametrize("extreme", [20, 60, 200, 1e4])
def test_finite_with_finite_gradient_for_p_towards_0_and_1(objective: Objective, extreme: float) -> None:
    answers = random_answers(extreme=extreme)
    assert by_row(objective, answers).isfinite().all()
    assert gradient(objective, answers).isfinite().all()


@every_objective
@pytest.mark.parametrize("rows", [[2, 0, 1], [1], [2, 0]])
def test_the_terms_of_a_row_depend_neither_on_its_place_nor_on_the_other_rows(
    objective: Objective, rows: list[int]
) -> None:
    answers = random_answers(extreme=60)
    chosen, whole = by_row(objective, take(answers, rows)), by_row(objective, answers)
    torch.testing.assert_close(chosen, whole[:, rows], rtol=1e-5, atol=1e-6)


@every_objective
def test_a_row_without_answer_tokens_is_finite_and_leaves_the_others_alone(objective: Objective) -> None:
    answers = random_answers()
    wider = with_empty_row(answers)
    terms = by_row(objective, wider)
    assert terms.isfinite().all()
    assert gradient(objective, wider).isfinite().all()
    torch.testing.assert_close(terms[:, [0, 2, 3]], by_row(objective, answers))


def in_bf16(name: str, tensor: Tensor) -> Tensor:
    return tensor.bfloat16() if name.endswith(("_NV", "_ND")) else tensor


@every_objective
def test_bf16_outputs_give_fp32_terms(objective: Objective) -> None:
    """The same terms as fp32 makes of the rounded numbers; those of the exact ones as far as bf16's 8 bits go."""
    answers = random_answers()
    rounded = mapped(answers, in_bf16)
    assert all(terms.dtype == torch.float32 for terms in objective.parts(rounded).values())
    widened = mapped(rounded, lambda name, tensor: tensor.float() if tensor.dtype == torch.bfloat16 else tensor)
    torch.testing.assert_close(by_row(objective, rounded), by_row(objective, widened))
    torch.testing.assert_close(by_row(objective, rounded), by_row(objective, answers), rtol=0.03, atol=0.03)


def with_label_logits(answers: Answers, to: float) -> Answers:
    """The policy's logits of all labels of the answers set to one value; the alternates as they are."""
    return replace(answers, logits_NV=answers.logits_NV.scatter(1, answers.labels_N[:, None], to))


def with_likely_alternates(answers: Answers) -> Answers:
    assert answers.alternate is not None
    return replace(answers, alternate=with_label_logits(answers.alternate, 20))


@cache
def many_inputs() -> list[Answers]:
    made = [random_answers(seed, extreme) for seed in range(8) for extreme in (0.0, 5.0, 60.0)]
    forgotten = [with_label_logits(answers, -20) for answers in made]
    return [*made, *forgotten, *map(with_likely_alternates, forgotten), *map(at_start, made)]


@every_class
def test_nonnegative_where_declared_and_only_there(cls: type[Objective]) -> None:
    lowest = min(loss(cls(), answers).item() for answers in many_inputs())
    assert lowest >= -1e-6 if cls.nonnegative else lowest < -1e-3


@every_objective
def test_crosses_zero_where_declared_and_only_there(objective: Objective) -> None:
    losses = [loss(objective, answers).item() for answers in many_inputs()]
    assert (min(losses) < -1e-3 and max(losses) > 1e-3) == objective.crosses_zero
    assert not (objective.crosses_zero and objective.nonnegative)


@every_objective
def test_no_term_is_negative_where_the_loss_is_declared_nonnegative(objective: Objective) -> None:
    if objective.nonnegative:
        terms = [terms for answers in many_inputs() for terms in objective.parts(answers).values()]
        assert torch.cat(terms).min() >= -1e-6


@every_objective
def test_zero_with_zero_gradient_at_the_start_model_where_declared_and_only_there(objective: Objective) -> None:
    starts = [at_start(random_answers(seed)) for seed in range(3)]
    largest_loss = max(loss(objective, answers).abs().item() for answers in starts)
    largest_gradient = max(gradient(objective, answers).abs().max().item() for answers in starts)
    if objective.zero_at_start:
        assert largest_loss < 1e-6
        assert largest_gradient < 1e-6
    else:
        assert largest_loss > 1e-6
        assert largest_gradient > 1e-6


@every_class
def test_unbounded_is_what_falls_below_any_bound(cls: type[Objective]) -> None:
    """The logits of all labels, those of the answers or those of the alternates, are moved ever further down or up."""
    answers = random_answers()
    assert answers.alternate is not None

    alternate = answers.alternate

    def lowest(far: float) -> float:
        ways = [with_label_logits(answers, to) for to in (-far, far)]
        ways += [replace(answers, alternate=with_label_logits(alternate, to)) for to in (-far, far)]
        return min(loss(cls(), way).item() for way in ways)

    assert (lowest(1e3) < -100 and lowest(1e5) < -1e4) == cls.unbounded


@every_objective
def test_an_objective_reads_what_it_declares_and_nothing_else(objective: Objective) -> None:
    answers = random_answers()

    def only(needs: frozenset[str]) -> Answers:
        kept = {*GIVEN, *(name for need in needs for name in FIELDS[need])}

        def strip(answers: Answers) -> Answers:
            alternate = strip(answers.alternate) if answers.alternate is not None and "alternate" in kept else None
            dropped = {item.name: None for item in fields(Answers) if item.name not in kept}
            return replace(answers, **{**dropped, "alternate": alternate})

        return strip(answers)

    torch.testing.assert_close(by_row(objective, only(objective.needs)), by_row(objective, answers))
    for need in objective.needs:
        with pytest.raises(AssertionError):
            objective.parts(only(objective.needs - {need}))


@every_objective
def test_the_gradient_is_that_of_the_formula_unless_it_holds_a_part_constant(objective: Objective) -> None:
    """Central differences along random directions. Where the formula holds a weight or target constant, they differ."""
    # Likely labels: the weights of some objectives are next to nothing for unlikely ones.
    answers = with_label_logits(random_answers(seed=3), 2.0)
    generator = torch.Generator().manual_seed(1)
    step = 1e-2
    analytic, numeric = [], []
    for _ in range(4):
        directions: list[Tensor] = []

        def draw(name: str, tensor: Tensor, directions: list[Tensor] = directions) -> Any:
            if name in ("logits_NV", "hidden_ND"):
                directions.append(torch.randn(tensor.shape, generator=generator))
            return tensor

        mapped(answers, draw)

        def at(scale: float, directions: list[Tensor] = directions) -> float:
            left = iter(directions)

            def along(name: str, tensor: Tensor) -> Tensor:
                return tensor + scale * next(left) if name in ("logits_NV", "hidden_ND") else tensor

            return loss(objective, mapped(answers, along)).item()

        analytic.append(torch.dot(gradient(objective, answers), torch.cat([x.flatten() for x in directions])).item())
        numeric.append((at(step) - at(-step)) / (2 * step))
    agree = torch.allclose(torch.tensor(analytic), torch.tensor(numeric), rtol=1e-2, atol=1e-3)
    assert agree == ("held constant" not in objective.formula)
