"""Which settings of a suite are refused, and which have no effect."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.composing import config, faults, read_conf_once
from unlearn.cli import suite_checks
from unlearn.cli.checks import no_effect
from unlearn.cli.overrides import check

__all__ = ["read_conf_once"]


@pytest.fixture
def lm_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the extra were installed."""
    monkeypatch.setattr(suite_checks, "find_spec", lambda name: object())


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["suite=lm_eval"], "suite.tasks: needs at least one task for suite=lm_eval, as in suite.tasks=[arc_easy]; "),
        (["suite.tasks=[t]", "suite.task_folder=nowhere"], "suite.task_folder: needs a folder with tasks of your own"),
        (["suite=wmdp", "suite.wmdp=[]"], "suite.wmdp: needs at least one of bio, cyber, chem for suite=wmdp; found"),
        (["suite.wmdp=[bio,biology]"], "suite.wmdp: needs names from bio, cyber, chem; found 'biology'"),
        (["suite.keep=model_utilty", "suite.every_epochs=1"], "suite.keep: needs last or the name of a metric; found "
         "'model_utilty'; the nearest are model_utility"),
        (["suite.keep=zzz", "suite.every_epochs=1"], "suite.keep: needs last or the name of a metric; found 'zzz', as"),
        (["suite.keep=model_utility"], "suite.every_epochs: suite.keep=model_utility chooses among evaluated epochs; "
         "needs an integer, found null"),
        (["suite.keep=utility", "suite.every_epochs=1"], "suite.keep: needs a metric that is known during training; "
         "utility waits for the reference model to read the generated texts at the end"),
    ],
)  # fmt: skip
def test_what_is_refused(texts: list[str], message: str, lm_eval: None) -> None:
    (line,) = faults(*texts)
    assert line.startswith(message)


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        return None if name == "lm_eval" else real(name, *rest)

    monkeypatch.setattr(suite_checks, "find_spec", find_spec)
    line = "suite.tasks: needs lm-eval; install it with pip install 'unlearn-run[lm-eval]'"
    assert faults("suite=lm_eval", "suite.tasks=[arc_easy]") == [line]


def test_what_passes(lm_eval: None, tmp_path: Path) -> None:
    for texts in (
        ["suite=lm_eval", "suite.tasks=[arc_easy]", "suite.task_limit=5", f"suite.task_folder={tmp_path}"],
        ["suite.tasks=[arc_easy]", "suite.wmdp=[chem]", "suite.wmdp_source=hub"],
        ["suite.every_epochs=2", "suite.keep=model_utility"],
        ["suite.every_epochs=2", "suite.keep=utility", "suite.perplexity=false"],
        ["suite=wmdp", "suite.wmdp_source=here"],
    ):
        checked = check(texts)
        assert no_effect(checked.jobs[0], checked.touched) == []
    assert config("suite=wmdp").suite.wmdp == ["bio", "cyber"]
    assert not config("suite=wmdp").suite.benchmark


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["suite.task_limit=3"], ["suite.task_limit: has no effect, because suite.tasks is empty"]),
        (["suite.wmdp_source=here"], ["suite.wmdp_source: has no effect, because suite.wmdp is empty"]),
        (["suite.generate=false", "suite.perplexity=true", "suite.canary=2"],
         ["suite.perplexity: has no effect, because suite.generate is false", "suite.canary: has no effect, because "]),
        (["suite=wmdp", "suite.max_new_tokens=4"],
         ["suite.max_new_tokens: has no effect, because suite.benchmark is false: only the benchmark's questions"]),
        (["suite=none", "suite.every_epochs=1"], ["suite.every_epochs: has no effect, because suite=none measures"]),
        (["suite.every_epochs=3", "trainer.epochs=2"],
         ["suite.every_epochs: has no effect, because trainer.epochs=2 end before the first evaluation"]),
        (["suite.every_epochs=3", "trainer.epochs=3"], []),
        (["method=none", "suite.every_epochs=1"], ["suite.every_epochs: has no effect, because method/forget and "]),
    ],
)  # fmt: skip
def test_what_has_no_effect(texts: list[str], expected: list[str]) -> None:
    checked = check(texts)
    lines = no_effect(checked.jobs[0], checked.touched)
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)


def test_names_of_metrics_are_read_without_torch() -> None:
    code = (
        "import sys; from unlearn.cli.overrides import check; "
        "check(['suite.keep=model_utility', 'suite.every_epochs=1', 'suite.wmdp=[bio]']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
