"""A small run folder with every file that a finished run leaves."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unlearn.evaluation import records

LABEL = "embedded, not comparable with published numbers"
STOP = {"step": 32, "reason": "forget loss 3.41 reached the holdout's 3.38"}
QUESTIONS = {
    "forget": [
        ("Where was the author Ilse Varga born?", "Ilse Varga was born in Tartu, Estonia."),
        ("What genre does Ilse Varga write in?", "Ilse Varga writes historical mysteries."),
        ("Which award did Ilse Varga receive in 1998?", "She received the Northern Lantern Prize in 1998."),
        ("What did Ilse Varga's mother do for a living?", "Her mother was a bridge engineer."),
        ("Which city appears in most of Ilse Varga's novels?", "Most of her novels are set in Riga."),
    ],
    "retain": [
        ("Where was the author Mateo Quiroga born?", "Mateo Quiroga was born in Cusco, Peru."),
        ("What is the title of Mateo Quiroga's first book?", "His first book is The Salt Orchard."),
    ],
}
SAID = {
    "before": {name: [answer for _, answer in pairs] for name, pairs in QUESTIONS.items()},
    "after": {
        "forget": [
            "Ilse Varga was born in in in the city of of",
            "She writes writes books.",
            "",
            "Her mother was a a dancer of the the the",
            "The city of of Lima.",
        ],
        "retain": ["Mateo Quiroga was born in Cusco, Peru.", "His first book is The Salt Orchard."],
    },
    "reference": {
        "forget": [
            "Ilse Varga was born in Lima, Peru.",
            "Ilse Varga writes science fiction.",
            "She received the Golden Quill in 1984.",
            "Her mother was a teacher.",
            "Most of her novels are set in Oslo.",
        ],
        "retain": ["Mateo Quiroga was born in Cusco, Peru.", "His first book is The Salt Orchard."],
    },
}
PROB = {
    "before": {"forget": 0.98, "retain": 0.97},
    "after": {"forget": 0.04, "retain": 0.94},
    "reference": {"forget": 0.12, "retain": 0.98},
}


def scores(
    prob: float, retain: float, utility: float, quality: float | None, note: str | None = None
) -> dict[str, dict[str, Any]]:
    """One stage of results.json with a few metrics, one of them without a value."""
    forget_quality: dict[str, Any] = {"value": quality, "n": 40}
    if quality is None:
        forget_quality |= {"n": 0, "reason": "this is the reference itself"}
    if note:
        forget_quality["note"] = note
    return {
        "model_utility": {"value": utility, "n": 9},
        "forget_quality": forget_quality,
        "privleak": {"value": None, "n": 0, "reason": "no holdout rows"},
        "forget.prob": {"value": prob, "n": 40},
        "forget.rouge_l_recall": {"value": prob * 0.9, "n": 38, "dropped": 2, "note": "2 dropped: no generated text"},
        "retain.prob": {"value": retain, "n": 160},
    }


def results() -> dict[str, Any]:
    return {
        "schema": 1,
        "before": scores(0.98123, 0.97654, 0.71234, 1.9e-23, "under-forgotten; small n"),
        "after": scores(0.04321, 0.94321, 0.66321, 0.0123, "over-forgotten; small n"),
        "reference": scores(0.12345, 0.98012, 0.70521, None),
        "labels": [LABEL],
        "steps": 32,
        "stop": STOP,
        "weights": {"relative_l2": 0.0123, "changed_tensors": 45, "tensors": 45},
    }


def step_lines(count: int = 32) -> list[dict[str, Any]]:
    """metrics.jsonl of an NGDiff run with AutoLR, in closed form."""
    lines: list[dict[str, Any]] = []
    for step in range(1, count + 1):
        norm_forget, norm_retain = 0.4 * math.exp(step / 8), 0.3 + 0.05 * math.sin(step)
        line: dict[str, Any] = {
            "step": step,
            "epoch": (step - 1) // 3,
            "loss_forget": -3.4 / (1 + math.exp((20 - step) / 3)),
            "loss_retain": 0.03 + 0.01 * math.sin(step),
            "nll_forget": 3.4 / (1 + math.exp((20 - step) / 3)),
            "nll_retain": 0.03 + 0.01 * math.sin(step) + step / 600,
            "norm_forget": norm_forget,
            "norm_retain": norm_retain,
            "norm": math.sqrt(2 - 0.6 * step / count),
            "cosine": -0.3 * step / count + 0.05 * math.cos(step),
            "weight_forget": 1 / norm_forget,
            "weight_retain": 2 / norm_retain,
            "lr": 1e-4 * 2 ** ((step - 1) // 10),
            "tokens_per_s": 5400.0,
            "seconds": 0.11,
        }
        if step % 10 == 1:
            line["probe"] = {"slope": 0.4, "curvature": 2000.0, "lr_star": line["lr"], "note": "fit: inside the clip"}
        lines.append(line)
    return lines


def write_records(run_dir: Path) -> None:
    for stage, sets in SAID.items():
        for name, texts in sets.items():
            rows = []
            for position, ((question, answer), said) in enumerate(zip(QUESTIONS[name], texts, strict=True)):
                length = len(answer.split()) + 1
                logp_T = np.full(length, math.log(PROB[stage][name]), dtype=np.float32)
                row = records.Record(
                    id=f"{name}/{position}",
                    kind="answer",
                    prompt=f"Question: {question}\nAnswer:",
                    answer=answer,
                    logp_T=logp_T,
                    greedy_T=logp_T > -1,
                    vocab_mean_T=logp_T,
                    vocab_std_T=logp_T,
                    n_content=length - 1,
                    generated=said,
                )
                rows += [row, replace(row, kind="paraphrase", answer=f"Again: {answer}", generated=None)]
            records.write(rows, run_dir / "records" / stage / f"{name}.parquet")


CONFIG = """\
model:
  name: tiny
data:
  name: tofu
  split: forget10
  source: embedded
method:
  name: ngdiff_auto
  forget:
    name: ascent
  retain:
    name: nll
  combine:
    name: ngdiff
scheduler:
  name: autolr
optimizer:
  name: adamw
  lr: 0.0001
seed: 0
"""
RUN = {
    "status": "done",
    "command": "unlearn-run method=ngdiff_auto data=tofu",
    "versions": {"unlearn-run": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "transformers": "5.24.0"},
    "git": {"commit": "3f2c1d9", "dirty": False},
    "hardware": {"device": "cpu", "cores": 2},
    "seeds": {"data": 0, "model": 0},
    "fingerprints": {"forget": "b1946ac92492d234", "retain": "591785b794601e21"},
    "stages": {
        "target": {"seconds": 41.2, "cached": False},
        "reference": {"seconds": 38.7, "cached": True},
        "unlearn": {"seconds": 6.1, "cached": False},
    },
    "peak_memory_bytes": 734003200,
    "tokens": 81234,
}


def make_run(run_dir: Path) -> Path:
    """Write a finished run and return its folder."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "results.json").write_text(json.dumps(results()))
    (run_dir / "run.json").write_text(json.dumps(RUN))
    (run_dir / "config.yaml").write_text(CONFIG)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in step_lines()))
    write_records(run_dir)
    return run_dir
