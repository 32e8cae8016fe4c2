"""Tasks of EleutherAI's lm-evaluation-harness on a model that is already loaded, through its Python interface.

As on the harness's own command line: no chat template, its own few-shot examples and seeds. The harness switches
autocast off, so weights in fp32 are evaluated in fp32 whatever `trainer.precision` says.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import logging
import math
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unlearn.config import SuiteConfig
from unlearn.console import console
from unlearn.errors import UserError
from unlearn.evaluation.values import Value
from unlearn.models import hub

ROW_TOKENS = 512
"""Tokens of a row for which suite.token_budget is shared out: the harness batches by rows, the longest first."""

RESAMPLES = 1000
"""Bootstrap samples for the standard error of a metric that is no mean."""

Z_95 = 1.959964
"""97.5 % point of the normal distribution."""


def check(suite: SuiteConfig) -> None:
    """Find every task and read its data, so that a fault is known before a model is loaded. Raises UserError."""
    with _quiet():
        _load(suite)


def run(model: Any, tokenizer: Any, suite: SuiteConfig) -> dict[str, Value]:
    """Metrics "lm_eval.<task>.<metric>" of the tasks and groups that `suite.tasks` names.

    The model, its modes and its generation config, the tokenizer and the random state are left as they were. Raises
    UserError where a task cannot be read or does not suit the model.
    """
    with _quiet(), _untouched(model):
        from lm_eval.evaluator import evaluate
        from lm_eval.models.huggingface import HFLM

        loaded = _load(suite)
        _prepare(loaded["tasks"].values())
        batch_size = max(1, suite.token_budget // ROW_TOKENS)
        lm = HFLM(pretrained=model, tokenizer=copy.deepcopy(tokenizer), batch_size=batch_size)
        try:
            found = evaluate(lm, loaded, limit=suite.task_limit, bootstrap_iters=RESAMPLES, log_samples=False)
        # Of tasks that do not suit: too long an answer for the window, pictures, code that would be executed.
        except (AssertionError, ValueError) as error:
            raise UserError(f"suite.tasks: lm-evaluation-harness cannot run them: {_line(error)}") from error
    return values_of(found["results"])


def _prepare(tasks: Iterable[Any]) -> None:
    """Shots and seeds as the harness's simple_evaluate has them; that one also asks pip, git and the hub for versions,
    which takes seconds.
    """
    from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED

    for task in tasks:
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    torch.manual_seed(DEFAULT_OTHER_SEED)


def fingerprint(suite: SuiteConfig) -> str:
    """What the values depend on beside the settings: the harness's version, and the files of the task folder."""
    digest = hashlib.sha256(version("lm-eval").encode())
    if suite.task_folder is not None:
        folder = Path(suite.task_folder).expanduser()
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def values_of(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Value]:
    """The harness's results by metric; its keys are "<metric>,<filter>" and "<metric>_stderr,<filter>".

    The interval is value -+ 1.96 standard errors, where the harness has one. Metrics that are no numbers are left out.
    """
    values: dict[str, Value] = {}
    for task, row in results.items():
        for key, value in row.items():
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr") or isinstance(value, str) or np.ndim(value):
                continue
            name = ".".join(["lm_eval", task, metric, *([] if filtered == "none" else [filtered])])
            n = row.get("sample_count", {}).get(key, row.get("sample_len", 0))
            values[name] = _value(value, row.get(f"{metric}_stderr,{filtered}"), int(n))
    return values


def _value(value: Any, stderr: Any, n: int) -> Value:
    if not math.isfinite(value):
        return {"value": None, "n": n, "reason": f"lm-evaluation-harness gives {value}"}
    found: Value = {"value": float(value), "n": n}
    # A standard error of 0 (all right or all wrong) bounds nothing.
    if isinstance(stderr, (int, float)) and math.isfinite(stderr) and stderr > 0:
        found["interval"] = [float(value - Z_95 * stderr), float(value + Z_95 * stderr)]
    return found


def _load(suite: SuiteConfig) -> dict[str, Any]:
    """Tasks and groups with their data, made anew: they hold the requests of one evaluation."""
    manager = _manager_for(suite)
    faults = []
    for path in sorted({path for name in suite.tasks for path in _datasets(manager, name)}):
        try:
            hub.require(path, "suite.tasks", kind="dataset")
        except UserError as error:
            faults += error.messages
    if faults:
        raise UserError(faults)
    loaded: list[Any] = []
    for name in dict.fromkeys(suite.tasks):
        try:
            found = manager.load([name])
        # Whatever a task's file, its code or its data may raise.
        except Exception as error:
            raise UserError(f"suite.tasks: cannot load '{name}': {type(error).__name__}: {_line(error)}") from error
        loaded += [found["groups"][name]] if name in found["groups"] else found["tasks"].values()
    try:
        return dict(manager.load(loaded))
    except ValueError as error:
        raise UserError(f"suite.tasks: {_line(error)}") from None


def _manager_for(suite: SuiteConfig) -> Any:
    """The index of tasks: of the folder alone where that has all of them, else of the harness's 14,000 too."""
    folder = None if suite.task_folder is None else str(Path(suite.task_folder).expanduser().absolute())
    if folder is not None:
        own = _manager(folder, False)
        if all(_is_whole(own, name) for name in suite.tasks):
            return own
    manager = _manager(folder, True)
    faults = []
    for name in suite.tasks:
        if name not in manager.task_index:
            near = get_close_matches(name, manager.all_tasks, 3)
            faults.append(
                f"suite.tasks: lm-evaluation-harness has no task '{name}'"
                + (f"; the nearest are {', '.join(near)}" if near else "")
                + ("" if folder else "; suite.task_folder names a folder with tasks of your own")
            )
    if faults:
        raise UserError(faults)
    return manager


@lru_cache
def _manager(folder: str | None, published: bool) -> Any:
    """Reading the published ones takes 20 s."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=folder, include_defaults=published)


def _is_whole(manager: Any, name: str) -> bool:
    """Whether an index has a task, or a group with everything in it."""
    return name in manager.task_index and all(_is_whole(manager, inner) for inner, _ in _members(manager, name))


def _members(manager: Any, name: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The names in a group or under a tag, with the settings that the group gives each."""
    entry = manager.task_index[name]
    if entry.kind.name == "TAG":
        return [(inner, {}) for inner in sorted(entry.tags)]
    listed = (entry.cfg or {}).get("task") if entry.kind.name == "GROUP" else None
    items = [item if isinstance(item, dict) else {"task": item} for item in listed] if isinstance(listed, list) else []
    return [(item["task"], item) for item in items if isinstance(item.get("task"), str)]


def _datasets(manager: Any, name: str, settings: Mapping[str, Any] | None = None) -> set[str]:
    """Datasets on the hub that a task, or a group's tasks, are made of."""
    if name not in manager.task_index:
        return set()
    found = {path for inner, given in _members(manager, name) for path in _datasets(manager, inner, given)}
    path = {**(manager.task_index[name].cfg or {}), **(settings or {})}.get("dataset_path")
    # Without a slash it is a format of files ("json", "parquet"), or one of the hub's oldest datasets.
    if isinstance(path, str) and path.count("/") == 1 and not hub.looks_like_folder(path):
        found.add(path)
    return found


@contextlib.contextmanager
def _untouched(model: Any) -> Iterator[None]:
    """Give back the model's modes and its generation config, and the random states."""
    modes = {module: module.training for module in model.modules()}
    generation = copy.deepcopy(getattr(model, "generation_config", None))
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    accelerators = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        if generation is not None:
            model.generation_config = generation
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if accelerators:
            torch.cuda.set_rng_state_all(accelerators)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Bars on a terminal and nothing elsewhere, never on stdout; and no further processes."""
    logger, level = logging.getLogger("lm_eval"), logging.getLogger("lm_eval").level
    alone = os.environ.get("DISABLE_MULTIPROC")
    with contextlib.ExitStack() as stack:
        shown = sys.stderr if console().is_terminal else stack.enter_context(Path(os.devnull).open("w"))
        stack.enter_context(contextlib.redirect_stdout(shown))
        stack.enter_context(contextlib.redirect_stderr(shown))
        logger.setLevel(logging.ERROR)
        # Its bootstrap would fork a process per core out of one that holds a model.
        os.environ["DISABLE_MULTIPROC"] = "1"
        try:
            yield
        finally:
            logger.setLevel(level)
            if alone is None:
                del os.environ["DISABLE_MULTIPROC"]
            else:
                os.environ["DISABLE_MULTIPROC"] = alone


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
