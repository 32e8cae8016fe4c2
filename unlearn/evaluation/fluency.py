"""Generated texts as another model reads them: gibberish is what it would never have written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from unlearn import ranks
from unlearn.data.encode import Row
from unlearn.evaluation.score import score
from unlearn.evaluation.suite import Measured, Place, Suite, deal
from unlearn.objectives.logprobs import AnswerModel


def read_generated(suite: Suite, measured: Measured, model: Any) -> Measured:
    """The same with `generated_nll` in every record that has a generated text; on every process the same.

    `model` is in eval mode on the device. One column at a time, so that what is found does not depend on the others.
    """
    rows = _rows(suite, measured)
    places, read = list(rows), {"generated": list(rows.values())}
    mine = [k for _, k in deal([("generated", k) for k in range(len(rows))], read)[ranks.rank()]]
    scored = score(
        AnswerModel(model),
        [read["generated"][k] for k in mine],
        token_budget=suite.config.token_budget,
        pad_id=suite.encoder.pad_id,
        device=suite.device,
        autocast=suite.autocast,
        title="reading what was generated",
    )
    nll = {places[k]: -float(np.mean(one.logp_T, dtype=np.float64)) for k, one in zip(mine, scored, strict=True)}
    merged = {place: value for part in ranks.gather(nll) for place, value in part.items()}
    by_set = {
        name: [replace(record, generated_nll=merged.get((name, k))) for k, record in enumerate(records)]
        for name, records in measured.records.items()
    }
    return replace(measured, records=by_set)


def _rows(suite: Suite, measured: Measured) -> dict[Place, Row]:
    """Each generated text behind the prompt that it was generated for."""
    found = {}
    for name, records in measured.records.items():
        for k, (record, row) in enumerate(zip(records, suite.rows[name], strict=True)):
            if record.generated:
                ids = (*row.input_ids[: row.n_prompt], *suite.encoder.answer_ids(record.generated))
                ids = ids[: max(suite.encoder.max_length, row.n_prompt + 1)]
                found[name, k] = Row(row.id, "generated", row.prompt, record.generated, ids, row.n_prompt, len(ids))
    return found
