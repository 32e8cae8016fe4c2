"""The three columns of every table: the model before, the model after, and the reference that never saw the forget
set.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unlearn.cache import Cache
from unlearn.config import RunConfig
from unlearn.console import log
from unlearn.errors import UserError
from unlearn.evaluation import suite as suites
from unlearn.evaluation.logs import read_log
from unlearn.evaluation.metrics import evaluate
from unlearn.evaluation.scores import Scores, from_records
from unlearn.evaluation.suite import Suite
from unlearn.evaluation.values import Value

KNOWN = 0.7
"""A start model whose forget NLL is above this share of the holdout's was hardly trained on the forget set."""


class Comparison:
    """Scores one model after the other and gives their metrics; records go to `folder/<column>`.

    Models that a run does not change are scored once for their weights, rows and suite, and then come from the cache.
    """

    def __init__(self, cfg: RunConfig, suite: Suite, folder: Path, reason_without_reference: str) -> None:
        self.cfg, self.suite, self.folder, self.reason = cfg, suite, folder, reason_without_reference
        self.cache = Cache(Path(cfg.cache_dir))
        self.reference: Scores | None = None

    def reference_from_log(self, path: Path) -> dict[str, Value]:
        """Take the reference from a published evaluation log. Raises ValueError for a file that is none."""
        self.reference = read_log(path)
        return evaluate(self.reference, self.reference)

    def reference_from_model(self, weights: str, load: Callable[[], Any]) -> dict[str, Value]:
        """Score the reference model; `load` is called only where the cache does not have it."""
        self.reference, _ = self._cached("reference", weights, load)
        return evaluate(self.reference, self.reference)

    def before(self, weights: str, model: Any) -> tuple[dict[str, Value], bool]:
        """Metrics of the start model, and whether its records came from the cache."""
        scores, cached = self._cached("before", weights, lambda: model)
        forget, holdout = (_mean_nll(scores, name) for name in ("forget", "holdout"))
        if forget is not None and holdout is not None and forget > KNOWN * holdout:
            log.warning(
                "warning: the start model hardly knows the forget set (%.2f nats per token, %.2f on unseen rows): is "
                "model.target the model that was trained on it?",
                forget,
                holdout,
            )
        return self._values(scores), cached

    def after(self, model: Any) -> dict[str, Value]:
        """Metrics of the model as training left it."""
        by_set = self.suite.run(model, "after")
        suites.save(by_set, self.folder / "after")
        return self._values(from_records(by_set))

    def knowledge(self, model: Any) -> tuple[Callable[[], float], float, str]:
        """How to measure what `model` knows of the forget set, what the reference knows of it, and the metric's name.

        ROUGE-L of generated answers, MUSE's measure of knowledge; the answers' probability where none are generated.
        """
        name = "forget.rouge_l_recall" if self.cfg.suite.generate else "forget.prob"
        assert self.reference is not None, "checked before the run"
        limit = evaluate(self.reference, self.reference)[name]["value"]
        if limit is None:
            raise UserError(f"trainer.stop: reference needs {name} of the reference; its records do not have it")
        suite = replace(self.suite, only=("forget",))

        def measure() -> float:
            was_training = model.training
            model.eval()
            value = evaluate(from_records(suite.run(model, "stop rule")), self.reference)[name]["value"]
            model.train(was_training)
            return math.inf if value is None else float(value)

        return measure, float(limit), name

    def _values(self, scores: Scores) -> dict[str, Value]:
        return evaluate(scores, self.reference, self.reason)

    def _cached(self, column: str, weights: str, load: Callable[[], Any]) -> tuple[Scores, bool]:
        key = {
            "weights": weights,
            "rows": {name: [list(row.input_ids) for row in rows] for name, rows in self.suite.rows().items()},
            "suite": asdict(self.cfg.suite),
            "format": asdict(self.cfg.model.format),
            "precision": self.cfg.trainer.precision,
            "in_4_bits": column == "before" and self.cfg.model.adapter.quantized,
            "device": self.suite.device.type,
            "version": suites.VERSION,
        }
        place, cached = self.cache.get("records", key, lambda part: suites.save(self.suite.run(load(), column), part))
        shutil.copytree(place, self.folder / column, ignore=shutil.ignore_patterns("*.json"), dirs_exist_ok=True)
        return from_records(suites.read(place)), cached


def _mean_nll(scores: Scores, name: str) -> float | None:
    nlls = [row.nll for row in scores.rows(name) if row.nll is not None]
    return sum(nlls) / len(nlls) if nlls else None
