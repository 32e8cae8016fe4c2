"""`unlearn-run --help`, put together from the settings and presets themselves. Neither Hydra nor torch is imported."""

from __future__ import annotations

import dataclasses
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from unlearn.cli.keys import needs
from unlearn.config import GROUPS, RunConfig, conf_dir
from unlearn.setting import allowed

WIDTH = 100

COMMANDS = {
    "unlearn-run": "embedded model and data, runs anywhere",
    "unlearn-run method=npo": "another method",
    "unlearn-run method=ngdiff method/forget=npo": "any forget with any retain and any combine",
    "unlearn-run data=tofu model=llama-3.2-1b-instruct": "published TOFU and its target, on a GPU",
    "unlearn-run data.source=./tofu model.path=./my-model": "data and weights from folders",
    "unlearn-run -m method=ngdiff,npo seed=0,1,2": "a sweep: one run for each combination",
    "unlearn-run ... dry_run=true": "print the plan, sizes and memory, and end",
    "unlearn-run --config-dir DIR experiment=NAME": "presets of your own, from DIR/experiment",
    "unlearn-run --cfg job": "print the composed settings and end",
    "unlearn-run --help all": "every setting",
}

GROUP_PHRASES = {
    "method": "what makes the model forget: three choices under one name",
    "method/forget": "objective on the rows to forget",
    "method/retain": "objective on the rows to keep",
    "method/combine": "how the two gradients become one update",
    "scheduler": "learning rate over the steps (ngdiff brings autolr)",
    "optimizer": "",
    "data": "",
    "model": "",
    "suite": "what is measured before and after",
    "logger": "",
    "experiment": "many settings under one name",
    "debug": "",
}

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
    folders = [conf_dir(), *([Path(config_dir)] if config_dir else [])]
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


def everything() -> str:
    """Every key with its default, meaning and range."""
    return _columns(list(_all_rows()))


def _groups(folders: list[Path]) -> str:
    defaults = _defaults()
    blocks = []
    for group, phrase in GROUP_PHRASES.items():
        lines = [f"  {group}" + (f": {phrase}" if phrase else "")]
        for option, meaning in options(group, folders).items():
            mark = "*" if defaults.get(group) == option else " "
            lines.append(_wrapped(f"  {mark} {option:<22}", meaning))
        blocks.append("\n".join(lines) if len(lines) > 1 else "")
    return "\n".join(block for block in blocks if block)


def options(group: str, folders: list[Path]) -> dict[str, str]:
    """Options of a group with a phrase each: the docstring of a dataclass, the first comment of a file."""
    found = {name: _first_sentence(node) for name, node in GROUPS.get(group, {}).items()}
    for folder in folders:
        for file in sorted((folder / group).glob("*.yaml")):
            lines = file.read_text(encoding="utf-8").splitlines()
            comments = [line for line in lines[:2] if line.startswith("#") and not line.startswith("# @")]
            found[file.stem] = comments[0].partition(": ")[2] if comments else ""
    return found


def _defaults() -> dict[str, str]:
    """The option that each group has when nothing is chosen."""
    chosen = _defaults_of("run.yaml", "")
    return chosen | _defaults_of(f"method/{chosen['method']}.yaml", "method/")


def _defaults_of(file: str, folder: str) -> dict[str, str]:
    content = OmegaConf.to_container(OmegaConf.load(conf_dir() / file))
    assert isinstance(content, dict)
    chosen: dict[str, str] = {}
    for entry in content["defaults"]:
        for name, option in entry.items() if isinstance(entry, dict) else ():
            group = name.removeprefix("override ").lstrip("/").partition("@")[0]
            chosen[group if name.startswith("override ") else f"{folder}{group}"] = str(option)
    return chosen


def _all_rows(types: bool = True) -> Iterator[Row]:
    yield from _rows(RunConfig, "", types)
    for group, nodes in GROUPS.items():
        shown: set[str] = set()
        for node in nodes.values():
            for row in _rows(node, f"{group.replace('/', '.')}.", types):
                if row.key not in shown:
                    owners = [name for name, other in nodes.items() if row.key.rpartition(".")[2] in _names(other)]
                    only = "" if len(owners) == len(nodes) else f" [{', '.join(owners)}]"
                    shown.add(row.key)
                    yield row._replace(meaning=row.meaning + only)


def _names(node: Any) -> set[str]:
    return {item.name for item in dataclasses.fields(node)}


def _rows(owner: Any, prefix: str, types: bool) -> Iterator[Row]:
    hints = typing.get_type_hints(owner)
    for item in dataclasses.fields(owner):
        if dataclasses.is_dataclass(hints[item.name]):
            yield from _rows(hints[item.name], f"{prefix}{item.name}.", types)
        elif "help" in item.metadata:
            made = item.default_factory
            default = item.default if made is dataclasses.MISSING else made()
            need = needs(owner, item.name) if types else allowed(item.metadata)
            yield Row(f"{prefix}{item.name}", _shown(default), item.metadata["help"] + (f" ({need})" if need else ""))


def _shown(default: Any) -> str:
    words = {None: "null", True: "true", False: "false", "": '""', "???": ""}
    if default is None or isinstance(default, (bool, str)):
        return str(words.get(default, str(default).removeprefix("${").removesuffix("}")))
    return f"{default:g}" if isinstance(default, float) else str(default)


def _columns(rows: list[Row]) -> str:
    wide = max(len(row.key) for row in rows) + 2
    middle = max(len(row.default) for row in rows)
    middle = middle + 2 if middle else 0
    return "\n".join(_wrapped(f"  {row.key:<{wide}}{row.default:<{middle}}", row.meaning) for row in rows)


def _wrapped(left: str, text: str) -> str:
    lines = textwrap.wrap(text, WIDTH - len(left)) or [""]
    return "\n".join([f"{left}{lines[0]}".rstrip(), *(" " * len(left) + line for line in lines[1:])])


def _first_sentence(node: Any) -> str:
    text = " ".join((node.__doc__ or "").split("\n\n")[0].split())
    text = re.sub(r" \([^()]*\d{4}\.\d{5}\)", "", text).partition(". ")[0].removesuffix(".")
    is_word = text[1:2].islower() or text[1:2] == " "
    return text[:1].lower() + text[1:] if is_word and not text.startswith("AdamW") else text
