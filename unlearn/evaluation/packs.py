"""Rows that begin alike as one sequence, in which what they have in common stands once.

The rows of a pack are the branches of a tree of tokens, written down branch after branch. Each token sees its own
ancestors only and has the position that it has in its row, so the model computes for each row what it would compute for
the row alone. Five wrong answers to one question share the question and the words they begin with; a hundred questions
behind one few-shot prompt share the prompt.

Shapes: B packs, T positions, M answer tokens of all rows in a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from unlearn.data.encode import Row


@dataclass
class Pack:
    """Rows with common beginnings.

    places    of the rows in the list that was packed
    ids       one token for each position of the pack
    depth     how many tokens of its row come before each token: its position for the model
    branches  (start, parent): from `start` on, up to the next branch, tokens continue what ends at `parent`
    paths     where each row's tokens are, in the order of `places`

    The last token of a row is a label only and is not among them.
    """

    places: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    branches: list[tuple[int, int]] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, place: int, row: Row, shared: int = 0) -> None:
        """Add a row that has its first `shared` tokens in common with the row before it."""
        path = self.paths[-1][:shared] if shared else []
        start, own = len(self.ids), row.input_ids[shared:-1]
        self.places.append(place)
        self.branches.append((start, path[-1] if path else -1))
        self.ids += own
        self.depth += range(shared, shared + len(own))
        self.paths.append([*path, *range(start, len(self.ids))])

    def visible(self) -> np.ndarray:
        """Which positions each position sees: [T, T] of bool."""
        visible_TT = np.zeros((len(self), len(self)), dtype=bool)
        ends = [start for start, _ in self.branches[1:]] + [len(self)]
        for (start, parent), end in zip(self.branches, ends, strict=True):
            if parent >= 0:
                visible_TT[start:end] = visible_TT[parent]
            visible_TT[start:end, start:end] |= np.tri(end - start, dtype=bool)
        return visible_TT


@dataclass(frozen=True)
class PackedBatch:
    """Packs padded on the right; `position_BT` and `visible_BTT` are None where every pack is a single row.

    The model's output at the flat position at_M (of B * T) predicts label_M. Answer tokens stand in the order of
    `places`, `sizes` of them to a row.
    """

    places: list[int]
    sizes: list[int]
    ids_BT: Tensor
    position_BT: Tensor | None
    visible_BTT: Tensor | None
    at_M: np.ndarray
    label_M: np.ndarray


def pack(rows: Sequence[Row], width: int, limit: int) -> list[Pack]:
    """Distinct rows into packs, longest pack first.

    `width` is the hidden size of the model, `limit` the most tokens of a pack of more than one row. `width` 0: every
    row by itself.
    """
    order = sorted(range(len(rows)), key=lambda place: rows[place].input_ids)
    packs: list[Pack] = []
    before: tuple[int, ...] = ()
    for place in order:
        ids = rows[place].input_ids[:-1]
        shared = _common(before, ids)
        if packs and shared and len(packs[-1]) + len(ids) - shared <= min(limit, _best_length(shared, width)):
            packs[-1].add(place, rows[place], shared)
        else:
            packs.append(Pack())
            packs[-1].add(place, rows[place])
        before = ids
    return sorted(packs, key=lambda found: -len(found))


def _best_length(shared: int, width: int) -> float:
    """Tokens of the pack at which one more row begins to cost more than it saves.

    A token costs about 6 * width times what a pair of tokens costs in attention (24 width^2 against 4 width operations
    in a layer), and x further tokens behind `shared` common ones cost 6 width (shared + x) + (shared + x)^2 pairs. Per
    further token that is least at x^2 = shared^2 + 6 width shared.
    """
    return shared + sqrt(shared * shared + 6 * width * shared) if width else 0.0


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens a and b have in common from the start."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next(t for t in range(length) if a[t] != b[t])


def batches(packs: Sequence[Pack], rows: Sequence[Row], token_budget: int, pad_id: int) -> Iterator[PackedBatch]:
    """Batches of at most `token_budget` padded tokens, in the order of `packs`, single rows apart from the others.

    The longest pack comes first, so that a batch that does not fit into memory fails at once and not after an hour.
    """
    longest_is_single = bool(packs) and len(packs[0].places) == 1
    for single in (longest_is_single, not longest_is_single):
        kind = [found for found in packs if (len(found.places) == 1) == single]
        start = 0
        while start < len(kind):
            size = max(1, token_budget // len(kind[start]))
            yield collate(kind[start : start + size], rows, pad_id)
            start += size


def collate(packs: Sequence[Pack], rows: Sequence[Row], pad_id: int) -> PackedBatch:
    """Pad on the right: no token sees what comes behind it, so single rows need no mask at all."""
    length = max(map(len, packs))
    ids_BT = np.full((len(packs), length), pad_id)
    position_BT = np.zeros_like(ids_BT)
    at, labels = [], []
    for index, found in enumerate(packs):
        ids_BT[index, : len(found)] = found.ids
        position_BT[index, : len(found)] = found.depth
        for place, path in zip(found.places, found.paths, strict=True):
            n_prompt = rows[place].n_prompt
            at.append(np.asarray(path[n_prompt - 1 :], dtype=np.int64) + index * length)
            labels.append(np.asarray(rows[place].input_ids[n_prompt:], dtype=np.int64))
    places = [place for found in packs for place in found.places]
    shared = len(places) > len(packs)
    return PackedBatch(
        places,
        [rows[place].n_answer for place in places],
        torch.from_numpy(ids_BT),
        torch.from_numpy(position_BT) if shared else None,
        torch.from_numpy(_visible(packs, length)) if shared else None,
        np.concatenate(at),
        np.concatenate(labels),
    )


def _visible(packs: Sequence[Pack], length: int) -> np.ndarray:
    """[B, T, T] of bool. Padding sees itself: a softmax over nothing would be NaN."""
    visible_BTT = np.tile(np.eye(length, dtype=bool), (len(packs), 1, 1))
    for visible_TT, found in zip(visible_BTT, packs, strict=True):
        visible_TT[: len(found), : len(found)] = found.visible()
    return visible_BTT
