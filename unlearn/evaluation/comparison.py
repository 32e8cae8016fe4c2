"""The three columns of every table: the model before, the model after, and the reference that never saw the forget
set; and what is measured on the way from one to the other.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unlearn import ranks
from unlearn.cache import MARKER, Cache
from unlearn.config import RunConfig
from unlearn.console import log
from unlearn.errors import UserError
from unlearn.evaluation import suite as suites
from unlearn.evaluation.damage import damage
from unlearn.evaluation.fluency import read_generated
from unlearn.evaluation.metrics import evaluate
from unlearn.evaluation.references import read_reference
from unlearn.evaluation.scores import Scores, from_records
from unlearn.evaluation.suite import Measured, Suite
from unlearn.evaluation.values import Value

KNOWN = 0.7
"""A start model whose forget NLL is above this share of the holdout's was hardly trained on the forget set."""

KNOWLEDGE = {"knowmem_f": "forget_knowmem", "forget.rouge_l_recall": "forget", "forget.prob": "forget"}
"""What trainer.stop=reference looks at, with its set: the first of these that a benchmark has."""

SAME_RECORDS = ("every_epochs", "keep", "canary", "token_budget", "perplexity", "allow_missing_reference", "name")
"""Settings of a suite that change nothing in the records."""


class Comparison:
    """Scores one model after the other and gives their metrics; records go to `folder/<column>`.

    Models that a run does not change are scored once for their weights, rows and suite, and then come from the cache.
    """

    def __init__(self, cfg: RunConfig, suite: Suite, folder: Path, reason_without_reference: str) -> None:
        self.cfg, self.suite, self.folder, self.reason = cfg, suite, folder, reason_without_reference
        self.cache = Cache(Path(cfg.cache_dir))
        self.reference: Scores | None = None
        self.columns: dict[str, Measured] = {}

    def reference_from_log(self, path: Path) -> dict[str, Value]:
        """Take the reference from a published evaluation log or from another run, which has been checked."""
        self.reference = read_reference(path)
        return evaluate(self.reference, self.reference)

    def reference_from_model(self, weights: str, load: Callable[[], Any]) -> dict[str, Value]:
        """Score the reference model; `load` is called only where the cache does not have it."""
        self._cached("reference", weights, load)
        self.reference = from_records(self.columns["reference"].records)
        return self.values("reference")

    def before(self, weights: str, model: Any) -> tuple[dict[str, Value], bool]:
        """Metrics of the start model, and whether its records came from the cache."""
        cached = self._cached("before", weights, lambda: model)
        scores = from_records(self.columns["before"].records)
        forget, holdout = (_mean_nll(scores, name) for name in ("forget", "holdout"))
        if forget is not None and holdout is not None and forget > KNOWN * holdout:
            log.warning(
                "warning: the start model hardly knows the forget set (%.2f nats per token, %.2f on unseen rows): is "
                "model.target the model that was trained on it?",
                forget,
                holdout,
            )
        return self.values("before"), cached

    def measure(self, column: str, model: Any, intervals: bool = True) -> dict[str, Value]:
        """Metrics of the model as it is now; its records are kept under the column's name."""
        self.columns[column] = self.suite.run(model, column)
        self._save(column)
        return self.values(column, intervals)

    def read_generations(self, load_reference: Callable[[], Any]) -> None:
        """Let the reference model read what all columns have generated; their metrics of fluency need it."""
        reference = load_reference()
        for column, measured in self.columns.items():
            self.columns[column] = read_generated(self.suite, measured, reference)
            self._save(column)

    def damage(self) -> dict[str, Any] | None:
        """Who bears the brunt: the change of every example that should have been kept."""
        if not {"before", "after"} <= self.columns.keys():
            return None
        return damage(*(from_records(self.columns[column].records) for column in ("before", "after")))

    def knowledge(self, model: Any) -> tuple[Callable[[], float], float, str]:
        """How to measure what `model` knows of the forget set, what the reference knows of it, and the metric's name.

        MUSE's measure of knowledge; elsewhere ROUGE-L of generated answers, or the answers' probability where none are
        generated.
        """
        assert self.reference is not None, "checked before the run"
        known = evaluate(self.reference, self.reference, intervals=False)
        limits = {name: known[name]["value"] for name in KNOWLEDGE if name in known}
        name, limit = next(((name, value) for name, value in limits.items() if value is not None), ("", None))
        if limit is None:
            raise UserError(f"trainer.stop: reference needs one of {', '.join(KNOWLEDGE)} of the reference; found none")
        suite = replace(self.suite, only=(KNOWLEDGE[name],), config=replace(self.suite.config, canary=0))

        def measure() -> float:
            scores = from_records(suite.run(model, "stop rule").records)
            value = evaluate(scores, self.reference, intervals=False)[name]["value"]
            return math.inf if value is None else float(value)

        return measure, float(limit), name

    def values(self, column: str, intervals: bool = True) -> dict[str, Value]:
        """All metrics of a column."""
        measured = self.columns[column]
        scores = from_records(measured.records)
        return {**evaluate(scores, self.reference, self.reason, intervals=intervals), **measured.tasks}

    def canaries(self) -> dict[str, Mapping[str, int]]:
        """For each column how many answers were decoded twice, and how many of them differed."""
        return {column: measured.canary for column, measured in self.columns.items() if measured.canary}

    def _save(self, column: str) -> None:
        if ranks.is_main():
            suites.save(self.columns[column], self.folder / column)

    def _cached(self, column: str, weights: str, load: Callable[[], Any]) -> bool:
        """Measure a model that does not change, or take it from the cache; whether it was there."""
        if ranks.is_main():

            def build(part: Path) -> None:
                ranks.agree("measure")
                suites.save(self.suite.run(load(), column), part)

            place, cached = self.cache.get("records", self._key(column, weights), build)
            if cached:
                ranks.agree("is there")
            shutil.copytree(place, self.folder / column, ignore=shutil.ignore_patterns(MARKER), dirs_exist_ok=True)
            found = ranks.agree((place, cached))
        else:
            if ranks.agree(None) == "measure":
                self.suite.run(load(), column)
            found = ranks.agree(None)
        self.columns[column] = suites.read(found[0])
        return bool(found[1])

    def _tasks(self) -> str | None:
        if not self.cfg.suite.tasks:
            return None
        from unlearn.evaluation import harness

        return harness.fingerprint(self.cfg.suite)

    def _key(self, column: str, weights: str) -> dict[str, Any]:
        suite = self.suite
        return {
            "weights": weights,
            "rows": {name: [list(row.input_ids) for row in rows] for name, rows in suite.rows.items()},
            "asked": {name: [each.max_new_tokens, each.stop] for name, each in suite.sets.items()},
            "suite": {key: value for key, value in asdict(self.cfg.suite).items() if key not in SAME_RECORDS},
            "format": asdict(self.cfg.model.format),
            "tasks": self._tasks(),
            "precision": self.cfg.trainer.precision,
            "in_4_bits": column == "before" and self.cfg.model.adapter.quantized,
            "device": suite.device.type,
            "version": suites.VERSION,
        }


def _mean_nll(scores: Scores, name: str) -> float | None:
    nlls = [row.nll for row in scores.rows(name) if row.nll is not None]
    return sum(nlls) / len(nlls) if nlls else None
