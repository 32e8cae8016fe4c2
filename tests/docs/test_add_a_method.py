"""docs/add-a-method.md does what it says: its code is taken at its word."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore

import unlearn.objectives.forget as forget_module
from tests.cli.composing import config, read_conf_once, write
from tests.objectives import test_properties, test_values
from unlearn.cli.checks import cross_checks
from unlearn.cli.help import page as help_page
from unlearn.cli.methods_page import page as methods_page
from unlearn.config import GROUPS
from unlearn.objectives.forget import FORGET
from unlearn.objectives.objective import Objective

__all__ = ["read_conf_once"]

TEXT = (Path(__file__).parents[2] / "docs" / "add-a-method.md").read_text(encoding="utf-8")
CODE, ENTRY, ROW = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
(PRESET,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
FUTURE = "from __future__ import annotations\n"


def as_written(code: str, module: Any) -> dict[str, Any]:
    """What a piece of code makes where it stands at the end of a module that has its annotations as text."""
    namespace = dict(vars(module))
    exec(compile(FUTURE + code, "docs/add-a-method.md", "exec", dont_inherit=True), namespace)
    return namespace


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Objective]]:
    """The class of the page in the registry, by the entry that the page gives."""
    namespace = as_written(f"{CODE}\nENTRY = {{\n{ENTRY}}}\n", forget_module)
    ((name, node),) = namespace["ENTRY"].items()
    monkeypatch.setitem(FORGET, name, node)
    monkeypatch.setitem(GROUPS["method/forget"], name, node)
    yield node
    # Where nothing has been composed in this process yet, nothing is stored.
    ConfigStore.instance().repo.get("method", {}).get("forget", {}).pop(f"{name}.yaml", None)


def test_the_page_is_short() -> None:
    assert len(TEXT.splitlines()) < 60


def test_the_class_and_the_preset_compose(registered: type[Objective], tmp_path: Path) -> None:
    name = registered().name
    write(tmp_path, f"method/{name}", PRESET)
    cfg = config(f"method={name}", config_dir=tmp_path)
    assert (cfg.method.name, cfg.method.forget) == (name, registered())
    assert cfg.method.retain.name == "nll"
    other = config(f"method={name}", "method/combine=pcgrad", "model/adapter=lora", config_dir=tmp_path)
    assert cross_checks(other) == []
    (field,) = [item for item in vars(registered()) if item != "name"]
    assert getattr(config(f"method={name}", f"method.forget.{field}=2", config_dir=tmp_path).method.forget, field) == 2


def test_help_and_docs_know_of_it(registered: type[Objective], tmp_path: Path) -> None:
    name = registered().name
    write(tmp_path, f"method/{name}", PRESET)
    phrase = PRESET.splitlines()[0].partition(": ")[2]
    assert re.search(rf"^ +{name} +{phrase[:1].upper() + phrase[1:]}$", help_page(str(tmp_path)), re.MULTILINE)
    assert f"### `{name}`\n" in methods_page()


def test_the_row_holds(registered: type[Objective]) -> None:
    namespace = {**vars(test_values), registered.__name__: registered}
    ((objective, answers, expected),) = eval(f"[{ROW}]", namespace)
    test_values.test_value(objective, answers, expected)


def properties(argument: str) -> list[Callable[..., None]]:
    """The tests of the property suite that take an objective, or its class, and nothing else."""
    tests = [test for name, test in vars(test_properties).items() if name.startswith("test_")]
    return [test for test in tests if list(inspect.signature(test).parameters) == [argument]]


def test_the_property_suite_holds_for_it(registered: type[Objective]) -> None:
    on_class, on_objective = properties("cls"), properties("objective")
    assert len(on_class) >= 2
    assert len(on_objective) >= 6
    for test in on_class:
        test(registered)
    for test in on_objective:
        test(registered())


@pytest.mark.parametrize("path", re.findall(r"`((?:unlearn|conf|tests|docs)/[\w/.-]+\.\w+)`", TEXT))
def test_the_files_that_it_names_are_there(path: str) -> None:
    root = Path(__file__).parents[2]
    assert (root / path).is_file() or path == "conf/method/unlikelihood.yaml"
