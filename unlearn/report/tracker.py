"""Weights & Biases as a mirror of the run folder: if it fails or hangs, the run goes on and the folder has it all."""

from __future__ import annotations

import json
import logging
import os
import queue
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from unlearn.errors import UserError

LOG = logging.getLogger("unlearn")
INIT_TIMEOUT_S = 20.0
FINISH_TIMEOUT_S = 60.0
AFTER_FAILURE_TIMEOUT_S = 3.0
DAMAGE = ("mean", "worst_decile_share", "lost_more_than_half")


class LoggerSettings(Protocol):
    """What the tracker reads of the `logger` group; mode is auto, online or offline."""

    project: str
    entity: str | None
    mode: str
    tags: list[str]
    group: str | None
    required: bool


class Tracker:
    """Tracks nothing: logger=none.

    `problem` says in one line why tracking ended early, None while all is well.
    """

    problem: str | None = None

    def start(self, run_dir: Path, config: dict[str, Any], logger: LoggerSettings) -> None:
        """Open the run. config is the resolved config as plain containers, secrets redacted."""

    def log(self, step_log: Mapping[str, Any]) -> None:
        """Mirror one line of metrics.jsonl."""

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        """Mirror one entry of results["epochs"]: epoch, step and values."""

    def finish(self, results: Mapping[str, Any] | None, exit_code: int) -> None:
        """Mirror results.json (None: there is none) and close the run. Never raises; a second call does nothing."""


def make_tracker(name: str) -> Tracker:
    """The tracker for logger.name: "wandb" or "none"."""
    return WandbTracker() if name == "wandb" else Tracker()


class WandbTracker(Tracker):
    """All calls to wandb go through one daemon thread, so that none of them can stop or slow the training.

    The first exception or timeout is logged as one warning and ends the mirroring; the run that was opened is still
    closed, once, with its exit code. With `required`, `start` and `log` raise UserError instead.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
        self._run: Any = None
        self._required = False
        self._started = False
        self._finished = False
        self._closed = False

    def start(self, run_dir: Path, config: dict[str, Any], logger: LoggerSettings) -> None:
        self._required = logger.required
        self._started = True
        threading.Thread(target=self._work, name="wandb", daemon=True).start()
        done = self._submit(lambda: self._open(run_dir.resolve(), config, logger))
        if not done.wait(INIT_TIMEOUT_S + AFTER_FAILURE_TIMEOUT_S):
            self._fail(f"no answer from wandb.init within {INIT_TIMEOUT_S:g} s")
        self._raise_if_required()

    def log(self, step_log: Mapping[str, Any]) -> None:
        self._mirror(_train_values(step_log))

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        scored = {f"eval/{name}": score["value"] for name, score in entry["values"].items()}
        values = {name: value for name, value in scored.items() if value is not None}
        self._mirror({"eval/epoch": entry["epoch"], "eval/step": entry["step"], **values})

    def _mirror(self, values: Mapping[str, float]) -> None:
        self._raise_if_required()
        if self._run is None or self.problem or self._finished:
            return
        self._submit(lambda: self._run.log(dict(values)))

    def finish(self, results: Mapping[str, Any] | None, exit_code: int) -> None:
        if self._finished or not self._started:
            return
        self._finished = True
        limit_s = AFTER_FAILURE_TIMEOUT_S if self.problem else FINISH_TIMEOUT_S
        if not self._submit(lambda: self._close(results, exit_code)).wait(limit_s):
            self._fail(f"no answer from wandb within {limit_s:g} s of the end")

    def _open(self, run_dir: Path, config: dict[str, Any], logger: LoggerSettings) -> None:
        run_id = _run_id(run_dir)
        _keep_files_inside(run_dir)
        import wandb

        mode = _mode(wandb, logger.mode)
        self._run = wandb.init(
            dir=str(run_dir),
            project=logger.project,
            entity=logger.entity,
            group=logger.group,
            tags=list(logger.tags),
            name=_run_name(config, run_dir),
            id=run_id,
            resume="allow",
            mode=mode,
            config=json.loads(json.dumps(config, default=str)),
            settings=wandb.Settings(
                silent=True, console="off", init_timeout=INIT_TIMEOUT_S, finish_timeout=FINISH_TIMEOUT_S
            ),
        )
        if self._run.url:
            (run_dir / "wandb" / "url").write_text(self._run.url)
        # W&B's own step must grow, so a resumed run would lose points; a metric as the axis has no such rule.
        self._run.define_metric("train/step")
        self._run.define_metric("train/*", step_metric="train/step")
        self._run.define_metric("eval/epoch")
        self._run.define_metric("eval/*", step_metric="eval/epoch")

    def _close(self, results: Mapping[str, Any] | None, exit_code: int) -> None:
        self._closed = True
        if self._run is None:
            return
        try:
            if results is not None and not self.problem:
                self._run.summary.update(_summary_values(results))
        finally:
            self._run.finish(exit_code=exit_code)
            import wandb

            # The next job of a sweep in this process must not inherit this run's folders.
            wandb.teardown()

    def _work(self) -> None:
        while not self._closed:
            task, done = self._tasks.get()
            try:
                task()
            except BaseException as error:  # also what a library raises to end the process
                self._fail(f"{type(error).__name__}: {error}")
            done.set()

    def _submit(self, task: Callable[[], None]) -> threading.Event:
        done = threading.Event()
        self._tasks.put((task, done))
        return done

    def _fail(self, reason: str) -> None:
        if self.problem is None:
            self.problem = " ".join(reason.split())
            if not self._required or self._finished:
                LOG.warning("W&B is off from here on (%s); the run folder holds everything", self.problem)

    def _raise_if_required(self) -> None:
        if self._required and self.problem:
            raise UserError(
                f"logger.required=true needs W&B, found: {self.problem}. "
                "Log in with `wandb login`, or set logger.mode=offline or logger.required=false"
            )


def _keep_files_inside(run_dir: Path) -> None:
    """W&B reads these at import and at init. Its config folder stays the user's: the login and the host are there."""
    folder = run_dir / "wandb"
    os.environ.update(
        WANDB_DIR=str(run_dir),
        WANDB_DATA_DIR=str(folder / "data"),
        WANDB_CACHE_DIR=str(folder / "cache"),
        WANDB_ARTIFACT_DIR=str(folder / "artifacts"),
        WANDB_SILENT="true",
        WANDB_ERROR_REPORTING="false",
    )


def _run_id(run_dir: Path) -> str:
    """The id stored in the run folder, made at the first start: a resumed run continues its W&B run."""
    path = run_dir / "wandb" / "run-id"
    if path.exists():
        return path.read_text().strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    run_id = secrets.token_hex(4)
    path.write_text(run_id)
    return run_id


def _run_name(config: Mapping[str, Any], run_dir: Path) -> str:
    parts = [config.get(group, {}).get("name") for group in ("method", "data", "model")]
    name = "-".join(str(part) for part in parts if part)
    return f"{name}-seed{config['seed']}" if name and "seed" in config else name or run_dir.name


def _mode(wandb: Any, wanted: str) -> Any:
    """online or offline, without ever asking for a key; the environment's WANDB_MODE decides where we say auto."""
    if wanted == "offline":
        return wanted
    if wanted == "auto" and os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    if wandb.login(prompt=False, verify=False):
        return "online"
    if wanted == "online":
        raise ValueError("logger.mode=online, but no W&B login was found")
    return "offline"


def _train_values(step_log: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one step, under train/; nulls and notes stay in metrics.jsonl."""
    flat = {name: value for name, value in step_log.items() if not isinstance(value, Mapping)}
    for outer, inner in step_log.items():
        if isinstance(inner, Mapping):
            flat.update({f"{outer}/{name}": value for name, value in inner.items()})
    return {
        f"train/{name}": value
        for name, value in flat.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _summary_values(results: Mapping[str, Any]) -> dict[str, Any]:
    """results.json as flat summary entries: <stage>/<metric>, with ".low" and ".high" behind it for its interval, and
    what a reader needs beside them.
    """
    values: dict[str, Any] = {}
    for stage in ("before", "after", "reference"):
        for metric, score in (results.get(stage) or {}).items():
            if score["value"] is None:
                continue
            values[f"{stage}/{metric}"] = score["value"]
            if score.get("interval"):
                values[f"{stage}/{metric}.low"], values[f"{stage}/{metric}.high"] = score["interval"]
    for name, of_set in (results.get("damage") or {}).items():
        values |= {f"damage/{name}.{key}": of_set["prob"][key] for key in DAMAGE if of_set["prob"][key] is not None}
    for group in ("stop", "weights", "kept"):
        values.update({f"{group}/{name}": value for name, value in (results.get(group) or {}).items()})
    return values | {"steps": results.get("steps"), "labels": list(results.get("labels") or [])}
