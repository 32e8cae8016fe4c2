from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.report import fake_run
from unlearn.errors import UserError
from unlearn.report import tracker

CONFIG = {"method": {"name": "ngdiff"}, "data": {"name": "tofu"}, "model": {"name": "tiny"}, "seed": 3, "lr": 1e-5}
KEY = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Logger:
    project: str = "unlearn-run"
    entity: str | None = None
    mode: str = "auto"
    tags: list[str] = field(default_factory=lambda: ["smoke"])
    group: str | None = "sweep-1"
    required: bool = False


class FakeWandb(ModuleType):
    """Counts what reaches it; `broken` names the call that raises, `hanging` the one that never returns."""

    def __init__(self, broken: str = "", hanging: str = "", login: bool = False) -> None:
        super().__init__("wandb")
        self.broken, self.hanging, self.has_login = broken, hanging, login
        self.release = threading.Event()
        self.inits: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.finished: list[int] = []
        self.axes: list[tuple[str, str | None]] = []
        self.summary: dict[str, Any] = {}
        self.url = "https://wandb.example/run" if login else None

    def _enter(self, call: str) -> None:
        if call == self.hanging:
            assert self.release.wait(600)
        if call == self.broken:
            raise RuntimeError(f"{call} is\nbroken")

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def login(self, *, prompt: bool, verify: bool) -> bool:
        assert not prompt
        assert not verify
        return self.has_login

    def init(self, **arguments: Any) -> FakeWandb:
        self.inits.append(arguments)
        self._enter("init")
        return self

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes.append((name, step_metric))

    def log(self, values: dict[str, Any]) -> None:
        self._enter("log")
        self.logged.append(values)

    def finish(self, exit_code: int) -> None:
        self.finished.append(exit_code)
        self._enter("finish")

    def teardown(self) -> None:
        pass


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tracker sets WANDB_* for its process; put back what was there."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    yield
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        del os.environ[name]


def run(
    fake: FakeWandb, run_dir: Path, monkeypatch: pytest.MonkeyPatch, exit_code: int = 0, **settings: Any
) -> tracker.Tracker:
    """A whole run against the fake: start, two steps, and finish twice, as a `finally` after a normal end would."""
    monkeypatch.setitem(sys.modules, "wandb", fake)
    mirror = tracker.make_tracker("wandb")
    try:
        mirror.start(run_dir, CONFIG, Logger(**settings))
        for line in fake_run.step_lines(2):
            mirror.log(line)
    finally:
        mirror.finish(fake_run.results(), exit_code)
        mirror.finish(None, 1)
        fake.release.set()
    return mirror


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_run_is_mirrored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeWandb()
    assert run(fake, tmp_path, monkeypatch, exit_code=4).problem is None
    assert fake.finished == [4]
    assert not warnings(caplog)
    (init,) = fake.inits
    assert init["config"] == CONFIG
    assert (init["mode"], init["project"], init["tags"], init["group"]) == (
        "offline",
        "unlearn-run",
        ["smoke"],
        "sweep-1",
    )
    assert init["name"] == "ngdiff-tofu-tiny-seed3"
    assert fake.axes == [
        ("train/step", None),
        ("train/*", "train/step"),
        ("eval/epoch", None),
        ("eval/*", "eval/epoch"),
    ]
    first = fake_run.step_lines(2)[0]
    assert fake.logged[0] == {
        **{f"train/{name}": value for name, value in first.items() if name != "probe"},
        **{f"train/probe/{name}": value for name, value in first["probe"].items() if name != "note"},
    }
    assert fake.summary["after/forget.prob"] == 0.04321
    assert fake.summary["reference/model_utility"] == 0.70521
    assert "after/privleak" not in fake.summary
    assert fake.summary["labels"] == [fake_run.LABEL]
    assert fake.summary["stop/step"] == 32


def test_evaluations_damage_and_intervals_are_mirrored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    results = fake_run.full_results()
    mirror = tracker.make_tracker("wandb")
    mirror.start(tmp_path, CONFIG, Logger())
    for entry in results["epochs"]:
        mirror.evaluation(entry)
    mirror.finish(results, 0)
    mirror.evaluation(results["epochs"][0])
    assert [line["eval/epoch"] for line in fake.logged] == [1, 2, 3]
    assert fake.logged[1]["eval/step"] == 24
    assert fake.logged[1]["eval/forget.prob"] == 0.04321
    assert "eval/privleak" not in fake.logged[1]
    assert fake.summary["damage/retain.worst_decile_share"] == results["damage"]["retain"]["prob"]["worst_decile_share"]
    assert fake.summary["damage/retain.lost_more_than_half"] == 7
    assert fake.summary["after/forget.prob.low"] == 0.04321 * 0.97
    assert fake.summary["kept/epoch"] == 2
    assert not any("canary" in name for name in fake.summary)


def test_all_folders_are_inside_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(FakeWandb(), tmp_path, monkeypatch)
    for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_ARTIFACT_DIR"):
        assert Path(os.environ[name]).is_relative_to(tmp_path)


def test_a_second_attempt_continues_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = FakeWandb(), FakeWandb()
    run(first, tmp_path, monkeypatch, exit_code=75)
    run(second, tmp_path, monkeypatch)
    assert first.inits[0]["id"] == second.inits[0]["id"] == (tmp_path / "wandb" / "run-id").read_text()
    assert second.inits[0]["resume"] == "allow"


def test_jobs_of_a_sweep_are_separate_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    for job, code in enumerate((0, 1, 0)):
        run(fake, tmp_path / str(job), monkeypatch, exit_code=code)
    assert fake.finished == [0, 1, 0]
    assert len({init["id"] for init in fake.inits}) == 3


@pytest.mark.parametrize("call", ["init", "log", "finish"])
@pytest.mark.parametrize("how", ["broken", "hanging"])
def test_a_failure_is_one_warning_and_the_run_goes_on(
    call: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeWandb(broken=call) if how == "broken" else FakeWandb(hanging=call)
    if how == "hanging":
        for limit in ("INIT_TIMEOUT_S", "FINISH_TIMEOUT_S", "AFTER_FAILURE_TIMEOUT_S"):
            monkeypatch.setattr(tracker, limit, 0.1)
    mirror = run(fake, tmp_path, monkeypatch, exit_code=1)
    assert mirror.problem is not None
    (line,) = warnings(caplog)
    assert "W&B is off" in line
    assert "\n" not in line
    if how == "broken":
        assert f"{call} is broken" in line
        assert fake.finished == ([] if call == "init" else [1])
        assert not fake.logged or call == "finish"


def test_a_slow_init_is_still_finished_with_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb(hanging="init")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    mirror = tracker.make_tracker("wandb")
    with monkeypatch.context() as patch:
        patch.setattr(tracker, "INIT_TIMEOUT_S", 0.1)
        patch.setattr(tracker, "AFTER_FAILURE_TIMEOUT_S", 0.1)
        mirror.start(tmp_path, CONFIG, Logger())
    assert mirror.problem
    monkeypatch.setattr(tracker, "AFTER_FAILURE_TIMEOUT_S", 600)  # a machine may stand still for a while
    fake.release.set()
    mirror.finish(fake_run.results(), 4)
    assert fake.finished == [4]
    assert not fake.logged


@pytest.mark.parametrize("call", ["init", "log"])
def test_required_raises_for_the_user(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(broken=call))
    mirror = tracker.make_tracker("wandb")

    def train() -> None:
        mirror.start(tmp_path, CONFIG, Logger(required=True))
        for _ in range(1000):
            mirror.log({"step": 1})
            time.sleep(0.01)

    with pytest.raises(UserError, match=rf"logger.required=true needs W&B, found: RuntimeError: {call} is broken"):
        train()
    mirror.finish(None, 2)


@pytest.mark.parametrize(
    ("wanted", "login", "variable", "mode"),
    [
        ("auto", True, None, "online"),
        ("auto", False, None, "offline"),
        ("auto", True, "offline", "offline"),
        ("offline", True, None, "offline"),
        ("online", True, None, "online"),
    ],
)
def test_mode(
    wanted: str, login: bool, variable: str | None, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv("WANDB_MODE", variable)
    fake = FakeWandb(login=login)
    run(fake, tmp_path, monkeypatch, mode=wanted)
    assert fake.inits[0]["mode"] == mode
    assert (tmp_path / "wandb" / "url").exists() is login


def test_online_without_a_login_never_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeWandb()
    run(fake, tmp_path, monkeypatch, mode="online")
    assert not fake.inits
    assert "no W&B login was found" in warnings(caplog)[0]


def test_objects_in_the_config_become_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(CONFIG, "output_dir", tmp_path)
    run(fake, tmp_path, monkeypatch)
    assert fake.inits[0]["config"]["output_dir"] == str(tmp_path)


def test_finish_without_start_and_logger_none_do_nothing(tmp_path: Path) -> None:
    tracker.make_tracker("wandb").finish(None, 1)
    silent = tracker.make_tracker("none")
    silent.start(tmp_path, CONFIG, Logger())
    silent.log({"step": 1})
    silent.evaluation({"epoch": 1, "step": 1, "values": {}})
    silent.finish(None, 0)
    assert silent.problem is None
    assert not list(tmp_path.iterdir())


REAL = """
import sys
from pathlib import Path
from tests.report import fake_run
from tests.report.test_tracker import CONFIG, Logger
from unlearn.report.tracker import make_tracker
assert "wandb" not in sys.modules
mirror = make_tracker("wandb")
mirror.start(Path(sys.argv[1]), CONFIG, Logger(mode="offline"))
for line in fake_run.step_lines(3):
    mirror.log(line)
mirror.finish(fake_run.results(), 4)
assert mirror.problem is None, mirror.problem
"""


def test_real_wandb_offline_writes_inside_the_run_folder_only(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    folders = {name: tmp_path / name for name in ("run", "home", "cwd", "tmp")}
    for folder in folders.values():
        folder.mkdir()
    home = {name: str(folders["home"]) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
    environment = {**os.environ, **home, "TMPDIR": str(folders["tmp"]), "WANDB_API_KEY": KEY}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(folders["run"])],
        cwd=folders["cwd"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
    for name in ("home", "cwd", "tmp"):
        assert list(folders[name].rglob("*")) == []
    run_id = (folders["run"] / "wandb" / "run-id").read_text()
    (transactions,) = folders["run"].glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb")
    content = transactions.read_bytes()
    # Values are JSON inside the log's records.
    for part in (b'{"name":"ngdiff"}', b"train/nll_forget", b"train/step", b"after/forget.prob", b"0.04321"):
        assert part in content
    last = fake_run.step_lines(3)[-1]
    assert str(last["nll_forget"]).encode() in content
    written = b"".join(path.read_bytes() for path in folders["run"].rglob("*") if path.is_file())
    assert KEY.encode() not in written
