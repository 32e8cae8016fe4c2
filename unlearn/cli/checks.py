"""Checks of the whole typed tree: ranges, settings that exclude one another, settings that have no effect."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

from unlearn.cli.data_checks import data_faults, data_idle
from unlearn.cli.keys import needs, show
from unlearn.cli.method_checks import method_faults
from unlearn.cli.method_warnings import Idle, method_idle, method_warnings
from unlearn.cli.suite_checks import suite_faults, suite_idle
from unlearn.config import RunConfig
from unlearn.errors import UserError
from unlearn.models.hub import looks_like_folder
from unlearn.models.sources import TRAIN, choose
from unlearn.schedulers.autolr import AutoLR
from unlearn.setting import permits

ROUNDS_AWAY_BELOW = 1e-4
"""Learning rates under which most updates of bf16 weights are rounded to nothing: bf16 keeps 8 bits of a weight."""


def check_ranges(cfg: Any, prefix: str = "") -> list[str]:
    """Every value of a tree of dataclasses that is outside its range or not finite, one line each."""
    faults: list[str] = []
    for item in dataclasses.fields(cfg):
        key, value = f"{prefix}{item.name}", getattr(cfg, item.name)
        if dataclasses.is_dataclass(value):
            faults += check_ranges(value, f"{key}.")
        elif isinstance(value, dict):
            for name, inner in value.items():
                faults += check_ranges(inner, f"{key}.{name}.") if dataclasses.is_dataclass(inner) else []
        elif not permits(item.metadata, value):
            faults.append(f"{key}: needs {needs(cfg, item.name)}; found {show(value)}")
        elif isinstance(value, float) and not math.isfinite(value):
            faults.append(f"{key}: needs a finite number; found {show(value)}")
    return faults


def cross_checks(cfg: RunConfig) -> list[str]:
    """Settings that cannot go together, one line each."""
    faults: list[str] = []
    lr = cfg.scheduler
    if isinstance(lr, AutoLR) and lr.min_lr > lr.max_lr:
        faults.append(f"scheduler.min_lr: needs at most scheduler.max_lr ({lr.max_lr:g}); found {lr.min_lr:g}")
    if cfg.model.path is None:
        tiny = cfg.model.tiny
        # Rotary embeddings turn pairs of dimensions within each head.
        if tiny.heads >= 1 and tiny.hidden_size % (2 * tiny.heads):
            faults.append(
                f"model.tiny.hidden_size: needs a multiple of 2 * model.tiny.heads ({2 * tiny.heads}); "
                f"found {tiny.hidden_size}"
            )
    if cfg.model.path is None and cfg.model.name != "tiny" and cfg.model.target in ("auto", "train", "self"):
        faults.append(f"model.path: needs a hub id or a folder for model={cfg.model.name}; found null")
    if cfg.model.format.prompt is not None and "{question}" not in cfg.model.format.prompt:
        faults.append(
            f"model.format.prompt: needs {{question}} where the question goes; found {show(cfg.model.format.prompt)}"
        )
    if cfg.output_dir.startswith("~") or not cfg.output_dir.strip():
        faults.append(f"output_dir: needs a folder, written without ~; found {show(cfg.output_dir)}")
    for check in (lambda: choose(cfg, ""), cfg.optimizer.check, cfg.model.adapter.check):
        try:
            check()
        except UserError as error:
            faults += error.messages
    return faults + data_faults(cfg) + method_faults(cfg) + suite_faults(cfg)


def folder_fault(key: str, folder: str) -> str | None:
    """Why a folder can be neither used nor made, as far as that can be told without making it."""
    path = Path(folder)
    nearest = next((step for step in (path, *path.absolute().parents) if step.exists()), Path("/"))
    if not nearest.is_dir():
        return f"{key}: needs a folder; {nearest} is a file"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{key}: cannot write to {nearest}; choose another folder, as in {key}=/path/to/folder"
    return None


def no_effect(cfg: RunConfig, touched: set[str] | frozenset[str]) -> list[str]:
    """Warnings, one line each: what the user set (`touched`, dotted keys) and has no effect, and odd combinations."""
    warned: dict[str, str] = {}
    elsewhere = [*data_idle(cfg), *suite_idle(cfg), *_idle_elsewhere(cfg)]
    for key, when, why in [*_idle_training(cfg, touched), *method_idle(cfg, touched), *elsewhere]:
        if when:
            for name in sorted(touched):
                if name == key or name.startswith(f"{key.removesuffix('.')}."):
                    warned.setdefault(name, f"{name}: has no effect, because {why}")
    return [*warned.values(), *_combinations(cfg)]


def _idle_training(cfg: RunConfig, touched: set[str] | frozenset[str]) -> list[Idle]:
    method, trainer = cfg.method, cfg.trainer
    nothing_trained = not method.sides
    why = "method/forget and method/retain are none: nothing is trained"
    steps = ("epochs", "max_steps", "batch_size", "micro_batch_size", "gradient_checkpointing", "clip_norm", "stop")
    stops = ("stop_forget_nll", "stop_forget_prob", "stop_retain_ratio", "params", "layers", "start_model_on_host")
    keys = ["scheduler", "optimizer", "model.adapter", "method.combine", "data.anchor", "data.requests"]
    keys += [f"trainer.{name}" for name in (*steps, *stops)]
    micro = trainer.micro_batch_size
    return [
        *(Idle(key, nothing_trained, why) for key in keys),
        Idle("trainer.epochs", trainer.max_steps is not None, f"trainer.max_steps={trainer.max_steps} decides"),
        Idle(
            "trainer.micro_batch_size",
            micro is not None and micro > trainer.batch_size,
            f"trainer.batch_size={trainer.batch_size} is smaller",
        ),
        Idle("data.anchor", "forget" not in method.sides, "there is one objective only"),
        Idle("trainer.save_model", nothing_trained, why),
        Idle("model.lr", nothing_trained, why),
        Idle(
            "trainer.stop",
            trainer.stop in ("holdout", "reference") and "forget" not in method.sides,
            "method/forget=none",
        ),
        Idle(
            "scheduler.probe_batches",
            isinstance(cfg.scheduler, AutoLR) and cfg.scheduler.probe != "fresh",
            "scheduler.probe is not fresh",
        ),
        Idle("model.lr", "optimizer.lr" in touched, "optimizer.lr is set too"),
    ]


def _idle_elsewhere(cfg: RunConfig) -> list[Idle]:
    model, own, chosen = cfg.model, cfg.model.path is not None, choose(cfg, "")
    return [
        Idle("model.path", TRAIN not in chosen and model.path not in chosen, "target and reference are given"),
        Idle("model.tiny", own, "model.path is set: the embedded model is not used"),
        Idle("model.revision", not own, "model.path is null: the embedded model is used"),
        Idle("model.revision", own and looks_like_folder(model.path or ""), "model.path is a folder"),
        Idle("model.reference", not cfg.suite.measures, f"suite={cfg.suite.name} measures nothing"),
        Idle("model.tokenizer", not own, "the embedded model makes its own tokenizer"),
        Idle("model.finetune", TRAIN not in chosen, "neither the target nor the reference is trained here"),
        Idle("model.format.system", model.format.prompt is not None, "model.format.prompt replaces the chat template"),
        Idle("data.hub_id", cfg.data.source != "hub", f"data.source={cfg.data.source}"),
        Idle("logger.", cfg.logger.name == "none", "logger=none"),
    ]


def _combinations(cfg: RunConfig) -> list[str]:
    lines = method_warnings(cfg)
    lr = cfg.optimizer.lr
    # The parameters of an adapter are in fp32 whatever the precision of the model.
    in_bf16 = cfg.trainer.precision == "bf16" and cfg.model.adapter.name == "none"
    if in_bf16 and lr < ROUNDS_AWAY_BELOW and cfg.method.sides:
        lines.append(
            f"trainer.precision=bf16: at optimizer.lr={lr:g} most updates round to nothing; "
            "bf16_mixed keeps fp32 master weights"
        )
    return lines
