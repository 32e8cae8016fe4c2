"""A benchmark is one object: name, split and source decide all sets together, so that sets of two splits never mix."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from unlearn.data.example import Example

EMBEDDED_LABEL = "embedded, not comparable with published numbers"

EVALUATED = ("forget", "retain", "holdout", "real_authors", "world_facts")
"""Sets that are scored, in the order of tables."""


@dataclass(frozen=True)
class Benchmark:
    """All sets of one benchmark.

    `sets` has forget, retain, holdout, real_authors, world_facts and background: what a pretrained model knows
    already and a model trained from scratch must be taught along with the rest (empty for published data).
    `retain_name` names the set that the reference model is trained on ("retain90"); `retained` are the rows that the
    retain objective sees, which may be others.
    """

    name: str
    split: str
    retain_name: str
    source: str
    sets: dict[str, tuple[Example, ...]]
    retained: tuple[Example, ...]

    @property
    def labels(self) -> list[str]:
        return [EMBEDDED_LABEL] if self.source == "embedded" else []

    @property
    def train(self) -> tuple[Example, ...]:
        """What the target model is trained on."""
        return self.sets["forget"] + self.reference_train

    @property
    def reference_train(self) -> tuple[Example, ...]:
        """What the reference model is trained on: everything but the forget set."""
        return self.sets["retain"] + self.sets["background"]

    def evaluated(self) -> dict[str, tuple[Example, ...]]:
        """The sets that are scored. Of the retain set those rows that have variants, as published, where any has."""
        scored = {name: self.sets[name] for name in EVALUATED}
        with_variants = tuple(example for example in scored["retain"] if example.has_variants)
        return {**scored, "retain": with_variants or scored["retain"]}

    def fingerprints(self) -> dict[str, str]:
        """A short content hash per set, for run.json and for the cache."""
        other = {} if self.retained == self.sets["retain"] else {"retained": self.retained}
        return {name: fingerprint(examples) for name, examples in {**self.sets, **other}.items()}


def fingerprint(examples: tuple[Example, ...]) -> str:
    text = json.dumps([asdict(example) for example in examples], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
