"""One typed setting: its default, what it means, and which values are allowed.

Every settings class of the project declares its fields with `setting`, so that the checks before a run, `--help` and
the docs read the same words.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field with its meaning and its range: `above` and `below` exclude their bound."""
    bounds = {"minimum": minimum, "maximum": maximum, "above": above, "below": below, "choices": choices}
    metadata = {"help": help, **{name: bound for name, bound in bounds.items() if bound is not None and bound != ()}}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def allowed(metadata: Any) -> str:
    """The range in words, for an error line: "one of a, b" or "at least 1"."""
    if "choices" in metadata:
        return "one of " + ", ".join(metadata["choices"])
    words = {"minimum": "at least", "above": "above", "maximum": "at most", "below": "below"}
    return " and ".join(f"{words[name]} {_number(metadata[name])}" for name in words if name in metadata)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def permits(metadata: Any, value: Any) -> bool:
    """Whether a value that has the right type lies in the range; None (unset) always does."""
    if value is None:
        return True
    if "choices" in metadata and value not in metadata["choices"]:
        return False
    return not (
        ("minimum" in metadata and not value >= metadata["minimum"])
        or ("above" in metadata and not value > metadata["above"])
        or ("maximum" in metadata and not value <= metadata["maximum"])
        or ("below" in metadata and not value < metadata["below"])
    )
