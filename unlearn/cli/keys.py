"""One key and its value against the composed tree: what is needed, what was found, and the nearest valid name."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from unlearn.config import GROUPS
from unlearn.setting import allowed

ALIASES = {
    "learning_rate": "optimizer.lr",
    "lr": "optimizer.lr",
    "num_train_epochs": "trainer.epochs",
    "num_epochs": "trainer.epochs",
    "epochs": "trainer.epochs",
    "batch_size": "trainer.batch_size",
    "per_device_train_batch_size": "trainer.micro_batch_size",
    "gradient_accumulation_steps": "trainer.micro_batch_size",
    "max_grad_norm": "trainer.clip_norm",
    "gradient_clipping": "trainer.clip_norm",
    "dtype": "trainer.precision",
    "torch_dtype": "trainer.precision",
    "bf16": "trainer.precision",
    "warmup_ratio": "scheduler.warmup",
    "warmup_steps": "scheduler.warmup",
    "model_name_or_path": "model.path",
    "pretrained_model_name_or_path": "model.path",
    "attn_implementation": "model.attention",
    "forget_split": "data.split",
    "random_seed": "seed",
    "output_path": "output_dir",
    "run_dir": "output_dir",
}
"""What the same settings are called in other tools."""


def put(tree: DictConfig, key: str, value: Any, *, names: bool = False, add: bool = False) -> list[str]:
    """Set one key of the tree, or say in one line each why that cannot be; a faulty value leaves the tree as it was.

    names: whether `name` of a group may be set (a preset names itself); add: whether a mapping may get a new entry.
    """
    parent_key, _, last = key.rpartition(".")
    parent = _deepest(tree, parent_key)
    is_mapping = isinstance(parent, DictConfig) and OmegaConf.get_type(parent) is dict
    exists = parent is select(tree, parent_key) and last in list(parent)
    if not exists and not is_mapping:
        return [unknown(tree, key)]
    if not exists and parent is not select(tree, parent_key):
        return [f"{key}: no such entry; new ones are made in a file only (--config-dir adds a folder with your own)"]
    if not exists and not add:
        return [f"{key}: no such entry; write +{key}=... to add one"]
    node = select(tree, key)
    if isinstance(node, DictConfig) and OmegaConf.get_type(node) is not dict:
        if isinstance(value, dict):
            inner = [put(tree, f"{key}.{name}", part, names=names, add=add) for name, part in value.items()]
            return [fault for faults in inner for fault in faults]
        return [_not_a_value(key, node, value)]
    if last == "name" and parent_key.replace(".", "/") in group_names(tree) and not names:
        group = parent_key.replace(".", "/")
        return [f"{key}: is chosen by {group}={value if isinstance(value, str) else '...'}, and not set by itself"]
    if isinstance(node, DictConfig) and isinstance(value, dict) and not add:
        new = [str(name) for name in value if name not in list(node)]
        if new:
            return [f"{key}: no such entry {', '.join(new)}; write +{key}={{...}} to add to it"]
    if value == "???":
        return [f"{key}: needs a value; found ???"]
    return _set(tree, key, value, "" if is_mapping else needs(OmegaConf.get_type(parent), last))


def _deepest(tree: DictConfig, key: str) -> DictConfig:
    """The last node on the way to a key that has keys of its own."""
    node = tree
    for part in key.split(".") if key else []:
        inner = select(node, part)
        if not isinstance(inner, DictConfig):
            break
        node = inner
    return node


def _set(tree: DictConfig, key: str, value: Any, need: str) -> list[str]:
    if isinstance(value, str) and "${" not in value and need.startswith(("an integer", "a number", "true or false")):
        if _reads_as_plain(value):
            return [f"{key}: needs {need}; found the text {show(value)}; write it without quotes: {key}={value}"]
        return [f"{key}: needs {need}; found {show(value)}"]
    if isinstance(value, (bool, float)) and need.startswith("text"):
        return [f"{key}: needs text; found {show(value)}, which is not text; put it in quotes"]
    try:
        # A mapping that is null cannot be merged into.
        OmegaConf.update(tree, key, value, merge=select(tree, key) is not None, force_add=True)
    except OmegaConfBaseException as error:
        return [f"{key}: needs {need}; found {show(value)}" if need else f"{key}: {first_line(error)}"]
    return []


def _reads_as_plain(text: str) -> bool:
    """Whether quoted text would be a number, true or false without its quotes."""
    try:
        return text.lower() in ("true", "false") or float(text) is not None
    except ValueError:
        return False


def _not_a_value(key: str, node: DictConfig, value: Any) -> str:
    group = key.replace(".", "/")
    if group in GROUPS:
        return f"{key}: is a group; write {group}={value if isinstance(value, str) else '...'} (with a slash)"
    return f"{key}: holds several settings ({', '.join(str(name) for name in node)}); found {show(value)}"


def unknown(tree: DictConfig, key: str) -> str:
    """The line for a key that does not exist."""
    parent_key = key.rpartition(".")[0]
    siblings = select(tree, parent_key) if parent_key else None
    parts = [f"{key}: no such key"]
    if isinstance(siblings, DictConfig) and len(siblings) <= 20:
        names = [str(name) for name in siblings if name != "name"]
        parts.append(f"{parent_key} has {', '.join(names) or 'no settings'}")
    guess = nearest(tree, key)
    if guess is not None:
        owner = _owner(guess) if guess not in leaves(tree) else ""
        parts.append(f"{guess} belongs to {owner}" if guess == key and owner else f"did you mean {guess}{_of(owner)}?")
    return "; ".join(parts)


def _of(owner: str) -> str:
    return f" (of {owner})" if owner else ""


def nearest(tree: DictConfig, key: str) -> str | None:
    """The valid key whose last part looks most alike, and whose path does where two look the same."""
    parent, _, last = key.rpartition(".")
    elsewhere = [option_key for option_key, _ in _option_settings()]
    candidates = [*leaves(tree), *group_names(tree), *elsewhere]
    if not key.startswith("hydra."):
        candidates = [candidate for candidate in candidates if not candidate.startswith("hydra")]
    best, best_score = None, 0.7
    for candidate in candidates:
        candidate_parent, _, candidate_last = candidate.rpartition(".")
        alike = _ratio(last, candidate_last)
        score = alike + 0.2 * _ratio(parent, candidate_parent) - 0.01 * candidate.count(".")
        if alike >= 0.6 and score > best_score:
            best, best_score = candidate, score
    known_elsewhere = get_close_matches(last, ALIASES, 1, cutoff=0.8)
    if known_elsewhere and not key.startswith("hydra.") and _ratio(last, known_elsewhere[0]) + 0.1 > best_score:
        return ALIASES[known_elsewhere[0]]
    return best


def _ratio(left: str, right: str) -> float:
    return SequenceMatcher(None, left, right).ratio()


@lru_cache
def _option_settings() -> list[tuple[str, str]]:
    """Every setting of every group option that is a dataclass, with the option that has it."""
    return [
        (f"{group.replace('/', '.')}.{item.name}", f"{group}={option}")
        for group, options in GROUPS.items()
        for option, node in options.items()
        for item in dataclasses.fields(node)
        if item.name != "name"
    ]


def _owner(key: str) -> str:
    """The options that have a setting, in one word: method/forget=npo, simnpo or dpo."""
    owners = [option for setting_key, option in _option_settings() if setting_key == key]
    names = [option.partition("=")[2] for option in owners[1:]]
    return " or ".join([", ".join([*owners[:1], *names[:-1]]), *names[-1:]])


def leaves(tree: DictConfig, prefix: str = "") -> list[str]:
    """Every dotted key that holds a value."""
    found: list[str] = []
    for name in map(str, tree):
        key = f"{prefix}{name}"
        node = None if OmegaConf.is_missing(tree, name) or OmegaConf.is_interpolation(tree, name) else tree[name]
        if isinstance(node, DictConfig) and len(node):
            found += leaves(node, f"{key}.")
        else:
            found.append(key)
    return found


def group_names(tree: DictConfig) -> list[str]:
    """Groups of the application, as they are chosen: with slashes."""
    nodes = {str(name): select(tree, str(name)) for name in tree}
    named = [name for name, node in nodes.items() if isinstance(node, DictConfig) and "name" in list(node)]
    return named + [name for name in GROUPS if "/" in name]


def select(tree: DictConfig, key: str) -> Any:
    """The node at a dotted key; None where there is none."""
    try:
        return OmegaConf.select(tree, key) if key else tree
    except OmegaConfBaseException:
        return None


def needs(owner: Any, name: str) -> str:
    """Type and range of a dataclass field in words: "an integer, at least 1", "one of fp32, bf16"."""
    if not dataclasses.is_dataclass(owner):
        return ""
    metadata: Mapping[str, Any] = {item.name: item.metadata for item in dataclasses.fields(owner)}.get(name, {})
    hint = _hints(owner if isinstance(owner, type) else type(owner)).get(name, Any)
    words, bounds = _type_words(hint), allowed(metadata)
    if "choices" in metadata:
        words = bounds + (" or null" if words.endswith(" or null") else "")
    elif bounds:
        words = f"{words}, {bounds}"
    return words


@lru_cache
def _hints(owner: type) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def _type_words(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        return _type_words(inner[0]) + " or null"
    if typing.get_origin(hint) is list:
        return "a list such as [a,b]"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(hint.__members__)
    return {int: "an integer", float: "a number", bool: "true or false", str: "text"}.get(hint, "")


def show(value: Any) -> str:
    """A value as it would be typed, cut where it is long."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def first_line(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
