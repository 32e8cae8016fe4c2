"""The composed tree of a choice of groups, built file by file so that every fault in a file is found and named.

The tree equals the one that Hydra composes from the same choices (tested over all presets). Hydra itself stops at the
first fault and names the key or the file, rarely both.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import DefaultsList
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.default_element import ConfigDefault, GroupDefault, ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from unlearn.cli.keys import first_line, put, show
from unlearn.config import GROUPS, conf_dir, register

MANY = 25
"""Options of a group from which on a fault names the nearest one only."""

OVERLAYS = ("experiment", "debug")
"""Groups whose files set keys of the whole tree. What an experiment sets counts as set by the user."""


@dataclass
class Choice:
    """Options chosen for one group on the command line, with the text that chose them."""

    group: str
    options: list[str]
    text: str


@dataclass
class Base:
    """The tree of one choice of groups, before single keys of the command line."""

    tree: DictConfig
    faults: list[str] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)


class Composer:
    """Hydra's loader over conf/, the dataclass options and the user's own folders."""

    def __init__(self, folders: list[str]) -> None:
        register()
        setup_globals()
        search_path = create_config_search_path(str(conf_dir()))
        self.faults: list[str] = []
        for folder in folders:
            path = folder if "://" in folder else f"file://{Path(folder).absolute()}"
            if path.startswith("file://") and not Path(path.removeprefix("file://")).is_dir():
                self.faults.append(f"--config-dir: no such folder: {folder}")
            else:
                search_path.prepend("command-line", path, anchor=SearchPathQuery(provider="schema"))
        self.loader = ConfigLoaderImpl(search_path)
        self.groups = self._groups_below("")
        self._bases: dict[tuple[str, ...], Base] = {}
        self._loaded: dict[str, ConfigResult | None] = {}

    def _groups_below(self, parent: str) -> list[str]:
        found: list[str] = []
        for name in self.loader.repository.get_group_options(parent, ObjectType.GROUP):
            group = f"{parent}/{name}" if parent else name
            found += [group, *self._groups_below(group)]
        return found

    def options(self, group: str) -> list[str]:
        """Options of a group: the dataclasses in their own order, then the files."""
        first = list(GROUPS.get(group, {}))
        files = self.loader.repository.get_group_options(group, ObjectType.CONFIG)
        return first + [name for name in files if name not in first]

    def base(self, choices: list[Choice]) -> Base:
        """The tree of these choices; a choice whose file cannot be used is left out, with its faults."""
        key = tuple(choice.text for choice in choices)
        if key not in self._bases:
            self._bases[key] = self._build(choices)
        return self._bases[key]

    def _build(self, choices: list[Choice]) -> Base:
        base = Base(OmegaConf.create())
        kept = []
        for choice in choices:
            faults = [fault for option in choice.options for fault in self.file_faults(f"{choice.group}/{option}")]
            base.faults += faults
            if not faults:
                kept.append(choice.text)
        listed = self._listed(kept, base.faults)
        for default in listed.defaults:
            self._merge(base, default)
        base.tree.hydra.runtime.choices.update(listed.overrides.known_choices)
        OmegaConf.set_struct(base.tree, True)
        return base

    def _listed(self, texts: list[str], faults: list[str]) -> DefaultsList:
        try:
            return self.loader.compute_defaults_list("run", texts, RunMode.RUN)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            faults.append(f"{' '.join(texts)}: {first_line(error)}")
            return self.loader.compute_defaults_list("run", [], RunMode.RUN)

    def _merge(self, base: Base, default: ResultDefault) -> None:
        loaded = self._load(str(default.config_path))
        assert loaded is not None
        package = (default.package if default.package is not None else loaded.header["package"]) or ""
        name = f"{default.config_path}.yaml"
        if package in OVERLAYS:
            base.faults.append(f"{name}: the first line must be `# @package _global_`")
        elif loaded.is_schema_source or loaded.path.startswith("structured:") or loaded.provider == "hydra":
            embedded = OmegaConf.create()
            OmegaConf.update(embedded, package, loaded.config, merge=False) if package else None
            base.tree.merge_with(embedded if package else loaded.config)
        elif not isinstance(loaded.config, DictConfig):
            base.faults.append(f"{name}: needs lines of the form `key: value`")
        else:
            content: dict[Any, Any] = OmegaConf.to_container(loaded.config)  # type: ignore[assignment]
            content.pop("defaults", None)
            overlay = str(default.config_path).startswith(tuple(f"{group}/" for group in OVERLAYS))
            for inner_key, value in content.items():
                inner = f"{package}.{inner_key}" if package else str(inner_key)
                faults = put(base.tree, inner, value, names=not overlay, add=True)
                base.faults += [f"{name}: {fault}" for fault in faults]
                if str(default.config_path).startswith("experiment/"):
                    base.touched.update(keys_of(inner, value))

    def _load(self, path: str) -> ConfigResult | None:
        if path not in self._loaded:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._loaded[path] = self.loader.repository.load_config(path)
        return self._loaded[path]

    def file_faults(self, path: str) -> list[str]:
        """What is wrong with a file, and with the files that its defaults list names, short of its keys."""
        try:
            loaded = self._load(path)
        except Exception as error:  # of YAML, of the encoding, of Hydra: all are faults of this file
            mark = getattr(error, "problem_mark", None)
            if mark is not None:
                return [f"{path}.yaml, line {mark.line + 1}: is not YAML: {getattr(error, 'problem', '')}"]
            return [f"{path}.yaml: {first_line(error)}"]
        if loaded is None:
            return [f"{path}.yaml: no such file"]
        faults: list[str] = []
        for default in loaded.defaults_list or []:
            faults += self._default_faults(path, default)
        return faults

    def _default_faults(self, path: str, default: Any) -> list[str]:
        folder = path.rpartition("/")[0]
        if isinstance(default, ConfigDefault):
            inner = str(default.path)
            inside = inner.lstrip("/") if inner.startswith("/") else f"{folder}/{inner}"
            if inner == "_self_":
                return []
            return [f"{path}.yaml: {fault}" for fault in self.file_faults(inside)]
        assert isinstance(default, GroupDefault)
        named = str(default.group)
        group = named.lstrip("/") if named.startswith("/") else f"{folder}/{named}"
        if group.startswith("hydra/"):
            return [
                f"{path}.yaml: `override /{group}: {default.value}` comes too late in this file and would be ignored; "
                f"write {group}={default.value} on the command line"
            ]
        if group not in self.groups:
            at_root = named in self.groups
            return [f"{path}.yaml: defaults: no such group {group}" + (f"; did you mean /{named}?" if at_root else "")]
        if not default.override and (group in OVERLAYS or path.split("/")[0] in OVERLAYS):
            return [f"{path}.yaml: defaults: write `override /{group}: {default.value}`"]
        values = default.value if isinstance(default.value, list) else [default.value]
        bad = [value for value in values if value is not None and value not in self.options(group)]
        return [f"{path}.yaml: defaults: {self.option_fault(group, value)}" for value in bad]

    def option_fault(self, group: str, value: Any) -> str:
        """The line for an option that a group does not have."""
        options = self.options(group)
        if not options:
            return f"{group}: has no options here (--config-dir adds a folder with your own); found {show(value)}"
        guess = get_close_matches(str(value), options, 1, cutoff=0.5)
        hint = f"; did you mean {guess[0]}?" if guess else ""
        if group in ("hydra/launcher", "hydra/sweeper") and not guess:
            hint = f"; for {value} install its plugin, as in pip install hydra-{value}-{group.split('/')[1]}"
        known = (
            ", ".join(options) if len(options) <= MANY else f"{len(options)} options (unlearn-run --help lists them)"
        )
        return f"{group}: needs one of {known}; found {show(value)}{hint}"


def keys_of(key: str, value: Any) -> list[str]:
    """Dotted keys that a value sets: one, or those of a mapping."""
    if not isinstance(value, dict) or not value:
        return [key]
    return [inner for name, part in value.items() for inner in keys_of(f"{key}.{name}", part)]
