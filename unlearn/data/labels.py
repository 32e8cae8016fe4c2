"""Other labels for the answer tokens of a batch, for objectives that teach the model to say something else.

Shapes: B rows, N answer tokens of all rows in a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unlearn.data.batches import Batch, hash_seed


def vocabulary(tokenizer: Any) -> Tensor:
    """Ids of all tokens that are text, in ascending order: those of a tokenizer without its special tokens."""
    special = {*tokenizer.all_special_ids}
    special |= {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return torch.tensor(sorted({*tokenizer.get_vocab().values()} - special))


def random_labels(batch: Batch, vocabulary: Tensor, seed: int, step: int) -> Tensor:
    """For every answer token a token drawn uniformly from `vocabulary`: [N].

    A row's labels depend on (seed, step, row id) alone, so that they are the same however a step is cut into batches.
    """
    drawn = [
        torch.randint(len(vocabulary), (count,), generator=_generator(seed, id, step))
        for id, count in zip(batch.ids, _counts_B(batch).tolist(), strict=True)
    ]
    return vocabulary.to(batch.labels_N.device)[torch.cat(drawn).to(batch.labels_N.device)]


def refusal_labels(batch: Batch, refusal_ids: Sequence[int]) -> Tensor:
    """The tokens of a refusal, repeated over each answer: token t has refusal_ids[t mod len(refusal_ids)]: [N]."""
    counts_B = _counts_B(batch)
    first_B = counts_B.cumsum(0) - counts_B
    place_N = torch.arange(batch.n_tokens, device=counts_B.device) - first_B[batch.row_N]
    return torch.tensor(refusal_ids, device=counts_B.device)[place_N % len(refusal_ids)]


def _counts_B(batch: Batch) -> Tensor:
    """Answer tokens of each row. A row's tokens lie next to one another in the line of all of them."""
    return torch.bincount(batch.row_N, minlength=len(batch))


def _generator(seed: int, id: str, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash_seed(seed, f"labels {id}", step))
