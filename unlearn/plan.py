"""Everything that can be known, and can go wrong, before a model is loaded: data, sources, rows, device, memory,
disk.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearn import ranks
from unlearn.config import RunConfig
from unlearn.console import log
from unlearn.data.benchmark import Benchmark, EvalSet
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
    """A run that is ready to begin.

    rows      what is trained on, or watched while training: forget, retain, holdout
    requests  forget rows of each removal request, in order
    evaluated what is measured, by set (the benchmark's and others); empty where nothing is
    scored    its rows
    """

    cfg: RunConfig
    benchmark: Benchmark
    sources: Sources
    tokenizer: Any
    encoder: Encoder
    rows: dict[str, list[Row]]
    alternates: dict[str, list[Row]]
    requests: tuple[int, ...]
    evaluated: dict[str, EvalSet]
    scored: dict[str, list[Row]]
    device: torch.device
    size: ModelSize

    @property
    def trains(self) -> bool:
        return bool(self.cfg.method.sides)

    @property
    def pairing(self) -> Pairing:
        from unlearn.training.feed import pairing

        return pairing(self.cfg, self.requests, len(self.rows["retain"]))

    @property
    def steps(self) -> int:
        return self.pairing.total if self.trains else 0


def prepare(cfg: RunConfig) -> Prepared:
    """Check everything that a run depends on. Raises UserError."""
    from unlearn.data import benchmarks
    from unlearn.models import sources as model_sources
    from unlearn.models import stages
    from unlearn.models.adapter import check_quantization

    check_writable(Path(cfg.output_dir), "output_dir")
    if (Path(cfg.output_dir) / "run.json").exists():
        raise UserError(f"output_dir: needs a new folder; '{cfg.output_dir}' holds a run already")
    check_writable(Path(cfg.cache_dir), "cache_dir")
    benchmark = benchmarks.load(cfg.data)
    sources = model_sources.resolve(cfg, benchmark)
    tokenizer = stages.tokenizer_for(cfg, benchmark, sources)
    encoder = Encoder(tokenizer, cfg.model.format, cfg.model.max_length)
    # Before the rows are encoded: that takes seconds, and a fault of the model is known without them.
    device = pick_device(cfg)
    check_quantization(cfg.model.adapter, device)
    size = measure(cfg, sources, tokenizer)
    sets = {"forget": benchmark.sets["forget"], "retain": benchmark.retained, "holdout": benchmark.sets["holdout"]}
    rows = {name: encoder.answers(examples) for name, examples in sets.items()}
    alternates = load_alternates(cfg, sets, benchmark.requests, encoder)
    evaluated = evaluated_sets(cfg, benchmark)
    prepared = Prepared(
        cfg,
        benchmark,
        sources,
        tokenizer,
        encoder,
        rows,
        alternates,
        requests_in_rows(benchmark, rows["forget"]),
        evaluated,
        scored_rows(cfg, evaluated, encoder),
        device,
        size,
    )
    if sources.reference_is_log and evaluated:
        check_reference(prepared)
    check_disk(prepared)
    return prepared


def check_reference(prepared: Prepared) -> None:
    """Scores that stand in for a reference model must be of the same rows and the same model. Raises UserError."""
    from unlearn.evaluation.references import fits, other_model, read_reference, unknown_model

    model = prepared.cfg.model
    reference = read_reference(Path(prepared.sources.reference or ""))
    faults = [fault for fault in (fits(reference, prepared.scored), other_model(reference, model)) if fault]
    if faults:
        raise UserError([f"model.reference: {fault}" for fault in faults])
    if warning := unknown_model(reference, model):
        log.warning("warning: model.reference: %s", warning)


def evaluated_sets(cfg: RunConfig, benchmark: Benchmark) -> dict[str, EvalSet]:
    """The sets that the suite measures, with what is asked of a model about them. Raises UserError."""
    from unlearn.data import wmdp

    suite = cfg.suite
    if suite.tasks:
        from unlearn.evaluation import harness

        harness.check(suite)
    sets = {**(benchmark.evaluated if suite.benchmark else {}), **wmdp.load(suite)}
    limits = {name: None if each.max_new_tokens is None or not suite.generate else suite.max_new_tokens or
              each.max_new_tokens for name, each in sets.items()}  # fmt: skip
    return {name: replace(each, max_new_tokens=limits[name]) for name, each in sets.items()}


def scored_rows(cfg: RunConfig, sets: dict[str, EvalSet], encoder: Encoder) -> dict[str, list[Row]]:
    """Every answer to every prompt, by set. Raises UserError."""
    paraphrased = cfg.suite.paraphrased_questions
    return {name: encoder.variants(each.examples, each.max_new_tokens or 0, paraphrased) for name, each in sets.items()}


def requests_in_rows(benchmark: Benchmark, rows: list[Row]) -> tuple[int, ...]:
    """Rows of each removal request; a text has one for each of its windows ("forget/3#0", "forget/3#1")."""
    windows = Counter(row.id.rpartition("#")[0] or row.id for row in rows)
    counts = [windows[example.id] for example in benchmark.sets["forget"]]
    ends = list(accumulate(benchmark.requests))
    return tuple(sum(counts[end - size : end]) for size, end in zip(benchmark.requests, ends, strict=True))


def load_alternates(
    cfg: RunConfig, sets: dict[str, tuple[Example, ...]], requests: Sequence[int], encoder: Encoder
) -> dict[str, list[Row]]:
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
            pairs = pairing(cfg, requests, len(sets["retain"]))
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
    """The device asked for, or the first there is of cuda, mps, cpu: in each process its own. Raises UserError where
    there are none, or fewer than processes.
    """
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    wanted = cfg.trainer.device
    if wanted == "auto":
        wanted = next(name for name, present in there.items() if present)
    if not there[wanted]:
        raise UserError(f"trainer.device: needs a {wanted} device, found none; use trainer.device=auto")
    device = torch.device(wanted)
    ranks.check_device(device, cfg.trainer.devices)
    return device


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
