"""The presets of conf/method as they stand in their files: their parts and settings, for `--help` and the docs.

Read without Hydra, so that `--help` stays quick; a test holds them to what Hydra composes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from unlearn.gradients.combine import COMBINE

SUMMED = tuple(name for name, node in COMBINE.items() if node().fixed is not None)
"""Options of method/combine that add the two losses with constant weights."""

FAMILIES = {
    "sum": "forget loss + retain loss",
    "rule": "forget and retain gradient, combined by a rule",
    "forget": "forget loss alone",
    "other": "others",
}
"""Kinds of methods, in the order that they are listed in, with their headings."""


@dataclass(frozen=True)
class Preset:
    """One file: options by group ("method/forget", "scheduler", ...) and single settings by dotted key.

    phrase is what its first comment says behind the command, note what the comments below say of its source.
    """

    name: str
    phrase: str
    note: str
    options: dict[str, str]
    settings: dict[str, Any]

    @property
    def family(self) -> str:
        """Key of `FAMILIES`; a file that names no forget objective of its own counts as "other"."""
        part = {name: self.options.get(f"method/{name}", "none") for name in ("forget", "retain", "combine")}
        if part["forget"] == "none":
            return "other"
        if part["combine"] not in SUMMED:
            return "rule"
        return "forget" if part["retain"] == "none" else "sum"


def read_methods(folder: Path) -> list[Preset]:
    """The presets in FOLDER/method, by name; what cannot be read has a name only, since it is no task of help's."""
    return [read(file) for file in sorted((folder / "method").glob("*.yaml"))]


def read(file: Path) -> Preset:
    """One preset of a method."""
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        content: Any = OmegaConf.to_container(OmegaConf.create(text))
        options = options_of(content["defaults"], "method/")
        settings = {key: value for key, value in content.items() if key not in ("defaults", "name")}
    except Exception:  # of YAML, of the shape: composing the preset says which
        options, settings = {}, {}
    flat = _flat(settings, "" if "@package _global_" in text.partition("\n")[0] else "method.")
    flat.pop("method.name", None)
    phrase, note = comments_of(file)
    return Preset(file.stem, phrase, note, options, flat)


def options_of(defaults: list[Any], folder: str) -> dict[str, str]:
    """Options of a defaults list by group; groups without `override` are below `folder`."""
    chosen: dict[str, str] = {}
    for entry in defaults:
        for name, option in entry.items() if isinstance(entry, dict) else ():
            group = name.removeprefix("override ").lstrip("/").partition("@")[0]
            chosen[group if name.startswith("override ") else f"{folder}{group}"] = str(option)
    return chosen


def comments_of(file: Path) -> tuple[str, str]:
    """What the first comment of a preset says behind its command, and the comments that follow, in one line each."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    head = list(takewhile(lambda line: line.startswith("#"), lines))
    said = [line.removeprefix("#").strip() for line in head if not line.startswith("# @")]
    return (said[0].partition(": ")[2], " ".join(said[1:])) if said else ("", "")


def _flat(settings: dict[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
