"""Rows into batches, and which forget rows meet which retain rows at which step.

Shapes: B rows, T positions, N answer tokens of all rows in a line.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from unlearn.data.encode import Row


@dataclass(frozen=True)
class Batch:
    """Right-padded rows with an explicit mask, and the answer tokens as a flat list.

    The logits at (row_N, position_N) predict labels_N: the shift by one happens here and nowhere else. `alternate` has
    another answer to each of the same rows, in the same order.
    """

    ids: tuple[str, ...]
    input_ids_BT: Tensor
    attention_mask_BT: Tensor
    row_N: Tensor
    position_N: Tensor
    labels_N: Tensor
    alternate: Batch | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_tokens(self) -> int:
        return self.labels_N.numel()

    def to(self, device: torch.device | str) -> Batch:
        parts: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: part.to(device) for name, part in parts.items() if hasattr(part, "to")})


def collate(rows: Sequence[Row], pad_id: int) -> Batch:
    """Pad on the right. The mask comes from the lengths, never from `id == pad`: a real token may have the pad's id."""
    length = max(len(row.input_ids) for row in rows)
    ids_BT = torch.full((len(rows), length), pad_id)
    mask_BT = torch.zeros_like(ids_BT)
    where: list[tuple[int, int, int]] = []
    for index, row in enumerate(rows):
        ids_BT[index, : len(row.input_ids)] = torch.tensor(row.input_ids)
        mask_BT[index, : len(row.input_ids)] = 1
        where += [(index, t - 1, row.input_ids[t]) for t in range(row.n_prompt, len(row.input_ids))]
    row_N, position_N, labels_N = torch.tensor(where, dtype=torch.long).reshape(-1, 3).unbind(1)
    return Batch(tuple(row.id for row in rows), ids_BT, mask_BT, row_N, position_N, labels_N)


def micro_batches(
    rows: Sequence[Row], size: int, pad_id: int, alternates: Mapping[str, Row] | None = None
) -> list[Batch]:
    """Cut one step's rows into batches of at most `size`, rows of like length together, so that little is padding.

    `alternates` has another answer to every one of the rows, by row id.
    """
    ordered = sorted(rows, key=lambda row: len(row.input_ids))
    batches = []
    for start in range(0, len(ordered), size):
        part = ordered[start : start + size]
        batch = collate(part, pad_id)
        if alternates is not None:
            batch = replace(batch, alternate=collate([alternates[row.id] for row in part], pad_id))
        batches.append(batch)
    return batches


def by_length(rows: Sequence[Row], token_budget: int, pad_id: int) -> Iterator[tuple[list[int], Batch]]:
    """Batches of at most `token_budget` padded tokens, longest rows first, each with the rows' places in `rows`.

    Longest first, so that a batch that does not fit into memory fails at once and not after an hour.
    """
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].input_ids))
    start = 0
    while start < len(order):
        size = max(1, token_budget // len(rows[order[start]].input_ids))
        places = order[start : start + size]
        yield places, collate([rows[index] for index in places], pad_id)
        start += size


def epoch_batches(rows: Sequence[Row], size: int, seed: int, epoch: int) -> list[list[int]]:
    """One pass over all rows in batches of like length, so that little is padding, in an order that the seed decides.

    Rows are shuffled, sorted by length within pools of eight batches, cut into batches, and the batches shuffled.
    """
    order = permutation(len(rows), seed, "finetune", epoch)
    batches: list[list[int]] = []
    for start in range(0, len(order), 8 * size):
        pool = sorted(order[start : start + 8 * size], key=lambda index: len(rows[index].input_ids))
        batches += [pool[first : first + size] for first in range(0, len(pool), size)]
    return [batches[place] for place in permutation(len(batches), seed, "finetune batches", epoch)]


@lru_cache(maxsize=8)
def permutation(n: int, seed: int, role: str, epoch: int) -> tuple[int, ...]:
    """Order of n rows in one epoch of one role: a function of its arguments alone, on any machine."""
    generator = torch.Generator().manual_seed(hash_seed(seed, role, epoch))
    return tuple(torch.randperm(n, generator=generator).tolist())


def hash_seed(seed: int, role: str, epoch: int) -> int:
    """Mix the parts into one generator seed; `hash()` would differ from process to process."""
    mixed = 0
    for part in (seed, epoch, *role.encode()):
        mixed = (mixed * 1_000_003 + part + 1) % (2**61 - 1)
    return mixed


def stream(n: int, seed: int, role: str, start: int, count: int) -> list[int]:
    """Items start .. start + count - 1 of the endless stream of shuffled epochs over n rows."""
    places = range(start, start + count)
    return [permutation(n, seed, role, place // n)[place % n] for place in places]


@dataclass(frozen=True)
class Pairing:
    """Which rows each step sees: pure arithmetic on the step, so that a resumed run goes on where it stopped.

    One epoch visits every row of the anchor set once, in steps whose sizes differ by at most one row (40 rows in
    batches of 16: 13, 14, 13). The other set gives the same number of rows from its own stream, without replacement
    within each of its own epochs.

    The forget set is cut into `requests` consecutive parts, of `parts` rows each or, without those, of sizes that
    differ by at most one row. All epochs of one part come before those of the next, while the retain stream goes on.
    With anchor=retain every request has `epochs` passes over the retain rows. `max_steps` takes the place of `epochs`
    and is shared out evenly over the requests.
    Steps and requests are counted from 0.
    """

    n_forget: int
    n_retain: int
    batch_size: int
    seed: int
    anchor: str = "forget"
    requests: int = 1
    epochs: int = 1
    max_steps: int | None = None
    parts: tuple[int, ...] = ()

    @property
    def n_anchor(self) -> int:
        return self.n_forget if self.anchor == "forget" else self.n_retain

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch of every request."""
        return sum(self.steps_per_epoch_of(request) for request in range(self.requests))

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self._starts[-1]

    def rows_of(self, request: int) -> range:
        """The forget rows of one request, as places in the whole forget set."""
        if self.parts:
            return range(sum(self.parts[:request]), sum(self.parts[: request + 1]))
        return range(self.n_forget * request // self.requests, self.n_forget * (request + 1) // self.requests)

    def steps_per_epoch_of(self, request: int) -> int:
        return math.ceil(self._anchor_rows(request) / self.batch_size)

    def request_of(self, step: int) -> int:
        """The request that a step is part of. Steps past the end belong to the last one."""
        return bisect_right(self._starts[1:-1], step)

    def steps_of(self, request: int) -> range:
        """The steps of a request, after the last of which it counts as forgotten."""
        return range(self._starts[request], self._starts[request + 1])

    def epoch_of(self, step: int) -> float:
        """Passes over the anchor rows of the step's own request that are complete after the step."""
        request = self.request_of(step)
        return (step + 1 - self._starts[request]) / self.steps_per_epoch_of(request)

    def at(self, step: int) -> tuple[list[int], list[int]]:
        """Row numbers (forget, retain) of optimizer step `step`."""
        request = self.request_of(step)
        own_step = step - self._starts[request]
        start = self._anchor_rows_before(request, own_step)
        count = self._anchor_rows_before(request, own_step + 1) - start
        rows = self.rows_of(request)
        role = f"forget {request}" if request else "forget"
        return (
            [rows[place] for place in stream(len(rows), self.seed, role, start, count)] if rows else [],
            stream(self.n_retain, self.seed, "retain", self._seen[request] + start, count) if self.n_retain else [],
        )

    def fresh_retain(self, step: int, count: int) -> list[int]:
        """`count` retain rows for a probe, from another stream and without this step's own rows.

        Where the set is too small to spare that many, all the others.
        """
        used = set(self.at(step)[1])
        order = permutation(self.n_retain, self.seed, "probe", step)
        return [row for row in order if row not in used][:count]

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        """First step of every request, and the number of all steps."""
        if self.max_steps is not None:
            return tuple(self.max_steps * request // self.requests for request in range(self.requests + 1))
        steps = (self.epochs * self.steps_per_epoch_of(request) for request in range(self.requests))
        return tuple(accumulate(steps, initial=0))

    @cached_property
    def _seen(self) -> tuple[int, ...]:
        """Rows of each kind that the steps before every request have taken."""
        taken = (self._anchor_rows_before(r, len(self.steps_of(r))) for r in range(self.requests))
        return tuple(accumulate(taken, initial=0))

    def _anchor_rows(self, request: int) -> int:
        return len(self.rows_of(request)) if self.anchor == "forget" else self.n_retain

    def _anchor_rows_before(self, request: int, own_step: int) -> int:
        """Rows of each kind that the request's steps before its `own_step` take."""
        steps, rows = self.steps_per_epoch_of(request), self._anchor_rows(request)
        epoch, part = divmod(own_step, steps)
        return epoch * rows + round(rows * part / steps)
