"""The run folder: written while the run goes on, so that whatever ends it leaves a folder that can be read."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import unlearn
from unlearn import ranks
from unlearn.config import RunConfig
from unlearn.console import log
from unlearn.errors import UserError
from unlearn.evaluation.records import columns
from unlearn.plan import Prepared
from unlearn.report.tracker import make_tracker

LIBRARIES = (
    "torch", "transformers", "tokenizers", "peft", "accelerate", "bitsandbytes", "datasets", "hydra-core", "lm-eval",
    "numpy", "scipy", "wandb",
)  # fmt: skip
"""Whose versions a run records, where they are installed."""


class Recorder:
    """Writes config.yaml, run.json, metrics.jsonl and results.json, and mirrors them to the tracker."""

    def __init__(self, cfg: RunConfig, prepared: Prepared) -> None:
        self.cfg = cfg
        self.path = Path(cfg.output_dir)
        self.began = time.time()
        if ranks.is_main():
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                (self.path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(asdict(cfg))))
            except OSError as error:
                raise UserError(f"output_dir: cannot write '{self.path}': {error.strerror}") from None
        self._results: dict[str, Any] = {
            "schema": 2,
            "before": None,
            "after": None,
            "reference": None,
            "labels": list(prepared.benchmark.labels),
            "steps": 0,
            "stop": None,
            "requests": [],
            "weights": None,
            "epochs": [],
            "kept": None,
            "damage": None,
            "canary": {},
        }
        self._run: dict[str, Any] = {
            "status": "running",
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": " ".join(["unlearn-run", *sys.argv[1:]]),
            "seed": cfg.seed,
            "versions": versions(),
            "git": git_state(),
            "hardware": hardware(prepared.device),
            "source": prepared.benchmark.source,
            "fingerprints": prepared.benchmark.fingerprints(),
            "stages": {},
        }
        self._write("run.json", self._run)
        self._write("results.json", self._results)
        self.tracker = make_tracker(cfg.logger.name if ranks.is_main() else "none")
        self.tracker.start(self.path, asdict(cfg), cfg.logger)

    def step(self, line: dict[str, Any]) -> None:
        """Append one optimizer step."""
        if not ranks.is_main():
            return
        finite = _finite(line)
        with (self.path / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps(finite) + "\n")
        self._results["steps"] = line["step"]
        self.tracker.log(finite)

    def results(self, stage: str, values: dict[str, Any]) -> None:
        """Store the metrics of one stage: before, after or reference."""
        for column, entry in columns(self._results):
            if column == stage:
                entry["values"] = values
        self.more(**{stage: values})

    def renew(self, values: Callable[[str], dict[str, Any]]) -> None:
        """Store the metrics of everything that was measured again, after something was added to its records."""
        self._results |= {stage: values(stage) for stage in ("before", "after", "reference")}
        for column, entry in columns(self._results):
            entry["values"] = values(column)
        self._write("results.json", self._results)

    def more(self, **facts: Any) -> None:
        """Store other parts of results.json."""
        self._results |= facts
        self._write("results.json", self._results)

    def metrics(self, stage: str) -> dict[str, Any] | None:
        """The stored metrics of a stage."""
        found: dict[str, Any] | None = self._results[stage]
        return found

    def epoch(self, epoch: float, step: int, values: dict[str, Any]) -> None:
        """Store what was measured in the middle of training."""
        entry = {"epoch": epoch, "step": step, "values": values}
        self._results["epochs"].append(entry)
        self._write("results.json", self._results)
        self.tracker.evaluation(entry)

    def outcome(self, outcome: Any) -> None:
        """Store how training ended, how far it moved the weights, and which of them were kept."""
        self._results |= {
            "steps": outcome.steps,
            "stop": asdict(outcome.stop) if outcome.stop else None,
            "weights": {
                "relative_l2": outcome.relative_l2,
                "changed_tensors": outcome.changed_tensors,
                "tensors": outcome.tensors,
            },
            "requests": outcome.requests,
            "kept": outcome.kept,
        }
        self._run["tokens"] = outcome.tokens
        self._write("results.json", self._results)

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, Any]]:
        """Time one stage; the caller may put more facts into the dict that is yielded."""
        began = time.perf_counter()
        facts: dict[str, Any] = {}
        log.info("%s ...", name)
        try:
            yield facts
        finally:
            facts["seconds"] = round(time.perf_counter() - began, 2)
            self._run["stages"][name] = facts
            self._write("run.json", self._run)
        log.info("%s: %.1f s%s", name, facts["seconds"], " (cached)" if facts.get("cached") else "")

    def finish(self, status: str, exit_code: int, error: str | None = None) -> None:
        """The last words, whatever happened: status, report, tracker."""
        if not ranks.is_main():
            return
        from unlearn.report.html import write_report

        self._run |= {
            "status": status,
            "error": error,
            "seconds": round(time.time() - self.began, 2),
            "peak_memory_bytes": peak_memory(),
        }
        try:
            self._write("run.json", self._run)
            self._write("results.json", self._results)
            write_report(self.path)
        finally:
            self.tracker.finish(self._results, exit_code)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        """Replace the file in one move, so that a reader never sees half of it."""
        if not ranks.is_main():
            return
        partial = self.path / f".{name}.part"
        partial.write_text(json.dumps(_finite(content), indent=1, ensure_ascii=False) + "\n")
        partial.replace(self.path / name)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def versions() -> dict[str, str]:
    found = {"unlearn-run": unlearn.__version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def git_state() -> dict[str, Any] | None:
    """Commit of the program's own checkout, and whether it has changes; None outside a checkout."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None


def hardware(device: Any) -> dict[str, Any]:
    import torch

    return {
        "device": str(device),
        "name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
    }


def peak_memory() -> int:
    """Peak memory in bytes: of the GPU where one was used, else of the process."""
    import resource

    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
