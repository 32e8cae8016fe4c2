"""What the model said, one record per example and answer. Metrics see records and nothing else.

Legend of shapes: T answer tokens of one record (content first, then the end marker, where one is labelled).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("kind", pa.string()),
        ("prompt", pa.string()),
        ("answer", pa.string()),
        ("logp_T", pa.list_(pa.float32())),
        ("greedy_T", pa.list_(pa.bool_())),
        ("vocab_mean_T", pa.list_(pa.float32())),
        ("vocab_std_T", pa.list_(pa.float32())),
        ("n_lead", pa.int32()),
        ("n_content", pa.int32()),
        ("truncated", pa.bool_()),
        ("generated", pa.string()),
        ("hit_limit", pa.bool_()),
        ("generated_nll", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Record:
    """One answer to one prompt, scored by teacher forcing, and by generation where that was asked for.

    kind          "answer", "paraphrase", "perturbed_0" ..., or "paraphrased_question": the answer to that one
    logp_T        log-probability of each answer token, natural log, end marker included
    greedy_T      whether greedy decoding, given the true tokens before, picks the token
    vocab_mean_T  mean of log p under p over the vocabulary (Min-K%++'s mu)
    vocab_std_T   standard deviation of log p under p over the vocabulary (Min-K%++'s sigma)
    n_lead        the first n_lead tokens only introduce the answer ("Answer:", where a benchmark trains on it)
    n_content     tokens n_lead .. n_content are the answer's text; what follows is the end marker
    generated     greedy continuation of the prompt, None where none was asked for
    hit_limit     the generation ended at max_new_tokens and not at the end marker or a stop string
    generated_nll mean NLL per token of the generated text behind its prompt under the reference model, in nats
    """

    id: str
    kind: str
    prompt: str
    answer: str
    logp_T: np.ndarray
    greedy_T: np.ndarray
    vocab_mean_T: np.ndarray
    vocab_std_T: np.ndarray
    n_content: int
    n_lead: int = 0
    truncated: bool = False
    generated: str | None = None
    hit_limit: bool | None = None
    generated_nll: float | None = None


def columns(results: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Epochs and removal requests of results.json, each with the name of its folder of records.

    After the last request the model is what it is after all of them, so that one has no folder of its own.
    """
    epochs, requests = results.get("epochs") or [], results.get("requests") or []
    return [
        *((f"epoch-{entry['epoch']:g}", entry) for entry in epochs),
        *((f"request-{entry['request']}", entry) for entry in requests[:-1]),
        *(("after", entry) for entry in requests[-1:]),
    ]


def write(records: list[Record], path: Path) -> None:
    """Write one set's records as parquet, in the order given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [getattr(record, name) for record in records] for name in SCHEMA.names}
    pq.write_table(pa.table(columns, schema=SCHEMA), path)


def read(path: Path) -> list[Record]:
    """Read what `write` wrote; lists come back as numpy arrays."""
    arrays = {field.name for field in fields(Record) if field.name.endswith("_T")}
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return [Record(**(row | {name: np.asarray(row[name]) for name in arrays})) for row in rows]
