"""The files of MUSE: where each source keeps them, and which are missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unlearn.config import DataConfig
from unlearn.data import embedded_news
from unlearn.data.jsonl import read_json_lines
from unlearn.errors import UserError
from unlearn.models import hub

CONFIGURATIONS = ("raw", "train", "scal", "sust", "knowmem", "verbmem", "privleak")
CORPORA = ("raw", "scal", "sust")
SUBSETS = ("news", "books")
SUFFIXES = (".json", ".jsonl", ".txt")


class Reader:
    """Gives the entries of a file by "configuration/split", each read once, and notes those that are not there."""

    def __init__(self, entries: Callable[[str], list[Any] | None], where: str) -> None:
        self._entries = entries
        self.where = where
        self._read: dict[str, list[Any] | None] = {}

    def __call__(self, file: str) -> list[Any] | None:
        """None where there is no such file. Raises UserError where it cannot be read."""
        if file not in self._read:
            self._read[file] = self._entries(file)
        return self._read[file]

    @property
    def missing(self) -> list[str]:
        return [file for file, entries in self._read.items() if entries is None]


def reader(config: DataConfig) -> Reader:
    """What reads the files of `data.source`. Raises UserError where there is nothing to read from."""
    assert config.subset is not None
    if config.source == "embedded":
        return Reader(embedded_news.news, "embedded")
    if config.source == "hub":
        hub_id = config.hub_id.replace("{subset}", config.subset.title())
        # Asked once: a dozen files would give the same answer a dozen times.
        hub.require(hub_id, "data.source", kind="dataset")
        return Reader(lambda file: hub.dataset_rows(hub_id, *file.split("/")), hub_id)
    folder = _folder(config.source, config.subset)
    return Reader(lambda file: _first(folder, file), str(folder))


def _folder(source: str, subset: str) -> Path:
    """The folder of one subset: the one given, or the one of that name in it. Raises UserError."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise UserError(
            "data.source: needs embedded, hub or a folder with the published files; "
            f"found '{source}', which is no folder"
        )
    if (folder / subset).is_dir():
        return folder / subset
    other = next(name for name in SUBSETS if name != subset)
    named_other = folder.resolve().name.lower().endswith(other)
    if named_other or not any((folder / name).is_dir() for name in CONFIGURATIONS):
        found = f"those of data.subset={other}" if named_other else "neither"
        raise UserError(
            f"data.source: needs a folder with {subset}/ in it, or with the files of MUSE-{subset.title()} "
            f"(knowmem/, privleak/, ...); found {found} in '{source}'"
        )
    return folder


def _first(folder: Path, file: str) -> list[Any] | None:
    """Entries of the file under the first of the suffixes that it has, or None."""
    path = next((path for suffix in SUFFIXES if (path := folder / f"{file}{suffix}").is_file()), None)
    return entries(str(path)) if path is not None else None


def entries(file: str, key: str = "data.source") -> list[Any]:
    """What is in a .json file with a list, a .jsonl file with an object a line, or a .txt file, which is one text.

    A fault names the setting `key`.
    """
    path = Path(file).expanduser()
    if not path.is_file() or path.suffix not in SUFFIXES:
        found = "a folder" if path.is_dir() else "no such file"
        raise UserError(f"{key}: needs a .json, .jsonl or .txt file; found '{file}', which is {found}")
    if path.suffix == ".jsonl":
        return list(read_json_lines(path, key))
    try:
        text = path.read_text(encoding="utf-8")
        content = [text] if path.suffix == ".txt" else json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{key}: {path} is not valid JSON: {error.msg} in line {error.lineno}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{key}: cannot read {path}: {error}") from None
    if not isinstance(content, list):
        raise UserError(f"{key}: {path} needs a JSON list; found {type(content).__name__}")
    return content


def missing_faults(read: Reader, config: DataConfig) -> list[str]:
    """One line for the corpora that were not there, one for the sets of evaluation."""
    groups = {
        "to train on": [file for file in read.missing if file.split("/")[0] in CORPORA],
        "to measure": [file for file in read.missing if file.split("/")[0] not in CORPORA],
    }
    lines = []
    for purpose, files in groups.items():
        if files:
            suffixes = ", ".join(SUFFIXES) if purpose == "to train on" else SUFFIXES[0]
            lines.append(f"data.source: needs {', '.join(files)} ({suffixes}) {purpose}; found none in '{read.where}'")
            if purpose == "to train on" and not any(file.startswith("privleak/") for file in read.missing):
                lines[-1] += "; data.corpus=privleak lets the privleak texts stand in, with data.split=raw"
    return lines
