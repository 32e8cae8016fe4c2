"""Which parameters are trained: by a regular expression over their names, by decoder layer, or those of the adapter.

An optimizer, weight decay, norms and Gram matrices see the selected parameters only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from unlearn.config import MethodConfig, RunConfig
from unlearn.errors import UserError
from unlearn.models.adapter import MARK
from unlearn.objectives.objective import Objective

AUTO = "auto"

WRAPPER = "base_model.model."
"""What peft puts before every name; a user's expression sees the names without it."""


def select(model: Any, objective: Objective, params: str = AUTO, layers: str | None = None) -> list[str]:
    """Let exactly the selected parameters require gradients; returns their names (tied weights have one).

    See `selected` for the rules. Raises UserError.
    """
    parameters = dict(model.named_parameters())
    names = selected(list(parameters), int(model.config.num_hidden_layers), objective, params, layers)
    chosen = set(names)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in chosen)
    return names


def selected(
    names: Sequence[str], depth: int, objective: Objective, params: str = AUTO, layers: str | None = None
) -> list[str]:
    """The names that are trained, of a model of `depth` decoder layers.

    Of the adapter's parameters, or of the model's where there is none: those that the forget objective names, else all.
    `params` replaces the objective's choice, `layers` its layers. Raises UserError: malformed, beyond the depth, or
    nothing left.
    """
    candidates = [name for name in names if MARK in name] or list(names)
    own = objective.trains(depth)
    pattern, numbers = own if own is not None and params == AUTO else ("", None)
    expression = re.compile(pattern) if params == AUTO else _expression(params)
    if layers is not None:
        numbers = layer_range(layers, depth)
    chosen = [
        name
        for name in candidates
        if expression.search(name.removeprefix(WRAPPER)) and (numbers is None or layer_of(name) in numbers)
    ]
    if not chosen:
        raise UserError(_nothing(candidates, params, layers, f"'{pattern}' of {objective.name}" if pattern else ""))
    return chosen


def layer_of(name: str) -> int | None:
    """The decoder layer that a parameter belongs to, counted from 0: the first number among the parts of its name."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def layer_range(text: str, depth: int) -> range:
    """The layers meant by "5", "5-7" or "3-" in a model of `depth` layers. Raises UserError."""
    match = re.fullmatch(r"(\d+)(-(\d*))?", text.strip())
    if match is None:
        raise UserError(f"trainer.layers: needs a layer or a range of layers, as in 5, 5-7 or 3-; found '{text}'")
    first = int(match[1])
    last = first if match[2] is None else int(match[3] or depth - 1)
    if not first <= last < depth:
        raise UserError(f"trainer.layers: needs layers from 0 to {depth - 1}, in rising order; found '{text}'")
    return range(first, last + 1)


def check_selection(cfg: RunConfig, names: Sequence[str], depth: int) -> list[str]:
    """What `select` will select, from the names alone. Raises UserError with a line for every fault.

    Layers whose hidden states an objective reads must be there too, and be the same for both objectives.
    """
    method, faults, chosen = cfg.method, _layer_faults(cfg.method, depth), []
    params, layers = cfg.trainer.params, cfg.trainer.layers
    if not faults or params != AUTO or layers is not None:  # what the method names follows from the faulty layer
        try:
            chosen = selected(names, depth, method.forget, params, layers)
        except UserError as error:
            faults += error.messages
    if faults:
        raise UserError(faults)
    return chosen


def _layer_faults(method: MethodConfig, depth: int) -> list[str]:
    sides = {"forget": method.forget, "retain": method.retain}
    layers = {side: part.layer_of(depth) for side, part in sides.items() if "hidden" in part.needs}
    beyond = [
        f"method.{side}.layer: needs a layer from 0 to {depth - 1} of this model; found {layer}"
        for side, layer in layers.items()
        if not 0 <= layer < depth
    ]
    if beyond or len(set(layers.values())) < 2:
        return beyond
    return [
        f"method.retain.layer: needs {layers['forget']}, the layer that method/forget={method.forget.name} reads; "
        f"found {layers['retain']}"
    ]


def _expression(params: str) -> re.Pattern[str]:
    try:
        return re.compile(params)
    except re.error as error:
        raise UserError(f"trainer.params: needs a regular expression; found '{params}' ({error})") from None


def _nothing(candidates: list[str], params: str, layers: str | None, method: str) -> str:
    there = f"{len(candidates)} parameters ({', '.join(name.removeprefix(WRAPPER) for name in candidates[:2])}, ...)"
    where = f" in the layers {layers}" if layers is not None else ""
    if params != AUTO:
        return f"trainer.params: needs to match one of {there}; found '{params}'{where}, which matches none"
    if method:
        adapted = ", or have those adapted too with model.adapter.target_modules" if MARK in candidates[0] else ""
        return (
            f"method.forget: trains {method}{where}, which is none of {there}; name others with trainer.params{adapted}"
        )
    return f"trainer.layers: needs layers that hold one of {there}; found '{layers}'"
