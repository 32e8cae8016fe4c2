"""One model, all sets: score every distinct row once, generate once, keep the records. Metrics come later and see only
these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unlearn import ranks
from unlearn.config import SuiteConfig
from unlearn.console import log
from unlearn.data.benchmark import EvalSet
from unlearn.data.encode import Encoder, Row
from unlearn.evaluation import records
from unlearn.evaluation.generate import Ask, Continuation, generate, plain
from unlearn.evaluation.records import Record
from unlearn.evaluation.score import Scored, score
from unlearn.evaluation.values import Value
from unlearn.objectives.logprobs import AnswerModel

VERSION = 2
"""Raised when the content of records changes, so that cached records of older versions are made again."""

ASKED = ("answer", "paraphrased_question")
"""Kinds of rows whose prompt is also answered freely."""

Place = tuple[str, int]
"""A row: the name of its set, and its number there."""


@dataclass(frozen=True)
class Measured:
    """What was found out about one model.

    records  by set
    tasks    values of other harnesses, by metric
    canary   how many answers were decoded a second time, plainly, and how many of them came out otherwise
    """

    records: dict[str, list[Record]]
    tasks: dict[str, Value]
    canary: dict[str, int]


@dataclass(frozen=True)
class Suite:
    """Everything an evaluation needs but the model; `only` leaves out the other sets."""

    config: SuiteConfig
    encoder: Encoder
    sets: Mapping[str, EvalSet]
    rows: Mapping[str, Sequence[Row]]
    device: torch.device
    autocast: Callable[[], AbstractContextManager[None]]
    only: tuple[str, ...] | None = None

    def run(self, model: Any, title: str) -> Measured:
        """Records of every set under `model`, which must be in eval mode on the device, on every process the same."""
        places = [(name, k) for name in self.only or self.rows for k in range(len(self.rows[name]))]
        mine = deal(places, self.rows)[ranks.rank()]
        found, canary = self._share(model, mine, title)
        parts = ranks.gather((dict(zip(mine, found, strict=True)), canary))
        merged = {place: record for part, _ in parts for place, record in part.items()}
        by_set: dict[str, list[Record]] = {name: [] for name in self.only or self.rows}
        for name, k in places:
            by_set[name].append(merged[name, k])
        total = {key: sum(part[key] for _, part in parts) for key in canary}
        if total["different"]:
            log.warning(
                "warning: %d of %d answers differ from plain greedy decoding, because of rounding",
                total["different"],
                total["compared"],
            )
        return Measured(by_set, self._tasks(model) if self.only is None else {}, total)

    def _share(self, model: Any, places: Sequence[Place], title: str) -> tuple[list[Record], dict[str, int]]:
        """Records of some of the rows."""
        rows = [self.rows[name][k] for name, k in places]
        scored = score(
            AnswerModel(model),
            rows,
            token_budget=self.config.token_budget,
            pad_id=self.encoder.pad_id,
            device=self.device,
            autocast=self.autocast,
            title=f"{title}: scoring",
        )
        found = [record_of(row, one) for row, one in zip(rows, scored, strict=True)]
        asked = [index for index, (name, _) in enumerate(places) if self._limit(name) and rows[index].kind in ASKED]
        asks = [self._ask(places[index][0], rows[index], scored[index]) for index in asked]
        settings: dict[str, Any] = {
            "end_id": self.encoder.end,
            "pad_id": self.encoder.pad_id,
            "token_budget": self.config.token_budget,
            "device": self.device,
            "autocast": self.autocast,
        }
        given = generate(model, self.encoder.tokenizer, asks, title=f"{title}: generating", **settings)
        for index, answer in zip(asked, given, strict=True):
            found[index] = replace(found[index], generated=answer.text, hit_limit=answer.hit_limit)
        return found, self._canary(model, asks, given, settings)

    def _limit(self, name: str) -> int | None:
        return self.sets[name].max_new_tokens

    def _ask(self, name: str, row: Row, scored: Scored) -> Ask:
        """The prompt, with how greedy decoding begins: the pass over the reference answer has shown it already."""
        reference = row.input_ids[row.n_prompt :]
        greedy = tuple(int(token) for token in scored.greedy_ids_T)
        same = next((t for t, token in enumerate(greedy) if token != reference[t]), len(greedy))
        form, stop = self.encoder.format, self.sets[name].stop
        return Ask(
            prompt_ids=row.input_ids[: row.n_prompt],
            known_ids=greedy[: same + 1],
            reference_ids=reference,
            max_new_tokens=self._limit(name) or 0,
            stop=tuple(form.stop) if stop is None else stop,
            lead=form.separator.strip() if stop is None else "",
        )

    def _canary(
        self, model: Any, asks: Sequence[Ask], given: Sequence[Continuation], settings: dict[str, Any]
    ) -> dict[str, int]:
        """Decode some of the answers again, without drafts: the same tokens but for rounding."""
        share = -(-self.config.canary // ranks.world())
        step = max(1, len(asks) // share) if share else 1
        chosen = range(0, len(asks), step)[:share] if share else range(0)
        again = plain(model, self.encoder.tokenizer, [asks[k] for k in chosen], title="canary", **settings)
        different = sum(given[k].text != other.text for k, other in zip(chosen, again, strict=True))
        return {"compared": len(chosen), "different": different}

    def _tasks(self, model: Any) -> dict[str, Value]:
        if not self.config.tasks:
            return {}
        from unlearn.evaluation import harness

        values = harness.run(model, self.encoder.tokenizer, self.config) if ranks.is_main() else {}
        return dict(ranks.agree(values))


def deal(places: Sequence[Place], rows: Mapping[str, Sequence[Row]]) -> list[list[Place]]:
    """The rows of each process: those of one example together, the longest dealt first, to who has the fewest tokens.

    Within a process in the order of `places`.
    """
    by_example: dict[tuple[str, str], list[Place]] = {}
    for name, k in places:
        by_example.setdefault((name, rows[name][k].id), []).append((name, k))
    sizes = {key: sum(len(rows[name][k].input_ids) for name, k in each) for key, each in by_example.items()}
    loads, owner = [0] * ranks.world(), {}
    for key in sorted(by_example, key=lambda key: -sizes[key]):
        least = loads.index(min(loads))
        loads[least] += sizes[key]
        owner[key] = least
    shares: list[list[Place]] = [[] for _ in loads]
    for name, k in places:
        shares[owner[name, rows[name][k].id]].append((name, k))
    return shares


def record_of(row: Row, scored: Scored) -> Record:
    """What the teacher-forced pass says about one row."""
    labels = row.input_ids[row.n_prompt :]
    return Record(
        row.id,
        row.kind,
        row.prompt,
        row.answer,
        scored.logp_T,
        scored.greedy_ids_T == labels,
        scored.vocab_mean_T,
        scored.vocab_std_T,
        row.n_content,
        row.n_lead,
        row.truncated,
    )


def save(measured: Measured, folder: Path) -> None:
    """One parquet file per set, and what has no records."""
    for name, set_records in measured.records.items():
        records.write(set_records, folder / f"{name}.parquet")
    folder.mkdir(parents=True, exist_ok=True)
    rest = {"tasks": measured.tasks, "canary": measured.canary}
    (folder / "measured.json").write_text(json.dumps(rest, indent=1) + "\n")


def read(folder: Path) -> Measured:
    by_set = {path.stem: records.read(path) for path in sorted(folder.glob("*.parquet"))}
    path = folder / "measured.json"
    rest = json.loads(path.read_text()) if path.exists() else {"tasks": {}, "canary": {}}
    return Measured(by_set, rest["tasks"], rest["canary"])
