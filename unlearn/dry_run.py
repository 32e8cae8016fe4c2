"""The resolved plan of a run, in the words of somebody who is about to pay for it."""

from __future__ import annotations

from pathlib import Path

from unlearn import plan
from unlearn.data.encode import answer_tokens
from unlearn.memory import memory_parts
from unlearn.models.sources import TRAIN, uses_hub
from unlearn.plan import Prepared, human


def describe(prepared: Prepared) -> list[str]:
    """All lines of the plan."""
    cfg = prepared.cfg
    return [
        f"method     {cfg.method.name}: forget={cfg.method.forget.name} retain={cfg.method.retain.name} "
        f"combine={cfg.method.combine.name} scheduler={cfg.scheduler.name} optimizer={cfg.optimizer.name} "
        f"lr={cfg.optimizer.lr:g}",
        *_data(prepared),
        *_models(prepared),
        *_steps(prepared),
        *_memory(prepared),
        *_disk(prepared),
        f"output     {cfg.output_dir}",
    ]


def _data(prepared: Prepared) -> list[str]:
    benchmark = prepared.benchmark
    lines = [f"data       {benchmark.name} {benchmark.split} from {benchmark.source}"]
    lines += [f"           note: {label}" for label in benchmark.labels]
    prints, encoded = benchmark.fingerprints(), dict(prepared.rows)
    if "retained" in prints:
        # The retain objective sees other rows than the retain set: those are the ones that were encoded.
        encoded["retained"] = encoded.pop("retain")
    for name, print_ in prints.items():
        bare = name.removesuffix(", scored")
        trained = {**benchmark.sets, "retained": benchmark.retained}.get(name)
        count = len(trained) if trained is not None else len(benchmark.evaluated[bare].examples)
        rows = encoded.get(name) if trained is not None else prepared.scored[bare]
        if not count:
            continue
        words = f"{len(rows)} windows of {count} texts" if rows and len(rows) > count else f"{count} rows"
        if trained is not None and name in benchmark.evaluated and f"{name}, scored" not in prints:
            words += f", {len(benchmark.evaluated[name].examples)} scored"
        if rows:
            cut = sum(row.truncated for row in rows)
            words += f", {answer_tokens(rows)} answer tokens" + (f", {cut} truncated" if cut else "")
        lines.append(f"           {name}: {words} ({print_})")
    return lines


def _models(prepared: Prepared) -> list[str]:
    cached = plan.cached_stages(prepared)
    size, adapter = prepared.size, prepared.cfg.model.adapter.name
    lines = [f"model      {prepared.cfg.model.name}, {size.parameters:,} parameters, on {prepared.device}"]
    if prepared.trains:
        whose = f" of the {size.adapter:,} of adapter {adapter}" if size.adapter else ""
        lines.append(f"           trained: {size.trainable:,} parameters{whose}")
    for role, source in (("target", prepared.sources.target), ("reference", prepared.sources.reference)):
        if source is None:
            what = f"none ({prepared.sources.reason})"
        elif source == TRAIN:
            base = prepared.cfg.model.path or "random weights"
            what = f"trained here from {base}" + (", in the cache already" if cached[role] else "")
        else:
            what = source + (" on the hub" if uses_hub(source) else "")
        lines.append(f"           {role}: {what}")
    return lines


def _steps(prepared: Prepared) -> list[str]:
    if not prepared.trains:
        return ["steps      none: evaluation only"]
    trainer, pairs, steps = prepared.cfg.trainer, prepared.pairing, prepared.steps
    micro = trainer.micro_batch_size or trainer.batch_size
    how = (
        f"trainer.max_steps = {steps}"
        if trainer.max_steps
        else f"{pairs.n_anchor} {pairs.anchor} rows / {trainer.batch_size} per step -> {pairs.steps_per_epoch} steps "
        f"per epoch x {trainer.epochs} epochs = {steps} optimizer steps"
    )
    if pairs.requests > 1:
        how += f", for {pairs.requests} removal requests one after the other"
    lines = [
        f"steps      {how}",
        f"           each step: up to {trainer.batch_size} rows of each kind in micro-batches of {micro}; "
        f"stop={trainer.stop}",
    ]
    if steps < plan.FEW_STEPS:
        lines.append(
            f"           warning: under {plan.FEW_STEPS} steps hardly change a model; raise trainer.epochs or lower "
            "trainer.batch_size"
        )
    return lines


def _memory(prepared: Prepared) -> list[str]:
    if not prepared.trains:
        return []
    parts = memory_parts(prepared)
    lines = [f"memory     about {human(sum(parts.values()))} on the device while training"]
    return lines + [f"           {name}: {human(size)}" for name, size in parts.items()]


def _disk(prepared: Prepared) -> list[str]:
    lines = []
    for key in ("cache_dir", "output_dir"):
        folder = getattr(prepared.cfg, key)
        parts = {name: size for name, (where, size) in plan.disk_parts(prepared).items() if where == key}
        words = ", ".join(f"{name} {human(size)}" for name, size in parts.items()) or "no weights"
        free = human(plan.free_bytes(Path(folder)))
        lines.append(f"disk       {key} {folder}: {words}; {free} free")
    return lines
