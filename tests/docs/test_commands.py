"""Every command that README and docs show is taken as it stands by the checks of the command line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.composing import read_conf_once
from unlearn.cli.overrides import check

__all__ = ["read_conf_once"]

ROOT = Path(__file__).parents[2]


def commands() -> list[str]:
    """Lines of code blocks, and commands within a sentence that are complete."""
    found = []
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if file.stem == "add-a-method":
            continue  # of a method that is not there: test_add_a_method.py
        text = file.read_text(encoding="utf-8")
        blocks = re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        found += [line for block in blocks for line in block.splitlines() if line.startswith("unlearn-run ")]
        found += re.findall(r"`(unlearn-run [\w./=-]+(?: [\w./=-]+)*)`", text)
    return list(dict.fromkeys(found))


def test_commands_are_found() -> None:
    assert len(commands()) >= 14


@pytest.mark.parametrize("command", commands())
def test_a_command_passes(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the reader's own files."""
    _, *words = shlex.split(command, comments=True)
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"[\w-]+\.jsonl", command):
        Path(name).touch()
    flags = [word for word in words if word.startswith("-")]
    assert set(flags) <= {"-m", "--help"}
    check([word for word in words if not word.startswith("-")], multirun="-m" in flags)
