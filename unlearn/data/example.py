"""What every dataset is turned into: a prompt, its answer, and the variants that the metrics score."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """One row of a benchmark.

    `id` names the file and the row ("retain90/12"), so that a number in a report can be traced to a line of the source.
    Variants are empty where the benchmark has none; a set without `paraphrased_answer` (real_authors, world_facts)
    is scored against its own answer.

    `prompt` is the very text that the answer continues, where a benchmark has its own (few-shot questions, the
    beginning of an article): no template and no separator are put around it, and no end marker behind the answer. With
    an empty one the answer is a text that stands alone.
    """

    id: str
    question: str
    answer: str
    paraphrased_question: str | None = None
    paraphrased_answer: str | None = None
    perturbed_answers: tuple[str, ...] = ()
    prompt: str | None = None

    @property
    def is_text(self) -> bool:
        """A text that stands alone: no question, all of it is scored and trained on."""
        return self.prompt == ""

    @property
    def has_variants(self) -> bool:
        return bool(self.perturbed_answers)
