"""The teacher-forced pass: one forward over every distinct row, everything the metrics need of it.

What rows have in common from the start is computed once (see packs.py). The output layer runs once on each position
that predicts an answer token, in chunks, and the statistics over the vocabulary are taken there in fp32, so a
[batch, time, vocabulary] tensor never exists.

Shapes: B packs of a batch, T positions, M answer tokens, N positions that predict them, C positions of one chunk,
V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unlearn.console import log, progress
from unlearn.data.encode import Row
from unlearn.evaluation.packs import Pack, PackedBatch, batches, collate, pack
from unlearn.objectives.logprobs import AnswerModel

CPU_CHUNK = (256, 2**23)
"""Most positions and most logits (32 MiB in fp32) of a chunk: the output layer's weights are read once for each chunk,
and larger chunks are paged in anew each time.
"""

GPU_CHUNK = (2**16, 2**25)
"""On an accelerator: enough work for one multiplication to hide the launching of the kernels that follow it."""

MAX_PACK = 4096
"""Tokens of a pack at most: the mask is their square, and so is what eager attention holds for each head."""


@dataclass(frozen=True)
class Scored:
    """What one pass says about the answer tokens of one row, each of shape [T] for T answer tokens.

    logp_T        log-probability of the token
    greedy_ids_T  the token that greedy decoding picks there
    vocab_mean_T  mean of log p over the vocabulary under p
    vocab_std_T   standard deviation of log p under p
    """

    logp_T: np.ndarray
    greedy_ids_T: np.ndarray
    vocab_mean_T: np.ndarray
    vocab_std_T: np.ndarray


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
) -> list[Scored]:
    """Score every row by teacher forcing, in the order of `rows`; the model must be in eval mode.

    Rows with the same tokens are computed once. A batch has at most `token_budget` padded tokens, or one row.
    """
    assert all(0 < row.n_prompt < len(row.input_ids) for row in rows), "a row needs a prompt token and an answer token"
    distinct: dict[tuple[tuple[int, ...], int], int] = {}
    place = [distinct.setdefault((row.input_ids, row.n_prompt), len(distinct)) for row in rows]
    first = {index: row for row, index in zip(reversed(rows), reversed(place), strict=True)}
    unique = [first[index] for index in range(len(distinct))]
    scored: dict[int, Scored] = {}
    with progress() as bars:
        bar = bars.add_task(title, total=len(unique), note="")
        with autocast():
            packs = _packs(model, unique, token_budget, pad_id, device)
            for batch in batches(packs, unique, token_budget, pad_id):
                scored.update(_score(model, batch, device))
                bars.update(bar, advance=len(batch.places))
    return [scored[index] for index in place]


def _packs(model: AnswerModel, rows: Sequence[Row], token_budget: int, pad_id: int, device: torch.device) -> list[Pack]:
    """Packs of rows that share their beginnings, where the model computes for a packed row what it does for the row."""
    packs = pack(rows, _width(model, rows), min(token_budget, MAX_PACK))
    shared = next((found for found in packs if len(found.places) > 1), None)
    if shared is None or _same(model, shared, rows, pad_id, device):
        return packs
    log.info("scoring: %s does not compute rows packed together as it does rows apart: nothing is shared", _name(model))
    return pack(rows, 0, token_budget)


def _width(model: AnswerModel, rows: Sequence[Row]) -> int:
    """Hidden size, or 0 where packing is out of the question: kernels that take no mask, windows shorter than rows."""
    config = model.model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    longest = max((len(row.input_ids) for row in rows), default=0)
    if config._attn_implementation not in ("eager", "sdpa") or (window is not None and window < longest):
        return 0
    return int(config.hidden_size)


def _same(model: AnswerModel, packed: Pack, rows: Sequence[Row], pad_id: int, device: torch.device) -> bool:
    """Whether the longest pack gives the hidden states of its rows.

    Recurrent layers ignore the mask, biases of distance the positions, and local attention counts its window over the
    pack: all show here, whatever the architecture is called. A needless no costs nothing but time.
    """
    try:
        ours_MD = _hidden(model, collate([packed], rows, pad_id), device)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        log.debug("scoring: %s", error)
        return False
    singles = [Pack() for _ in packed.places]
    for single, place in zip(singles, packed.places, strict=True):
        single.add(place, rows[place])
    apart_MD = torch.cat([_hidden(model, collate([single], rows, pad_id), device) for single in singles])
    difference_M = (ours_MD.float() - apart_MD.float()).norm(dim=1) / apart_MD.float().norm(dim=1)
    return bool(difference_M.max().item() < (1e-2 if ours_MD.dtype == torch.float32 else 0.1))


def _hidden(model: AnswerModel, batch: PackedBatch, device: torch.device, at_N: np.ndarray | None = None) -> Tensor:
    """Last hidden states at the positions `at_N`, by default at those of all answer tokens."""
    options = {}
    if batch.visible_BTT is not None and batch.position_BT is not None:
        visible_B1TT = batch.visible_BTT.to(device)[:, None]
        dtype = model.model.get_input_embeddings().weight.dtype
        mask_B1TT = torch.zeros(visible_B1TT.shape, dtype=dtype, device=device)
        mask_B1TT.masked_fill_(~visible_B1TT, torch.finfo(dtype).min)
        options = {"attention_mask": mask_B1TT, "position_ids": batch.position_BT.to(device)}
    decoded = model.model.get_decoder()(input_ids=batch.ids_BT.to(device), use_cache=False, **options)
    at = torch.from_numpy(batch.at_M if at_N is None else at_N).to(device)
    return decoded.last_hidden_state.flatten(0, 1)[at]  # type: ignore[no-any-return]


def _score(model: AnswerModel, batch: PackedBatch, device: torch.device) -> Iterator[tuple[int, Scored]]:
    """The place and the statistics of every row of a batch."""
    at_N, predictor_M = np.unique(batch.at_M, return_inverse=True)
    # Labels in the order of the positions that predict them, so that those of a chunk are a slice.
    order_M = np.argsort(predictor_M, kind="stable")
    ordered_M = predictor_M[order_M]
    label_M = torch.from_numpy(batch.label_M[order_M]).to(device)
    hidden_ND = _hidden(model, batch, device, at_N)
    size = _chunk_size(model, device)
    chunks: list[tuple[Tensor, ...]] = []
    for start in range(0, len(at_N), size):
        first, last = np.searchsorted(ordered_M, (start, start + size))
        column = torch.from_numpy(ordered_M[first:last] - start).to(device)
        chunks.append(statistics(model.output(hidden_ND[start : start + size]), column, label_M[first:last]))
    logp, greedy_N, mean_N, std_N = (torch.cat(parts).cpu().numpy() for parts in zip(*chunks, strict=True))
    logp_M = np.empty_like(logp)
    logp_M[order_M] = logp
    ends = np.cumsum(batch.sizes)
    for place, end, count in zip(batch.places, ends, batch.sizes, strict=True):
        mine = predictor_M[end - count : end]
        yield place, Scored(logp_M[end - count : end], greedy_N[mine], mean_N[mine], std_N[mine])


def _chunk_size(model: AnswerModel, device: torch.device) -> int:
    positions, logits = CPU_CHUNK if device.type == "cpu" else GPU_CHUNK
    return max(1, min(positions, logits // int(model.model.get_output_embeddings().weight.shape[0])))


def statistics(logits_CV: Tensor, row_M: Tensor, label_M: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p of the M labels, and argmax, mean and standard deviation of log p under p of the C rows of logits.

    In fp32, whatever the logits are. `row_M` says which row predicts each label. fp32 logits are overwritten.
    """
    z_CV = logits_CV.float()
    # NumPy's argmax is a tenth of the time of torch's on a CPU; both take the first of equals.
    greedy_C = torch.from_numpy(z_CV.numpy().argmax(1)) if z_CV.device.type == "cpu" else z_CV.argmax(1)
    # From the largest on, so that sums of squares do not cancel. exp is most of the time, so it is taken once: the
    # largest logit is 0 now, and log p there is minus the log of the sum.
    z_CV.sub_(z_CV.gather(1, greedy_C[:, None]))
    p_CV = z_CV.softmax(1)
    logsum_C = -p_CV.gather(1, greedy_C[:, None])[:, 0].log()
    logp_M = z_CV[row_M, label_M] - logsum_C[row_M]
    mean_C = p_CV.mul_(z_CV).sum(1)
    square_C = p_CV.mul_(z_CV).sum(1)
    std_C = (square_C - mean_C.square()).clamp_min(0).sqrt()
    return logp_M, greedy_C.int(), mean_C - logsum_C, std_C


def _name(model: AnswerModel) -> str:
    return str(model.model.config.model_type)
