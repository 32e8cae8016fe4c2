"""Where the two other models of an experiment come from: the target, which knows the whole benchmark, and the
reference, which never saw the forget set. Published, given by the user, or trained here once and kept in the cache.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unlearn.cache import Cache
from unlearn.config import RunConfig
from unlearn.data.benchmark import Benchmark, fingerprint
from unlearn.data.encode import Encoder
from unlearn.data.example import Example
from unlearn.errors import UserError
from unlearn.models import hub, load

TRAIN = "train"

VERSION = 1
"""Raised when the way in which target and reference are trained changes, so that cached ones are trained again."""


@dataclass(frozen=True)
class Sources:
    """What will be used, decided before anything is loaded.

    target     "train", or the folder or hub id of the model that forgets
    reference  "train", a folder, a hub id, an evaluation log, or None with the reason
    """

    target: str
    reference: str | None
    reason: str = ""

    @property
    def reference_is_log(self) -> bool:
        return self.reference is not None and self.reference != TRAIN and is_log(self.reference)


def is_log(path: str) -> bool:
    """An evaluation log (or a folder that holds one and no model) in place of a reference model."""
    place = Path(path).expanduser()
    return place.is_file() or (
        place.is_dir() and not (place / "config.json").is_file() and bool(list(place.glob("*.json")))
    )


def resolve(cfg: RunConfig, benchmark: Benchmark) -> Sources:
    """Decide on target and reference. Raises UserError for a model that is not there or that nobody can make."""
    published = cfg.model.published.get(benchmark.name) if benchmark.source != "embedded" else None
    target = cfg.model.target
    if target == "auto":
        target = published.target if published is not None and published.target else TRAIN
    elif target == "self":
        if cfg.model.path is None:
            raise UserError("model.target: self needs a model.path; found none")
        target = cfg.model.path
    reference: str | None = cfg.model.reference
    if reference == "auto":
        if published is not None and published.reference and target == published.target:
            reference = published.reference.replace("{retain}", benchmark.retain_name)
        else:
            reference = TRAIN if target == TRAIN else None
    elif reference == "none":
        reference = None
    faults: list[str] = []
    for path, key in ((target, "model.target"), (reference, "model.reference")):
        faults += _faults(path, key)
    if TRAIN in (target, reference) and cfg.model.path is not None:
        faults += _faults(cfg.model.path, "model.path", cfg.model.revision)
    reason = ""
    if reference is None:
        reason = f"no reference model: nothing trained on {benchmark.retain_name} alone was given"
        if not cfg.suite.allow_missing_reference:
            faults.append(
                f"model.reference: forget_quality and privleak compare with a model trained on {benchmark.retain_name} "
                f"alone; found none for '{cfg.model.name}'. Make one with `unlearn-run ... model.path=BASE_WEIGHTS "
                f"model.target={target} model.reference=train`, name one with model.reference=PATH, or take null for "
                "those metrics with suite.allow_missing_reference=true"
            )
    if faults:
        raise UserError(faults)
    return Sources(target, reference, reason)


def _faults(path: str | None, key: str, revision: str | None = None) -> list[str]:
    if path is None or path == TRAIN or (key == "model.reference" and is_log(path)):
        return []
    try:
        load.check_source(path, key, revision)
    except UserError as error:
        return error.messages
    return []


def tokenizer_for(cfg: RunConfig, benchmark: Benchmark, sources: Sources) -> Any:
    """The one tokenizer of the run: built for the tiny model, else the one beside the weights that forget."""
    if sources.target != TRAIN:
        return load.load_tokenizer(cfg.model, sources.target)
    if cfg.model.path is None:
        return load.tiny_tokenizer(cfg.model.tiny, benchmark)
    return load.load_tokenizer(cfg.model, cfg.model.path)


@dataclass(frozen=True)
class Stage:
    """A model on disk, and what it cost to get there."""

    path: str
    fingerprint: str
    cached: bool
    seconds: float


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
            "tokenizer": fingerprint(self.benchmark.train + self.benchmark.sets["holdout"])
            if model.path is None
            else "",
            "format": asdict(model.format),
            "max_length": model.max_length,
            "finetune": asdict(model.finetune),
            "seed": self.cfg.seed,
            "version": VERSION,
        }

    def _stage(self, source: str, role: str, examples: tuple[Example, ...]) -> Stage:
        began = time.perf_counter()
        if source != TRAIN:
            revision = self.cfg.model.revision if source == self.cfg.model.path else None
            return Stage(source, load.fingerprint(source, revision), True, time.perf_counter() - began)
        key = self.key(examples)
        folder, cached = self.cache.get("models", key, lambda folder: self._train(folder, role, examples))
        return Stage(str(folder), folder.name, cached, time.perf_counter() - began)

    def _train(self, folder: Path, role: str, examples: tuple[Example, ...]) -> None:
        from unlearn.training.finetune import finetune

        model_cfg = self.cfg.model
        if model_cfg.path is None:
            model = load.tiny_model(model_cfg.tiny, self.tokenizer, model_cfg.max_length, self.cfg.seed)
        else:
            model = load.load_model(model_cfg, model_cfg.path)
        rows = self.encoder.answers(examples)
        pad_id = self.encoder.pad_id
        finetune(model, rows, model_cfg.finetune, self.cfg.seed, self.device, pad_id, f"training the {role}")
        load.save(model.to("cpu"), self.tokenizer, folder)


def uses_hub(path: str | None) -> bool:
    return path is not None and path != TRAIN and not hub.looks_like_folder(path)
