"""Checks everything that the user typed, and reports all faults at once, before anything is run.

Hydra's own parser reads the text and Hydra's own loader reads the files; each part is then checked against the composed
tree of the group choices, so that one fault does not hide the next.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, OverrideType, ValueType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from unlearn.cli.checks import check_ranges, cross_checks, folder_fault
from unlearn.cli.compose import Choice, Composer, keys_of
from unlearn.cli.keys import first_line, leaves, nearest, put, select, unknown
from unlearn.config import RunConfig, to_config
from unlearn.errors import UserError


@dataclass(frozen=True)
class Checked:
    """What was typed, found sound: one typed config per job, and the dotted keys that the user set anywhere."""

    jobs: list[RunConfig]
    touched: frozenset[str]
    multirun: bool


def check(texts: list[str], multirun: bool = False, config_dir: str | None = None) -> Checked:
    """Check overrides as typed on the command line. Raises UserError with one line per fault."""
    return _Check(texts, config_dir).run(multirun)


class _Check:
    def __init__(self, texts: list[str], config_dir: str | None) -> None:
        self.faults: list[str] = []
        self.parser = OverridesParser.create()
        self.unread: list[tuple[str, BaseException]] = []
        self.overrides = self._parse(texts)
        folders = [config_dir] if config_dir else []
        for override in self.overrides:
            is_path = override.key_or_group == "hydra.searchpath" and isinstance(override.value(), list)
            folders += _as_list(override) if is_path else []
        self.composer = Composer(folders)

    @property
    def plain(self) -> DictConfig:
        """The tree of the defaults."""
        return self.composer.base([]).tree

    def run(self, multirun: bool) -> Checked:
        settled = self.composer.base(self._choices([item for item in self.overrides if not item.is_sweep_override()]))
        multirun = multirun or any(item.get_key_element() == "hydra.mode" for item in self.overrides if _is_multi(item))
        multirun = multirun or select(settled.tree, "hydra.mode") == RunMode.MULTIRUN
        if multirun:
            params = select(settled.tree, "hydra.sweeper.params") or {}
            both = self._parse([f"{key}={value}" for key, value in params.items()]) + self.overrides
            self.overrides = list({override.get_key_element(): override for override in both}.values())
        for override in self.overrides:
            override.config_loader = self.composer.loader
        elements = [kept for override in self.overrides if (kept := self._elements(override, multirun))]
        jobs, touched = self._jobs(elements, multirun)
        unread = [self._syntax_fault(text, error) for text, error in self.unread]
        faults = self.composer.faults + unread + self.faults
        if faults:
            raise UserError(list(dict.fromkeys(faults)))
        return Checked(jobs, frozenset(touched), multirun)

    def _parse(self, texts: list[str]) -> list[Override]:
        parsed = []
        for text in texts:
            try:
                parsed.append(self.parser.parse_override(text))
            except (HydraException, RecursionError) as error:
                self.unread.append((text, error))
        return parsed

    def _syntax_fault(self, text: str, error: BaseException) -> str:
        key, equals, value = text.partition("=")
        if not equals:
            groups = [group for group in self.composer.groups if not group.startswith("hydra")]
            owners = [group for group in groups if text in self.composer.options(group)]
            hint = f"{owners[0]}={text}" if owners else f"{key}=VALUE"
            return f"{text}: needs the form key=value, as in {hint}"
        stopped_at = getattr(error.__cause__, "startIndex", None)
        reason = first_line(error).split(" expecting ")[0]
        if stopped_at is not None:
            reason = f"unexpected '{text[stopped_at:]}'"
        elif reason.startswith("HydraException while evaluating"):
            reason = str(error).splitlines()[0].rpartition(": ")[2]
        quote = "'" if '"' in value else '"'
        hint = f"; to take it as text, quote it twice for the shell: '{key}={quote}{value}{quote}'"
        return f"{text}: cannot be read ({reason}){hint if quote not in value and key.strip() else ''}"

    def _elements(self, override: Override, multirun: bool) -> list[Override]:
        """The values that one override takes over the jobs, without those that no job could use."""
        if not override.is_sweep_override():
            return [override] if self._sound(override, multirun) else []
        key = override.key_or_group
        if not multirun:
            text = override.get_value_string()
            is_list = OmegaConf.is_list(select(self.plain, key))
            hint = f"for a list write {key}=[{text}]" if is_list else "add -m to run one job per value"
            self.faults.append(f"{key}: found {text}, which is several values; {hint}")
            return []
        if override.is_hydra_override():
            self.faults.append(f"{key}: settings of Hydra cannot be swept; found {override.get_value_string()}")
            return []
        if override.value_type == ValueType.INTERVAL_SWEEP:
            interval = override.value()
            assert isinstance(interval, IntervalSweep)
            if "basic" in str(select(self.plain, "hydra.sweeper._target_")) and not self._chosen("hydra/sweeper"):
                self.faults.append(f"{key}: interval() needs a sweeper that draws values, as in hydra/sweeper=optuna")
            texts = [f"{override.get_key_element()}={bound}" for bound in (interval.start, interval.end)]
        else:
            texts = [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
            if not texts:
                self.faults.append(f"{key}: {override.get_value_string()} stands for no value at all")
        return [item for item in self._parse(texts) if self._sound(item, multirun)]

    def _chosen(self, group: str) -> bool:
        return any(override.key_or_group == group for override in self.overrides)

    def _sound(self, override: Override, multirun: bool) -> bool:
        """Whether it is worth a look at the tree: its group and option exist, and its kind is one that we take."""
        fault = self._kind_fault(override, multirun)
        if fault is not None:
            self.faults.append(fault)
        return fault is None

    def _kind_fault(self, override: Override, multirun: bool) -> str | None:
        key, value = override.key_or_group, override.value()
        if override.is_delete():
            return f"~{key}: settings and groups cannot be removed; give it another value, as in {key}=VALUE"
        if key in ("hydra.run.dir", "hydra.sweep.subdir"):
            return f"{key}: is derived; set {'hydra.sweep.dir' if multirun else 'output_dir'} to choose the folder"
        if key == "hydra.searchpath" and not isinstance(value, list):
            return f"{key}: needs a list of folders, as in {key}=[my-conf]; --config-dir takes one folder"
        if key == "hydra.job.chdir":
            return f"{key}: stays false; paths are relative to the folder that you start from"
        if key == "output_dir" and multirun:
            return "output_dir: with -m every job has its own folder, hydra.sweep.dir/<job number>; set hydra.sweep.dir"
        if self._is_group(override):
            if override.is_add() or override.is_force_add():
                return f"{override.input_line}: is chosen without +: {str(override.input_line).lstrip('+')}"
            bad = [option for option in _as_list(override) if option not in self.composer.options(key)]
            return self.composer.option_fault(key, bad[0] if value is not None else None) if bad else None
        if "/" in key or override.package is not None:
            guess = get_close_matches(key, self.composer.groups, 1)
            return f"{override.get_key_element()}: no such group" + (f"; did you mean {guess[0]}?" if guess else "")
        return None

    def _is_group(self, override: Override) -> bool:
        known = override.key_or_group in self.composer.groups and override.package is None
        return known and not isinstance(override.value(), dict)

    def _choices(self, overrides: list[Override]) -> list[Choice]:
        groups = [item for item in overrides if self._is_group(item) and item.type == OverrideType.CHANGE]
        return [
            Choice(item.key_or_group, _as_list(item), str(item.input_line))
            for item in groups
            if all(option in self.composer.options(item.key_or_group) for option in _as_list(item))
        ]

    def _jobs(self, elements: list[list[Override]], multirun: bool) -> tuple[list[RunConfig], set[str]]:
        """Check every job of the sweep (one without -m), and say which one a fault belongs to if not all have it."""
        jobs: list[RunConfig] = []
        touched: set[str] = set()
        seen: Counter[str] = Counter()
        first: dict[str, list[Override]] = {}
        count = 0
        for overrides in itertools.product(*elements):
            cfg, faults = self._job(list(overrides), touched, count if multirun else None)
            jobs += [cfg] if cfg is not None else []
            swept = [item for item, values in zip(overrides, elements, strict=True) if len(values) > 1]
            for fault in dict.fromkeys(faults):
                seen[fault] += 1
                first.setdefault(fault, swept)
            count += 1
        for fault, times in seen.items():
            # A fault of a swept key names the value already.
            known = times == count or any(fault.startswith(f"{item.key_or_group}:") for item in first[fault])
            job = " ".join(str(item.input_line) for item in first[fault])
            self.faults.append(fault if known else f"{fault} [in the job {job}]")
        return jobs, touched

    def _job(
        self, overrides: list[Override], touched: set[str], number: int | None
    ) -> tuple[RunConfig | None, list[str]]:
        choices = self._choices(overrides)
        base = self.composer.base(choices)
        tree, faults = deepcopy(base.tree), list(base.faults)
        touched.update(base.touched, (choice.group.replace("/", ".") for choice in choices))
        for override in overrides:
            if not self._is_group(override):
                faults += _set_key(tree, override)
                touched.update(keys_of(override.key_or_group, override.value()))
        if number is not None:
            tree.hydra.job.num = number
        cfg, more = _typed(tree)
        folder_key = "output_dir" if number is None else "hydra.sweep.dir"
        try:
            folder = str(OmegaConf.select(tree, folder_key))
        except OmegaConfBaseException as error:
            return None, list(dict.fromkeys([*faults, *more, _interpolation_fault(tree, folder_key, error)]))
        if cfg is not None:
            cfg.output_dir = folder if number is None else f"{folder}/{number}"
        unusable = folder_fault(folder_key, folder)
        return cfg, faults + more + ([unusable] if unusable else [])


def _set_key(tree: DictConfig, override: Override) -> list[str]:
    key = override.key_or_group
    if not key:
        return [unknown(tree, str(override.input_line))]
    if override.is_add() and key in leaves(tree) and not isinstance(override.value(), (dict, list)):
        return [f"+{key}: exists already; write {key}=... without +"]
    return put(tree, key, override.value(), add=override.is_add() or override.is_force_add())


def _typed(tree: DictConfig) -> tuple[RunConfig | None, list[str]]:
    """The typed config of a composed tree, with all that is wrong with it as a whole."""
    faults = []
    app = deepcopy(tree)
    with open_dict(app):
        app.pop("hydra")
    with _hydra_config(tree):
        for key in leaves(app):
            try:
                if OmegaConf.select(app, key, default="???") == "???":
                    faults.append(f"{key}: needs a value; found ???")
            except OmegaConfBaseException as error:
                faults.append(_interpolation_fault(app, key, error))
        if faults:
            return None, faults
        try:
            cfg = to_config(app)
        except OmegaConfBaseException as error:
            return None, _misfits(app) or [f"config: {first_line(error)}"]
    return cfg, check_ranges(cfg) + cross_checks(cfg)


def _misfits(app: DictConfig) -> list[str]:
    """Interpolations that lead to a value of another type, such as a list that refers to a number."""
    values = {key: select(app, key) for key in leaves(app)}
    plain = {
        key: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value for key, value in values.items()
    }
    return [fault for key, value in plain.items() for fault in put(app, key, value, names=True, add=True)]


@contextmanager
def _hydra_config(tree: DictConfig) -> Iterator[None]:
    """What ${hydra:...} reads while a config is resolved."""
    holder = HydraConfig.instance()
    before = holder.cfg
    holder.set_config(tree)
    try:
        yield
    finally:
        holder.cfg = before


def _interpolation_fault(app: DictConfig, key: str, error: OmegaConfBaseException) -> str:
    parent = select(app, key.rpartition(".")[0])
    container = parent if isinstance(parent, DictConfig) else app
    text = OmegaConf.to_container(container, resolve=False)[key.rpartition(".")[2]]  # type: ignore[index, call-overload]
    inner = str(text).strip("${}")
    guess = nearest(app, inner) if ":" not in inner else None
    hint = f"; did you mean ${{{guess}}}?" if guess else ""
    return f"{key}: {text} cannot be resolved ({first_line(error)}){hint}"


def _as_list(override: Override) -> list[str]:
    value = override.value()
    return [str(item) if item is not None else "null" for item in (value if isinstance(value, list) else [value])]


def _is_multi(override: Override) -> bool:
    return str(override.value()).upper() == "MULTIRUN"
