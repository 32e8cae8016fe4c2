"""What every dataset is turned into: one question, its answer, and the variants that the metrics score."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """One row of a benchmark.

    `id` names the file and the row ("retain90/12"), so that a number in a report can be traced to a line of the source.
    Variants are empty where the benchmark has none; a set without `paraphrased_answer` (real_authors, world_facts)
    is scored against its own answer.
    """

    id: str
    question: str
    answer: str
    paraphrased_question: str | None = None
    paraphrased_answer: str | None = None
    perturbed_answers: tuple[str, ...] = ()

    @property
    def has_variants(self) -> bool:
        return bool(self.perturbed_answers)
