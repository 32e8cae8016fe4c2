"""Everything that can be known, and can go wrong, before a model is loaded: data, sources, rows, device, memory,
disk.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearn.config import RunConfig
from unlearn.data.benchmark import Benchmark
from unlearn.data.encode import Encoder, Row, longest
from unlearn.errors import UserError
from unlearn.models.sources import TRAIN, Sources
from unlearn.schedulers.autolr import AutoLR

if TYPE_CHECKING:
    import torch

    from unlearn.data.batches import Pairing

LEAST_FREE = 2**20
"""Bytes without which not even a log can be written."""

FEW_STEPS = 20
"""Fewer optimizer steps than this hardly move a model, and methods look alike."""


@dataclass(frozen=True)
class ModelSize:
    """Parameters, layers and width of the model, known from its config."""

    parameters: int
    layers: int
    width: int


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to begin."""

    cfg: RunConfig
    benchmark: Benchmark
    sources: Sources
    tokenizer: Any
    encoder: Encoder
    rows: dict[str, list[Row]]
    device: torch.device
    size: ModelSize

    @property
    def trains(self) -> bool:
        return bool(self.cfg.method.forget.active or self.cfg.method.retain.active)

    @property
    def pairing(self) -> Pairing:
        from unlearn.training.loop import pairing

        return pairing(self.cfg, len(self.rows["forget"]), len(self.rows["retain"]))

    @property
    def steps(self) -> int:
        from unlearn.training.loop import total_steps

        return total_steps(self.cfg, self.pairing) if self.trains else 0


def prepare(cfg: RunConfig) -> Prepared:
    """Check everything that a run depends on. Raises UserError."""
    from unlearn.data import tofu
    from unlearn.models import sources as model_sources
    from unlearn.models import stages

    check_writable(Path(cfg.output_dir), "output_dir")
    if (Path(cfg.output_dir) / "run.json").exists():
        raise UserError(f"output_dir: needs a new folder; '{cfg.output_dir}' holds a run already")
    check_writable(Path(cfg.cache_dir), "cache_dir")
    benchmark = tofu.load(cfg.data)
    sources = model_sources.resolve(cfg, benchmark)
    tokenizer = stages.tokenizer_for(cfg, benchmark, sources)
    encoder = Encoder(tokenizer, cfg.model.format, cfg.model.max_length)
    rows = {name: encoder.answers(benchmark.sets[name]) for name in ("forget", "retain", "holdout")}
    for examples in benchmark.evaluated().values():
        encoder.variants(examples)
    prepared = Prepared(
        cfg, benchmark, sources, tokenizer, encoder, rows, pick_device(cfg), measure(cfg, sources, tokenizer)
    )
    check_disk(prepared)
    return prepared


def check_writable(folder: Path, key: str) -> None:
    """Whether files can be made there; leaves nothing behind. Raises UserError."""
    place = folder.expanduser().absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UserError(f"{key}: needs a folder that can be written; '{folder}' cannot ({error.strerror})") from None
    if (free := free_bytes(folder)) < LEAST_FREE:
        raise UserError(f"{key}: needs at least {human(LEAST_FREE)}, found {human(free)} free in '{folder}'")


def pick_device(cfg: RunConfig) -> torch.device:
    """The device asked for, or the first there is of cuda, mps, cpu. Raises UserError where it is not there."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    wanted = cfg.trainer.device
    if wanted == "auto":
        return torch.device(next(name for name, present in there.items() if present))
    if not there[wanted]:
        raise UserError(f"trainer.device: needs a {wanted} device, found none; use trainer.device=auto")
    return torch.device(wanted)


def measure(cfg: RunConfig, sources: Sources, tokenizer: Any) -> ModelSize:
    """The model's size, from its shape alone. Raises UserError where rows may exceed its window."""
    import torch
    from transformers import AutoModelForCausalLM

    from unlearn.models import load

    path = cfg.model.path if sources.target == TRAIN else sources.target
    if path is None:
        model = load.tiny_model(cfg.model.tiny, tokenizer, cfg.model.max_length, cfg.seed)
        return ModelSize(int(model.num_parameters()), cfg.model.tiny.layers, cfg.model.tiny.hidden_size)
    shape = load.load_shape(cfg.model, path)
    window = getattr(shape, "max_position_embeddings", None)
    if window is not None and cfg.model.max_length > window:
        raise UserError(f"model.max_length: needs at most the model's window of {window}; found {cfg.model.max_length}")
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape, trust_remote_code=cfg.model.trust_remote_code)
        return ModelSize(int(model.num_parameters()), shape.num_hidden_layers, shape.hidden_size)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"model.path: '{path}' is no causal language model: {reason[:200]}") from error


def weight_bytes(cfg: RunConfig) -> int:
    """Bytes of one trainable parameter."""
    return 2 if cfg.trainer.precision == "bf16" else 4


def memory_parts(prepared: Prepared) -> dict[str, int]:
    """Estimated device memory of the training step by part, in bytes."""
    cfg, n = prepared.cfg, prepared.size.parameters
    size = weight_bytes(cfg)
    method = cfg.method
    micro = cfg.trainer.micro_batch_size or cfg.trainer.batch_size
    tokens = micro * max(longest(prepared.rows["forget"]), longest(prepared.rows["retain"]))
    answers = micro * max(longest(rows, lambda row: row.n_answer) for rows in prepared.rows.values())
    needs = method.forget.needs | method.retain.needs
    parts = {
        "weights": n * size,
        "gradient": n * size,
        "second gradient": n * size if method.combine.fixed is None else 0,
        "optimizer state": n * size * cfg.optimizer.states,
        "start model for the retain term": n * size if "reference_logits" in needs else 0,
        "lr probe copies": 2 * n * size if isinstance(cfg.scheduler, AutoLR) else 0,
        "logits": 3 * 4 * answers * len(prepared.tokenizer),
        "activations": tokens * _activation_bytes_per_token(prepared),
    }
    return {name: count for name, count in parts.items() if count}


def _activation_bytes_per_token(prepared: Prepared) -> int:
    """About 34 bytes per token, layer and unit of width in 16 bits (Korthikanti et al., 2205.05198), 68 in fp32.

    With checkpointing the inputs of the layers stay, and one layer at a time is computed again.
    """
    layers, width = prepared.size.layers, prepared.size.width
    per_layer = width * (68 if prepared.cfg.trainer.precision == "fp32" else 34)
    return layers * width * 4 + per_layer if prepared.cfg.trainer.gradient_checkpointing else layers * per_layer


def disk_parts(prepared: Prepared) -> dict[str, tuple[str, int]]:
    """What will be written, as name -> (folder key, bytes)."""
    cfg = prepared.cfg
    fp32 = 4 * prepared.size.parameters
    cached = cached_stages(prepared)
    parts = {
        f"{role} model": ("cache_dir", fp32)
        for role, source in (("target", prepared.sources.target), ("reference", prepared.sources.reference))
        if source == TRAIN and not cached[role]
    }
    if cfg.trainer.save_model and prepared.trains:
        parts["final model"] = ("output_dir", weight_bytes(cfg) * prepared.size.parameters)
    return parts


def cached_stages(prepared: Prepared) -> dict[str, bool]:
    """Which of target and reference are trained here and done already."""
    from unlearn.models.stages import Stages

    stages = Stages(prepared.cfg, prepared.benchmark, prepared.tokenizer, prepared.encoder, prepared.device)
    benchmark, sources = prepared.benchmark, prepared.sources
    roles = {"target": (sources.target, benchmark.train), "reference": (sources.reference, benchmark.reference_train)}
    return {
        role: stages.cache.has("models", stages.key(examples))
        for role, (source, examples) in roles.items()
        if source == TRAIN
    }


def check_disk(prepared: Prepared) -> None:
    """Raises UserError with the sum where the disk cannot hold what will be written."""
    for key in ("cache_dir", "output_dir"):
        needed = sum(size for folder, size in disk_parts(prepared).values() if folder == key)
        free = free_bytes(Path(getattr(prepared.cfg, key)))
        if needed > free:
            raise UserError(
                f"{key}: needs {human(needed)} for {', '.join(disk_parts(prepared))}, found {human(free)} free in "
                f"'{getattr(prepared.cfg, key)}'; choose another folder"
            )


def free_bytes(folder: Path) -> int:
    place = folder.expanduser().absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def human(count: float) -> str:
    """Bytes with a unit: 1.2 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
