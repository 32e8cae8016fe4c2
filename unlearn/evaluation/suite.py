"""One model, one benchmark: score every set once, generate once, keep the records. Metrics come later and see only
these.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unlearn.config import SuiteConfig
from unlearn.data.benchmark import Benchmark
from unlearn.data.encode import Encoder, Row
from unlearn.evaluation import records
from unlearn.evaluation.generate import generate
from unlearn.evaluation.records import Record
from unlearn.evaluation.score import score
from unlearn.objectives.logprobs import AnswerModel

GENERATED = ("forget", "retain", "real_authors", "world_facts")
"""Sets whose questions are answered freely; the holdout is only there to be compared with, token by token."""

VERSION = 1
"""Raised when the content of records changes, so that cached records of older versions are made again."""


@dataclass(frozen=True)
class Suite:
    """Everything an evaluation needs but the model; `only` leaves out the other sets."""

    config: SuiteConfig
    encoder: Encoder
    benchmark: Benchmark
    device: torch.device
    autocast: Callable[[], AbstractContextManager[None]]
    only: tuple[str, ...] | None = None

    def rows(self) -> dict[str, list[Row]]:
        """Encoded rows of every scored set."""
        sets = self.benchmark.evaluated()
        return {name: self.encoder.variants(sets[name]) for name in self.only or sets}

    def run(self, model: Any, title: str) -> dict[str, list[Record]]:
        """Records of every set under `model`, which must be in eval mode on the device."""
        rows = self.rows()
        flat = [row for set_rows in rows.values() for row in set_rows]
        scored = score(
            AnswerModel(model),
            flat,
            token_budget=self.config.token_budget,
            pad_id=self.encoder.pad_id,
            device=self.device,
            autocast=self.autocast,
            title=f"{title}: scoring",
        )
        found = iter(scored)
        by_set = {name: [next(found) for _ in set_rows] for name, set_rows in rows.items()}
        return self._with_generations(model, rows, by_set, title) if self.config.generate else by_set

    def _with_generations(
        self, model: Any, rows: dict[str, list[Row]], by_set: dict[str, list[Record]], title: str
    ) -> dict[str, list[Record]]:
        places = [
            (name, index)
            for name in GENERATED
            if name in rows
            for index, row in enumerate(rows[name])
            if row.kind == "answer"
        ]
        texts = generate(
            model,
            self.encoder.tokenizer,
            [rows[name][index] for name, index in places],
            end_id=self.encoder.end,
            pad_id=self.encoder.pad_id,
            format=self.encoder.format,
            max_new_tokens=self.config.max_new_tokens,
            token_budget=self.config.token_budget,
            device=self.device,
            autocast=self.autocast,
            title=f"{title}: generating",
        )
        for (name, index), (text, hit_limit) in zip(places, texts, strict=True):
            by_set[name][index] = replace(by_set[name][index], generated=text, hit_limit=hit_limit)
        return by_set


def save(by_set: dict[str, list[Record]], folder: Path) -> None:
    """One parquet file per set."""
    for name, set_records in by_set.items():
        records.write(set_records, folder / f"{name}.parquet")


def read(folder: Path) -> dict[str, list[Record]]:
    return {path.stem: records.read(path) for path in sorted(folder.glob("*.parquet"))}
