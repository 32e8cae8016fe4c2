"""A benchmark is one object: name, split and source decide all sets together, so that sets of two splits never mix."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from unlearn.data.example import Example

EMBEDDED_LABEL = "embedded, not comparable with published numbers"


@dataclass(frozen=True)
class EvalSet:
    """Examples that are scored by teacher forcing, and what else is asked of a model about them.

    max_new_tokens  longest greedy continuation of each prompt; None where none is generated
    stop            what a continuation is cut at; None takes the strings of the model's format
    """

    examples: tuple[Example, ...]
    max_new_tokens: int | None = None
    stop: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Benchmark:
    """All sets of one benchmark.

    sets         what models are trained on: forget, retain, holdout (rows that no model has seen) and background: what
                 a pretrained model knows already and a model trained from scratch must be taught along with the rest
                 (empty for published data)
    retained     the rows that the retain objective sees, which may be others than the retain set
    evaluated    the sets that are scored, in the order of tables
    retain_name  names the set that the reference model is trained on ("retain90")
    requests     forget examples of each removal request, in order
    labels       what a reader of any number must know of this data
    """

    name: str
    split: str
    retain_name: str
    source: str
    sets: dict[str, tuple[Example, ...]]
    retained: tuple[Example, ...]
    evaluated: dict[str, EvalSet]
    requests: tuple[int, ...]
    labels: tuple[str, ...] = ()

    @property
    def train(self) -> tuple[Example, ...]:
        """What the target model is trained on."""
        return self.sets["forget"] + self.reference_train

    @property
    def reference_train(self) -> tuple[Example, ...]:
        """What the reference model is trained on: everything but the forget set."""
        return self.sets["retain"] + self.sets["background"]

    def fingerprints(self) -> dict[str, str]:
        """A short content hash per set, for run.json and for the cache."""
        sets = dict(self.sets)
        if self.retained != self.sets["retain"]:
            sets["retained"] = self.retained
        for name, scored in self.evaluated.items():
            if name not in sets:
                sets[name] = scored.examples
            elif scored.examples != sets[name]:
                sets[f"{name}, scored"] = scored.examples
        return {name: fingerprint(examples) for name, examples in sets.items()}


def fingerprint(examples: tuple[Example, ...]) -> str:
    text = json.dumps([asdict(example) for example in examples], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def even(n: int, parts: int) -> tuple[int, ...]:
    """Sizes of `parts` consecutive parts of n, which differ by at most one."""
    return tuple(n * (part + 1) // parts - n * part // parts for part in range(parts))
