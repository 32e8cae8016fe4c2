"""The teacher-forced pass: one forward over every distinct row, everything the metrics need of it.

The output layer runs on answer positions only, in chunks, and the statistics over the vocabulary are taken there in
fp32. Shapes: N answer tokens of a batch, C of one chunk, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch

from unlearn.console import progress
from unlearn.data.batches import Batch, by_length
from unlearn.data.encode import Row
from unlearn.evaluation.records import Record
from unlearn.objectives.logprobs import AnswerModel

CHUNK_ELEMENTS = 2**25
"""Logits held at once: 128 MiB in fp32, whatever the vocabulary."""


@torch.no_grad()
def score(
    model: AnswerModel,
    rows: Sequence[Row],
    *,
    token_budget: int,
    pad_id: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[None]],
    title: str = "scoring",
) -> list[Record]:
    """Score every row by teacher forcing; the model must be in eval mode. Rows with the same tokens are computed
    once.
    """
    distinct: dict[tuple[tuple[int, ...], int], int] = {}
    place = [distinct.setdefault((row.input_ids, row.n_prompt), len(distinct)) for row in rows]
    first = {index: row for row, index in zip(reversed(rows), reversed(place), strict=True)}
    unique = [first[index] for index in range(len(distinct))]
    scored: list[np.ndarray | None] = [None] * len(unique)
    with progress() as bars:
        bar = bars.add_task(title, total=len(unique), note="")
        for places, batch in by_length(unique, token_budget, pad_id):
            with autocast():
                statistics_4N = _statistics(model, batch.to(device))
            sizes = [unique[index].n_answer for index in places]
            for index, columns in zip(places, np.split(statistics_4N, np.cumsum(sizes)[:-1], axis=1), strict=True):
                scored[index] = columns
            bars.update(bar, advance=len(places))
    return [_record(row, scored[index]) for row, index in zip(rows, place, strict=True)]


def _statistics(model: AnswerModel, batch: Batch) -> np.ndarray:
    """Log-probability of the label, greedy match, mean and standard deviation of log p under p: [4, N]."""
    hidden_ND = model.hidden(batch)
    vocabulary = model.model.get_output_embeddings().weight.shape[0]
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    chunks = []
    for hidden_CD, labels_C in zip(hidden_ND.split(size), batch.labels_N.split(size), strict=True):
        logp_CV = model.output(hidden_CD).float().log_softmax(-1)
        logp_C = logp_CV.gather(1, labels_C[:, None])[:, 0]
        greedy_C = (logp_CV.argmax(-1) == labels_C).float()
        p_CV = logp_CV.exp()
        mean_C = (p_CV * logp_CV).sum(-1)
        variance_C = (p_CV * logp_CV.square()).sum(-1) - mean_C.square()
        chunks.append(torch.stack((logp_C, greedy_C, mean_C, variance_C.clamp_min(0).sqrt())))
    return torch.cat(chunks, dim=1).cpu().numpy()


def _record(row: Row, statistics_4T: np.ndarray | None) -> Record:
    assert statistics_4T is not None
    logp_T, greedy_T, mean_T, std_T = statistics_4T
    return Record(
        row.id,
        row.kind,
        row.prompt,
        row.answer,
        logp_T,
        greedy_T > 0.5,
        mean_T,
        std_T,
        row.n_content,
        row.n_lead,
        row.truncated,
    )
