"""Where the two other models of an experiment come from: the target, which knows the whole benchmark, and the
reference, which never saw the forget set. Published, given by the user, or trained here once and kept in the cache.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unlearn import ranks
from unlearn.cache import Cache
from unlearn.config import RunConfig
from unlearn.data.benchmark import Benchmark, fingerprint
from unlearn.data.encode import Encoder
from unlearn.data.example import Example
from unlearn.models import load
from unlearn.models.sources import TRAIN, Sources

VERSION = 2
"""Raised when the way in which target and reference are trained changes, so that cached ones are trained again."""


def tokenizer_for(cfg: RunConfig, benchmark: Benchmark, sources: Sources) -> Any:
    """The one tokenizer of the run: built for the tiny model, else the one beside the weights that forget."""
    if sources.target != TRAIN:
        return load.load_tokenizer(cfg.model, sources.target)
    if cfg.model.path is None:
        return load.tiny_tokenizer(cfg.model.tiny, benchmark)
    return load.load_tokenizer(cfg.model, cfg.model.path)


@dataclass(frozen=True)
class Stage:
    """A model on disk, and whether it was there already."""

    path: str
    fingerprint: str
    cached: bool


class Stages:
    """Trains target and reference where that has to be done, each once per content of its inputs."""

    def __init__(self, cfg: RunConfig, benchmark: Benchmark, tokenizer: Any, encoder: Encoder, device: Any) -> None:
        self.cfg, self.benchmark, self.tokenizer, self.encoder, self.device = cfg, benchmark, tokenizer, encoder, device
        self.cache = Cache(Path(cfg.cache_dir))

    def target(self, sources: Sources) -> Stage:
        return self._stage(sources.target, "target", self.benchmark.train)

    def reference(self, sources: Sources) -> Stage:
        assert sources.reference is not None
        return self._stage(sources.reference, "reference", self.benchmark.reference_train)

    def key(self, examples: tuple[Example, ...]) -> dict[str, Any]:
        """Everything that decides the trained weights."""
        model = self.cfg.model
        base = asdict(model.tiny) if model.path is None else load.fingerprint(model.path, model.revision)
        return {
            "base": base,
            "rows": fingerprint(examples),
            "tokenizer": load.tokenizer_hash(self.tokenizer),
            "format": asdict(model.format),
            "max_length": model.max_length,
            "finetune": asdict(model.finetune),
            "seed": self.cfg.seed,
            "version": VERSION,
        }

    def _stage(self, source: str, role: str, examples: tuple[Example, ...]) -> Stage:
        if source != TRAIN:
            revision = self.cfg.model.revision if source == self.cfg.model.path else None
            return Stage(source, load.fingerprint(source, revision), True)
        found = None
        if ranks.is_main():
            # One process trains it, the others wait.
            found = self.cache.get("models", self.key(examples), lambda folder: self._train(folder, role, examples))
        folder, cached = ranks.from_main(found)
        return Stage(str(folder), folder.name, cached)

    def _train(self, folder: Path, role: str, examples: tuple[Example, ...]) -> None:
        from unlearn.training.finetune import finetune

        model_cfg = self.cfg.model
        if model_cfg.path is None:
            model = load.tiny_model(model_cfg.tiny, self.tokenizer, model_cfg.max_length, self.cfg.seed)
        else:
            model = load.load_model(model_cfg, model_cfg.path)
        rows = self.encoder.answers(examples)
        pad_id = self.encoder.pad_id
        title, micro = f"training the {role}", self.cfg.trainer.micro_batch_size
        finetune(model, rows, model_cfg.finetune, self.cfg.seed, self.device, pad_id, title, micro)
        load.save(model.to("cpu"), self.tokenizer, folder)
