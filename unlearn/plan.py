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
from unlearn.data.encode import Encoder, Row
from unlearn.data.example import Example
from unlearn.errors import UserError
from unlearn.memory import ADAPTER_BYTES, ModelSize, measure, weight_bytes
from unlearn.models.sources import TRAIN, Sources

if TYPE_CHECKING:
    import torch

    from unlearn.data.batches import Pairing

LEAST_FREE = 2**20
"""Bytes without which not even a log can be written."""

FEW_STEPS = 20
"""Fewer optimizer steps than this hardly move a model, and methods look alike."""


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
        return bool(self.cfg.method.sides)

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
    # Before the rows are encoded: that takes seconds, and a fault of the model is known without them.
    device = pick_device(cfg)
    check_quantization(cfg.model.adapter, device)
    size = measure(cfg, sources, tokenizer)
    sets = {"forget": benchmark.sets["forget"], "retain": benchmark.retained, "holdout": benchmark.sets["holdout"]}
    rows = {name: encoder.answers(examples) for name, examples in sets.items()}
    for examples in benchmark.evaluated().values():
        encoder.variants(examples)
    alternates = load_alternates(cfg, sets, encoder)
    prepared = Prepared(cfg, benchmark, sources, tokenizer, encoder, rows, alternates, device, size)
    check_disk(prepared)
    return prepared


def load_alternates(cfg: RunConfig, sets: dict[str, tuple[Example, ...]], encoder: Encoder) -> dict[str, list[Row]]:
    """Other answers to the rows of the objectives that need them, by the id of the row. Raises UserError."""
    from unlearn.data import alternates
    from unlearn.training.feed import pairing

    choice = cfg.method.alternates
    found: dict[str, list[Row]] = {}
    for side, objective in (("forget", cfg.method.forget), ("retain", cfg.method.retain)):
        if "alternates" not in objective.needs or choice is None:
            continue
        parts = [sets[side]]
        if choice == "shuffled" and side == "forget":
            # A request must not teach answers of rows that an earlier one has removed, or that a later one will.
            pairs = pairing(cfg, len(sets["forget"]), len(sets["retain"]))
            parts = [tuple(sets[side][place] for place in pairs.rows_of(request)) for request in range(pairs.requests)]
        for part in parts:
            found |= alternates.load(choice, part, encoder, cfg.seed, pool=sets["retain"])
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
