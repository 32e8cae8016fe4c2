"""Shared by the tests of the command line: checks that read conf/ once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from unlearn.cli import overrides
from unlearn.cli.compose import Composer
from unlearn.config import RunConfig
from unlearn.errors import UserError


@lru_cache
def plain_composer() -> Composer:
    return Composer([])


@pytest.fixture(autouse=True)
def read_conf_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Composed trees of conf/ are kept from test to test; folders of a test's own are read anew."""
    monkeypatch.setattr(overrides, "Composer", lambda folders: Composer(folders) if folders else plain_composer())


def config(*texts: str, config_dir: Path | None = None) -> RunConfig:
    return overrides.check(list(texts), config_dir=str(config_dir) if config_dir else None).jobs[0]


def faults(*texts: str, multirun: bool = False, config_dir: Path | None = None) -> list[str]:
    """The lines that a command line is refused with."""
    with pytest.raises(UserError) as refused:
        overrides.check(list(texts), multirun=multirun, config_dir=str(config_dir) if config_dir else None)
    return refused.value.messages


def write(folder: Path, name: str, text: str) -> Path:
    """A preset of the user's own, such as experiment/e."""
    file = folder / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return folder
