"""Records -> one row of plain numbers per example. Imported logs become the same rows (logs.py)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unlearn.evaluation import formulas

if TYPE_CHECKING:
    from unlearn.evaluation.records import Record

SETS = ("forget", "retain", "holdout", "real_authors", "world_facts")
NOT_FINITE = "a log-probability is not finite"


@dataclass(frozen=True)
class Row:
    """Scores of one example; None where unscored. NLLs are nats per token, end marker included.

    nll              also the LOSS attack's score
    nll_paraphrase   the example's own nll where its set has no paraphrased answers
    prob             exp(-nll)
    prob_options     p / (p + sum of p_wrong)
    truth_ratio      raw R = wrong / correct, geometric mean over the wrong answers
    zlib, min_k, min_k_plus_plus, exact_memorization, extraction_strength   see formulas.py; the last four see content
                     tokens only, the end marker excluded
    fault            why teacher-forced scores are missing, where they are
    """

    id: str
    prompt: str | None = None
    answer: str | None = None
    generated: str | None = None
    hit_limit: bool | None = None
    n_tokens: int | None = None
    nll: float | None = None
    nll_paraphrase: float | None = None
    nll_perturbed: tuple[float, ...] = ()
    prob: float | None = None
    prob_options: float | None = None
    truth_ratio: float | None = None
    truth_ratio_arithmetic: float | None = None
    rouge_1_recall: float | None = None
    rouge_l_recall: float | None = None
    rouge_l_f1: float | None = None
    exact_memorization: float | None = None
    extraction_strength: float | None = None
    zlib: float | None = None
    min_k: float | None = None
    min_k_plus_plus: float | None = None
    fault: str | None = None


@dataclass(frozen=True)
class Scores:
    """Rows of one model, keyed by set and by example id, in the order of the data."""

    sets: Mapping[str, Mapping[str, Row]] = field(default_factory=dict)

    def rows(self, name: str) -> list[Row]:
        """All rows of a set; empty where the set was not scored."""
        return list(self.sets.get(name, {}).values())


def complete(given: Mapping[str, Any]) -> Row:
    """A Row from the fields that are known; what follows from them is filled in, what is given stays as it is.

    A non-finite number becomes None, and `fault` says so.
    """
    perturbed = tuple(given.get("nll_perturbed", ()))
    bad = [name for name, value in given.items() if isinstance(value, float) and not math.isfinite(value)]
    if not all(math.isfinite(nll) for nll in perturbed):
        bad.append("nll_perturbed")
        perturbed = ()
    fields = {**given, **dict.fromkeys(bad), "nll_perturbed": perturbed}
    if bad:
        fields["fault"] = NOT_FINITE
    derived = _derive(fields.get("nll"), fields.get("nll_paraphrase"), perturbed, fields.get("answer"))
    missing = {name: value for name, value in derived.items() if fields.get(name) is None}
    return Row(**(fields | missing))


def _derive(
    nll: float | None, nll_paraphrase: float | None, nll_perturbed: Sequence[float], answer: str | None
) -> dict[str, float]:
    derived = {}
    if nll is not None:
        derived["prob"] = formulas.prob(nll)
        if answer is not None:
            derived["zlib"] = formulas.zlib_score(nll, answer)
        if nll_perturbed:
            derived["prob_options"] = formulas.option_prob(nll, nll_perturbed)
    if nll_paraphrase is not None and nll_perturbed:
        derived["truth_ratio"] = formulas.truth_ratio(nll_paraphrase, nll_perturbed)
        derived["truth_ratio_arithmetic"] = formulas.truth_ratio_arithmetic(nll_paraphrase, nll_perturbed)
    return derived


def from_records(records: Mapping[str, Iterable[Record]]) -> Scores:
    """Score every set's records ("forget" -> its records of all answer kinds); ROUGE is computed here, once a row."""
    return Scores({name: _score_set(list(rows)) for name, rows in records.items()})


def _score_set(records: Sequence[Record]) -> dict[str, Row]:
    by_id: dict[str, dict[str, Record]] = {}
    for record in records:
        kinds = by_id.setdefault(record.id, {})
        assert record.kind not in kinds, f"two records of {record.id} {record.kind}"
        kinds[record.kind] = record
    has_paraphrases = any("paraphrase" in kinds for kinds in by_id.values())
    return {example_id: _score_example(example_id, kinds, has_paraphrases) for example_id, kinds in by_id.items()}


def _score_example(example_id: str, kinds: Mapping[str, Record], has_paraphrases: bool) -> Row:
    perturbed = sorted((kind for kind in kinds if kind.startswith("perturbed_")), key=lambda kind: int(kind[10:]))
    nll_perturbed = [formulas.mean_nll(kinds[kind].logp_T) for kind in perturbed]
    fields: dict[str, Any] = {
        "id": example_id,
        "nll_perturbed": tuple(math.nan if nll is None else nll for nll in nll_perturbed),
    }
    correct = kinds.get("paraphrase" if has_paraphrases else "answer")
    if correct is not None:
        fields["nll_paraphrase"] = formulas.mean_nll(correct.logp_T)
    if "answer" in kinds:
        fields |= _score_answer(kinds["answer"])
    return complete(fields)


def _score_answer(record: Record) -> dict[str, Any]:
    content = slice(record.n_lead, record.n_content)
    fields: dict[str, Any] = {
        "prompt": record.prompt,
        "answer": record.answer,
        "generated": record.generated,
        "hit_limit": record.hit_limit,
        "n_tokens": len(record.logp_T),
        "nll": formulas.mean_nll(record.logp_T),
        "exact_memorization": formulas.exact_memorization(record.greedy_T[content]),
        "extraction_strength": formulas.extraction_strength(record.greedy_T[content]),
        "min_k": formulas.min_k(record.logp_T[content]),
        "min_k_plus_plus": formulas.min_k_plus_plus(
            record.logp_T[content], record.vocab_mean_T[content], record.vocab_std_T[content]
        ),
    }
    if record.n_content <= record.n_lead:
        fields["fault"] = "no answer token"
    elif fields["nll"] is None:
        fields["fault"] = NOT_FINITE
    if record.generated is not None:
        rouge = formulas.rouge(record.answer, record.generated)
        if rouge is not None:
            fields |= rouge._asdict()
    return fields
