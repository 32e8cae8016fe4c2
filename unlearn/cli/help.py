"""`unlearn-run --help`, put together from the settings and presets themselves. Neither Hydra nor torch is imported."""

from __future__ import annotations

import dataclasses
import re
import textwrap
import typing
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from unlearn.cli.keys import needs
from unlearn.cli.presets import FAMILIES, comments_of, options_of, read_methods
from unlearn.config import GROUPS, RunConfig, conf_dir
from unlearn.setting import allowed

WIDTH = 100
INDENT = 27
"""Column at which the phrases of options begin."""

LONGEST_DEFAULT = 20
"""In characters: the width that the column of defaults takes at most."""

COMMANDS = {
    "unlearn-run": "embedded model and data, runs anywhere",
    "unlearn-run method=npo": "another method",
    "unlearn-run method=ngdiff method/forget=npo": "any forget with any retain and any combine",
    "unlearn-run method=npo model/adapter=lora": "train an adapter in place of the weights",
    "unlearn-run data=tofu model=llama-3.2-1b-instruct": "published TOFU and its target, on a GPU",
    "unlearn-run data.source=./tofu model.path=./my-model": "data and weights from folders",
    "unlearn-run -m method=ngdiff,npo seed=0,1,2": "a sweep: one run for each combination",
    "unlearn-run ... dry_run=true": "print the plan, sizes and memory, and end",
    "unlearn-run --config-dir DIR experiment=NAME": "presets of your own, from DIR/experiment",
    "unlearn-run --cfg job": "print the composed settings and end",
    "unlearn-run --help all": "every part of a method and every setting",
}

GROUP_PHRASES = {
    "method": "what makes the model forget: the three choices below under one name",
    "method/forget": "objective on the rows to forget",
    "method/retain": "objective on the rows to keep",
    "method/combine": "how the two gradients become one update",
    "scheduler": "learning rate over the steps (ngdiff brings autolr)",
    "optimizer": "",
    "data": "",
    "model": "",
    "model/adapter": "train the weights themselves, or small matrices beside them",
    "suite": "what is measured before and after",
    "logger": "",
    "experiment": "many settings under one name",
    "debug": "",
}

NAMES_ONLY = ("method/forget", "method/retain", "method/combine")
"""Groups of many options, each of which has a line in `--help all`."""

MOST_USED = (
    "model.path",
    "model.target",
    "model.reference",
    "data.source",
    "data.split",
    "data.limit.retain",
    "optimizer.lr",
    "trainer.epochs",
    "trainer.max_steps",
    "trainer.batch_size",
    "trainer.micro_batch_size",
    "trainer.precision",
    "trainer.stop",
    "trainer.device",
    "seed",
    "dry_run",
    "traceback",
)

OUTPUT = """\
outputs/METHOD-DATA-SPLIT-TIME/ (output_dir), with -m outputs/sweep-TIME/JOB/ (hydra.sweep.dir):
  config.yaml  run.json  metrics.jsonl  records/  results.json  report.html  model/
Trained targets and references are kept in ~/.cache/unlearn-run (cache_dir, or the variable
UNLEARN_CACHE), so that the next run starts from them."""

EXIT_CODES = """\
0 done; 1 unexpected error; 2 something to correct in what was typed or given;
3 some jobs of a sweep failed; 4 the run diverged; 130 interrupted"""


class Row(NamedTuple):
    key: str
    default: str
    meaning: str


def page(config_dir: str | None = None) -> str:
    """The help page; a folder given with --config-dir adds its own presets."""
    folders = _folders(config_dir)
    commands = _columns([Row(command, "", phrase) for command, phrase in COMMANDS.items()])
    rows = {row.key: row for row in _all_rows(types=False)}
    parts = [
        "unlearn-run makes a causal language model forget some of its training data,\n"
        "and measures what was forgotten and what was kept.",
        "Usage: unlearn-run [-m] [GROUP=OPTION ...] [KEY=VALUE ...]",
        f"Commands\n{commands}",
        f"Groups (* is the default)\n{_groups(folders)}",
        f"Settings used most (unlearn-run --help all: every one)\n{_columns([rows[key] for key in MOST_USED])}",
        f"Output\n{textwrap.indent(OUTPUT, '  ')}",
        f"Exit codes\n{textwrap.indent(EXIT_CODES, '  ')}",
    ]
    return "\n\n".join(parts)


def everything(config_dir: str | None = None) -> str:
    """Every part of a method with what it is, and every key with its default, meaning and range."""
    parts = "\n".join(_group(group, {"": options(group, _folders(config_dir))}) for group in NAMES_ONLY)
    return f"Parts of a method (* is the default)\n{parts}\n\nSettings\n{_columns(list(_all_rows()))}"


def _folders(config_dir: str | None) -> list[Path]:
    return [conf_dir(), *([Path(config_dir)] if config_dir else [])]


def _groups(folders: list[Path]) -> str:
    blocks = []
    for group in GROUP_PHRASES:
        families = _method_families(folders) if group == "method" else {"": options(group, folders)}
        if any(families.values()):
            blocks.append(_names(group, families[""]) if group in NAMES_ONLY else _group(group, families))
    return "\n".join(blocks)


def _group(group: str, families: dict[str, dict[str, str]]) -> str:
    """A group with a line for each of its options, under the headings of their kinds."""
    default, lines = _defaults().get(group), [_title(group)]
    for heading, members in families.items():
        lines += [f"    {heading}:"] if heading else []
        left = "     " if heading else "  "
        for option, meaning in members.items():
            mark = "*" if default == option else " "
            lines.append(_wrapped(f"{left}{mark} {option:<{INDENT - len(left) - 2}}", meaning))
    return "\n".join(lines)


def _names(group: str, members: dict[str, str]) -> str:
    default = _defaults().get(group)
    names = ", ".join(f"*{option}" if default == option else option for option in members)
    return f"{_title(group)}\n{_wrapped('    ', names)}"


def _title(group: str) -> str:
    phrase = GROUP_PHRASES[group]
    return f"  {group}" + (f": {phrase}" if phrase else "")


def _method_families(folders: list[Path]) -> dict[str, dict[str, str]]:
    """The presets of methods with their phrases, by the heading of their kind."""
    presets = {preset.name: preset for folder in folders for preset in read_methods(folder)}
    return {
        heading: {name: _sentence(preset.phrase) for name, preset in presets.items() if preset.family == family}
        for family, heading in FAMILIES.items()
    }


def options(group: str, folders: list[Path]) -> dict[str, str]:
    """Options of a group with a sentence each: the docstring of a dataclass, the first comment of a file."""
    found = {name: first_sentence(node) for name, node in GROUPS.get(group, {}).items()}
    files = [file for folder in folders for file in sorted((folder / group).glob("*.yaml"))]
    return found | {file.stem: _sentence(comments_of(file)[0]) for file in files}


def _sentence(phrase: str) -> str:
    """A phrase with a capital; a sign that only looks like a word, as in f-divergence, keeps its own."""
    is_word = phrase[1:2].isalpha() or phrase[1:2] == " "
    return phrase[:1].upper() + phrase[1:] if is_word else phrase


@lru_cache
def _defaults() -> dict[str, str]:
    """The option that each group has when nothing is chosen."""
    chosen = _defaults_of("run.yaml", "")
    return chosen | _defaults_of(f"method/{chosen['method']}.yaml", "method/")


def _defaults_of(file: str, folder: str) -> dict[str, str]:
    content = OmegaConf.to_container(OmegaConf.load(conf_dir() / file))
    assert isinstance(content, dict)
    return options_of(content["defaults"], folder)


def _all_rows(types: bool = True) -> Iterator[Row]:
    yield from rows_of(RunConfig, "", types)
    for group, nodes in GROUPS.items():
        shown: set[str] = set()
        for node in nodes.values():
            for row in rows_of(node, f"{group.replace('/', '.')}.", types):
                if row.key not in shown:
                    owners = [name for name, other in nodes.items() if row.key.rpartition(".")[2] in _fields(other)]
                    only = "" if len(owners) == len(nodes) else f" [{', '.join(owners)}]"
                    shown.add(row.key)
                    yield row._replace(meaning=row.meaning + only)


def _fields(node: Any) -> set[str]:
    return {item.name for item in dataclasses.fields(node)}


def rows_of(owner: Any, prefix: str, types: bool = True) -> Iterator[Row]:
    """The settings of a dataclass with their defaults and meanings, the ranges in words (`types`: with the types)."""
    hints = typing.get_type_hints(owner)
    for item in dataclasses.fields(owner):
        if dataclasses.is_dataclass(hints[item.name]):
            yield from rows_of(hints[item.name], f"{prefix}{item.name}.", types)
        elif "help" in item.metadata:
            made = item.default_factory
            default = item.default if made is dataclasses.MISSING else made()
            need = needs(owner, item.name) if types else allowed(item.metadata)
            yield Row(f"{prefix}{item.name}", _shown(default), item.metadata["help"] + (f" ({need})" if need else ""))


def _shown(default: Any) -> str:
    words = {None: "null", True: "true", False: "false", "": '""', "???": ""}
    if default is None or isinstance(default, (bool, str)):
        product = re.sub(r"\$\{times:(.+),(.+)\}", r"\1 x \2", str(default))
        return str(words.get(default, re.sub(r"\$\{([\w.]+)\}", r"\1", product)))
    return f"{default:g}" if isinstance(default, float) else str(default)


def _columns(rows: list[Row]) -> str:
    wide = max(len(row.key) for row in rows) + 2
    # A default that is longer pushes its own line only.
    middle = max(len(row.default) for row in rows if len(row.default) <= LONGEST_DEFAULT)
    gap = "  " if middle else ""
    return "\n".join(_wrapped(f"  {row.key:<{wide}}{row.default:<{middle}}{gap}", row.meaning) for row in rows)


def _wrapped(left: str, text: str) -> str:
    lines = textwrap.wrap(text, WIDTH - len(left), break_on_hyphens=False) or [""]
    return "\n".join([f"{left}{lines[0]}".rstrip(), *(" " * len(left) + line for line in lines[1:])])


def first_sentence(node: Any) -> str:
    text = " ".join((node.__doc__ or "").split("\n\n")[0].split())
    return re.sub(r" \([^()]*\d{4}\.\d{5}\)", "", text).partition(". ")[0].removesuffix(".")
