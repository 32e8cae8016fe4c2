"""The batches of a run: those of each step, dealt to the processes, and whole sets for what is measured once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from unlearn import ranks
from unlearn.config import RunConfig
from unlearn.data.batches import Batch, Pairing, by_length, micro_batches
from unlearn.data.encode import Row
from unlearn.objectives.objective import Objective


def pairing(cfg: RunConfig, requests: Sequence[int], n_retain: int) -> Pairing:
    """Order of rows, with the forget rows of each removal request; without a forget objective an epoch visits the
    retain set.
    """
    trainer, forgetting = cfg.trainer, "forget" in cfg.method.sides
    return Pairing(
        sum(requests),
        n_retain,
        trainer.batch_size,
        cfg.seed,
        anchor=cfg.data.anchor if forgetting else "retain",
        requests=len(requests) if forgetting else 1,
        parts=tuple(requests) if forgetting else (),
        epochs=trainer.epochs,
        max_steps=trainer.max_steps,
    )


class Feed:
    """Rows as batches on the device.

    rows        forget, retain and holdout rows
    alternates  other answers, by the id of the row that they answer instead
    requests    forget rows of each removal request, in order
    """

    def __init__(
        self,
        cfg: RunConfig,
        rows: dict[str, list[Row]],
        alternates: dict[str, list[Row]],
        pad_id: int,
        device: torch.device,
        requests: Sequence[int],
    ) -> None:
        self.cfg, self.rows, self.alternates, self.pad_id, self.device = cfg, rows, alternates, pad_id, device
        self.micro = cfg.trainer.micro_batch_size or cfg.trainer.batch_size
        self.pairs = pairing(cfg, requests, len(rows["retain"]))

    def at(self, step: int) -> tuple[list[Batch] | None, list[Batch] | None]:
        """This process's micro-batches (forget, retain) of one step, with an alternate to each row where the objective
        needs one.

        None where no process has any; with fewer rows than processes a list may be empty.
        """
        forget, retain = self.pairs.at(step)
        method = self.cfg.method
        return (
            self._batches(self.pick("forget", forget), step, method.forget),
            self._batches(self.pick("retain", retain), step, method.retain),
        )

    def fresh_retain(self, step: int, count: int) -> list[Batch] | None:
        """This process's micro-batches of retain rows that the step does not use, None where there are none at all."""
        return self._batches(self.pick("retain", self.pairs.fresh_retain(step, count)), step)

    def pick(self, side: str, places: Sequence[int]) -> list[Row]:
        return [self.rows[side][place] for place in places]

    def whole(self, rows: Sequence[Row]) -> list[Batch]:
        """All of these rows in batches of like length, no larger than those of the steps."""
        budget = self.micro * max((len(row.input_ids) for row in rows), default=1)
        return [batch.to(self.device) for _, batch in by_length(rows, budget, self.pad_id)]

    def with_alternates(self, side: str) -> list[Row]:
        """The rows of one side and all other answers to them."""
        rows = self.rows[side]
        return [*rows, *(other for row in rows for other in self.alternates.get(row.id, ()))]

    def _batches(self, rows: Sequence[Row], step: int, objective: Objective | None = None) -> list[Batch] | None:
        if not rows:
            return None
        # Every process gets short and long rows alike.
        rows = sorted(rows, key=lambda row: len(row.input_ids))[ranks.rank() :: ranks.world()]
        alternates = None
        if objective is not None and "alternates" in objective.needs:
            # Another one in each epoch.
            turn = math.ceil(self.pairs.epoch_of(step)) - 1
            options = {row.id: self.alternates[row.id] for row in rows}
            alternates = {id: others[turn % len(others)] for id, others in options.items()}
        return [batch.to(self.device) for batch in micro_batches(rows, self.micro, self.pad_id, alternates)]
