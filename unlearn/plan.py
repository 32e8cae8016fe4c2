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
from unlearn.data.example import Example
from unlearn.errors import UserError
from unlearn.gradients.combine import RuleState
from unlearn.models.sources import TRAIN, Sources
from unlearn.schedulers.autolr import AutoLR

if TYPE_CHECKING:
    import torch

    from unlearn.data.batches import Pairing

LEAST_FREE = 2**20
"""Bytes without which not even a log can be written."""

ADAPTER_BYTES = 4
"""Of one parameter of an adapter: peft keeps them in fp32, whatever the precision of the model."""

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Of one parameter packed to 4 bits, with an 8-bit constant per 64 and an fp32 one per 64 * 256 of them."""

FEW_STEPS = 20
"""Fewer optimizer steps than this hardly move a model, and methods look alike."""


@dataclass(frozen=True)
class ModelSize:
    """The model in numbers, known from its config.

    parameters  of the model itself
    layers      decoder layers
    width       of a hidden state
    trainable   parameters that are trained: some or all of the model's, or of its adapter
    adapter     parameters that an adapter adds
    linear      parameters that can be packed to 4 bits
    """

    parameters: int
    layers: int
    width: int
    trainable: int
    adapter: int = 0
    linear: int = 0


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to begin."""

    cfg: RunConfig
    benchmark: Benchmark
    sources: Sources
    tokenizer: Any
    encoder: Encoder
    rows: dict[str, list[Row]]
    alternates: dict[str, list[Row]]
    device: torch.device
    size: ModelSize

    @property
    def trains(self) -> bool:
        return trains(self.cfg)

    @property
    def pairing(self) -> Pairing:
        from unlearn.training.feed import pairing

        return pairing(self.cfg, len(self.rows["forget"]), len(self.rows["retain"]))

    @property
    def steps(self) -> int:
        return self.pairing.total if self.trains else 0


def prepare(cfg: RunConfig) -> Prepared:
    """Check everything that a run depends on. Raises UserError."""
    from unlearn.data import tofu
    from unlearn.models import sources as model_sources
    from unlearn.models import stages
    from unlearn.models.adapter import check_quantization

    check_writable(Path(cfg.output_dir), "output_dir")
    if (Path(cfg.output_dir) / "run.json").exists():
        raise UserError(f"output_dir: needs a new folder; '{cfg.output_dir}' holds a run already")
    check_writable(Path(cfg.cache_dir), "cache_dir")
    benchmark = tofu.load(cfg.data)
    sources = model_sources.resolve(cfg, benchmark)
    tokenizer = stages.tokenizer_for(cfg, benchmark, sources)
    encoder = Encoder(tokenizer, cfg.model.format, cfg.model.max_length)
    sets = {"forget": benchmark.sets["forget"], "retain": benchmark.retained, "holdout": benchmark.sets["holdout"]}
    rows = {name: encoder.answers(examples) for name, examples in sets.items()}
    for examples in benchmark.evaluated().values():
        encoder.variants(examples)
    device = pick_device(cfg)
    check_quantization(cfg.model.adapter, device)
    size = measure(cfg, sources, tokenizer)
    alternates = load_alternates(cfg, sets, encoder)
    prepared = Prepared(cfg, benchmark, sources, tokenizer, encoder, rows, alternates, device, size)
    check_disk(prepared)
    return prepared


def load_alternates(cfg: RunConfig, sets: dict[str, tuple[Example, ...]], encoder: Encoder) -> dict[str, list[Row]]:
    """Other answers to the rows of the objectives that need them, by the id of the row. Raises UserError."""
    from unlearn.data import alternates

    found: dict[str, list[Row]] = {}
    for side, objective in (("forget", cfg.method.forget), ("retain", cfg.method.retain)):
        if "alternates" in objective.needs and cfg.method.alternates is not None:
            found |= alternates.load(cfg.method.alternates, sets[side], encoder, cfg.seed)
    return found


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
    """The model's size, from its shape alone.

    Raises UserError where rows may exceed its window, or where it does not have the layers and parameters that are to
    be trained.
    """
    from unlearn.models.adapter import attach, linear_layers
    from unlearn.models.trainable import check_selection

    model = _shape(cfg, sources, tokenizer)
    depth, width = model.config.num_hidden_layers, model.config.hidden_size
    parameters = sum(parameter.numel() for parameter in model.parameters())
    linear = sum(layer.weight.numel() for layer in linear_layers(model).values())
    if not trains(cfg):
        return ModelSize(parameters, depth, width, 0, linear=linear)
    sizes = {name: tensor.numel() for name, tensor in attach(model, cfg.model.adapter).named_parameters()}
    trainable = sum(sizes[name] for name in check_selection(cfg, list(sizes), depth))
    return ModelSize(parameters, depth, width, trainable, sum(sizes.values()) - parameters, linear)


def _shape(cfg: RunConfig, sources: Sources, tokenizer: Any) -> Any:
    """The model without its weights, or the tiny model with random ones."""
    import torch
    from transformers import AutoModelForCausalLM

    from unlearn.models import load

    path = cfg.model.path if sources.target == TRAIN else sources.target
    if path is None:
        return load.tiny_model(cfg.model.tiny, tokenizer, cfg.model.max_length, cfg.seed)
    shape = load.load_shape(cfg.model, path)
    window = getattr(shape, "max_position_embeddings", None)
    if window is not None and cfg.model.max_length > window:
        raise UserError(f"model.max_length: needs at most the model's window of {window}; found {cfg.model.max_length}")
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(shape, trust_remote_code=cfg.model.trust_remote_code)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"model.path: '{path}' is no causal language model: {reason[:200]}") from error


def trains(cfg: RunConfig) -> bool:
    return bool(cfg.method.forget.active or cfg.method.retain.active)


def weight_bytes(cfg: RunConfig) -> int:
    """Bytes of one parameter of the model; an adapter's are always in fp32."""
    return 2 if cfg.trainer.precision == "bf16" else 4


def memory_parts(prepared: Prepared) -> dict[str, int]:
    """Estimated device memory of the training step by part, in bytes."""
    cfg, size = prepared.cfg, prepared.size
    method = cfg.method
    needs = method.forget.needs | method.retain.needs
    adapted = size.adapter > 0
    model = size.parameters * weight_bytes(cfg)
    if cfg.model.adapter.quantized:
        model -= round(size.linear * (weight_bytes(cfg) - NF4_BYTES))
    trained = size.trainable * (ADAPTER_BYTES if adapted else weight_bytes(cfg))
    two_gradients = method.combine.ahead(RuleState()) is None or method.separate_states
    asks_start = needs & {"reference_logits", "reference_hidden"}
    frozen = asks_start and not adapted and not cfg.trainer.reference_on_host
    parts = {
        "weights": model,
        "adapter": size.adapter * ADAPTER_BYTES,
        "gradient": trained,
        "second gradient": trained if two_gradients else 0,
        "optimizer state": round(trained * cfg.optimizer.states) * (2 if method.separate_states else 1),
        "copy of the start model": model if frozen else 0,
        "reinforced model": model + size.adapter * ADAPTER_BYTES if "reinforced_logits" in needs else 0,
        "lr probe copies": 2 * trained if isinstance(cfg.scheduler, AutoLR) else 0,
        "copy for sharpness": trained if method.sam_rho is not None else 0,
        "saliency mask and copy": trained + size.trainable if method.saliency_std is not None else 0,
        **_batch_parts(prepared),
    }
    return {name: count for name, count in parts.items() if count}


def _batch_parts(prepared: Prepared) -> dict[str, int]:
    """What grows with the micro-batch."""
    cfg, rows = prepared.cfg, prepared.rows
    micro = cfg.trainer.micro_batch_size or cfg.trainer.batch_size
    tokens = micro * max(longest(rows["forget"]), longest(rows["retain"]))
    answers = micro * max(longest(those, lambda row: row.n_answer) for those in rows.values())
    # Two answers to one question are in memory at once, unless the true one is only measured.
    objectives = (cfg.method.forget, cfg.method.retain)
    both = any("alternates" in each.needs and each.unit != "alternate_token" for each in objectives)
    answers_at_once = 2 if both else 1
    return {
        "logits": answers_at_once * 3 * 4 * answers * len(prepared.tokenizer),
        "activations": answers_at_once * tokens * _activation_bytes_per_token(prepared),
    }


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
        apart = cfg.model.adapter.saved_apart
        final = ADAPTER_BYTES * prepared.size.adapter if apart else weight_bytes(cfg) * prepared.size.parameters
        parts["adapter" if apart else "final model"] = ("output_dir", final)
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
