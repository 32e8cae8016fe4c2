"""What a metric is: a name with its definition, and how its value is computed from scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from unlearn.evaluation.scores import Scores
from unlearn.evaluation.values import Estimate, Sample

Direction = Literal["higher", "lower", "reference"]

UNIT = (0.0, 1.0)
UTILITY_SETS = ("retain", "real_authors", "world_facts")
MUSE_SETS = ("forget_knowmem", "retain_knowmem", "forget_verbmem")
WMDP_SETS = ("wmdp_bio", "wmdp_cyber", "wmdp_chem")
GENERATED_SETS = ("forget", *UTILITY_SETS, *MUSE_SETS)

TOFU = "TOFU (Maini et al. 2024)"
MUSE = "MUSE (Shi et al. 2024)"
OPEN_UNLEARNING = "OpenUnlearning (Dorna et al. 2025)"


@dataclass(frozen=True)
class Metric:
    """What a name means.

    direction  better if higher, lower, or closer to the reference model's value
    range      of the value, bounds included
    sets       the sets it is made of; it applies to scores that have them all
    prompted   whether it also needs that those sets ask something: a text alone has no question to answer, and no
               wrong answers
    """

    name: str
    title: str
    group: str
    direction: Direction
    range: tuple[float, float]
    formula: str
    source: str
    sets: tuple[str, ...]
    compute: Callable[[Inputs], Estimate] = field(repr=False, compare=False)
    prompted: bool = True

    def applies(self, scores: Scores) -> bool:
        """Whether a benchmark with these scores has this metric, scored or not."""
        return all(name in scores.sets and not (self.prompted and _only_texts(scores, name)) for name in self.sets)


class Inputs:
    """What a metric sees: the model's scores, the reference's or the reason why there are none, and other metrics."""

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        scores: Scores,
        reference: Scores | None,
        no_reference: str,
        intervals: bool,
    ) -> None:
        self.model = Sample(scores, "model", intervals)
        self.reference = None if reference is None else Sample(reference, "reference", intervals)
        self.no_reference = no_reference
        self._metrics = metrics
        self._found: dict[str, Estimate] = {}

    def estimate(self, name: str) -> Estimate:
        """The metric of this name, computed once."""
        if name not in self._found:
            self._found[name] = self._metrics[name].compute(self)
        return self._found[name]


def _only_texts(scores: Scores, name: str) -> bool:
    rows = scores.sets[name].values()
    return bool(rows) and all(row.prompt == "" for row in rows)
