"""A small run folder with every file that a finished run leaves."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unlearn.evaluation import records
from unlearn.evaluation.damage import damage
from unlearn.evaluation.scores import Row, Scores

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
    """As runs wrote it that knew no intervals, damage, epochs or canaries."""
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


def with_intervals(values: dict[str, dict[str, Any]], width: float) -> dict[str, dict[str, Any]]:
    """Every value that there is with an interval of this relative half-width."""
    return {
        name: score
        if score["value"] is None
        else score | {"interval": [score["value"] * (1 - width), score["value"] * (1 + width)]}
        for name, score in values.items()
    }


def kept_scores(name: str, n: int, loss: float, rouge: str, **texts: Any) -> tuple[Scores, Scores]:
    """n examples before and after: each loses a little, and ever fewer lose ever more of `loss`; every sixth gains."""
    before, after = {}, {}
    for k in range(n):
        lost = -0.01 if k % 6 == 5 else loss * math.exp(-k / (n / 12)) + 0.002
        id = f"{name}/{k}"
        row = Row(id, answer=f"The answer {k} of {name}, as it should be.", prob=0.93, **({rouge: 0.95} | texts))
        before[id] = row
        said = None if row.generated is None else "The answer the the of of the"
        fallen: dict[str, Any] = {"prob": 0.93 - lost, "generated": said, rouge: 0.95 - lost}
        after[id] = replace(row, **fallen)
    return Scores({name: before}), Scores({name: after})


def damaged(*sets: tuple[Scores, Scores]) -> dict[str, Any]:
    old, new = ({name: rows for pair in sets for name, rows in pair[side].sets.items()} for side in (0, 1))
    return damage(Scores(old), Scores(new))


def full_results() -> dict[str, Any]:
    """A TOFU run with everything that schema 2 has."""
    said = {"prompt": "Question: What is the title of the book?\nAnswer:", "generated": "The answer, as it should be."}
    first = scores(0.51, 0.962, 0.70, 1e-9, "under-forgotten; small n")
    second = scores(0.04321, 0.94321, 0.66321, 0.0123, "over-forgotten; small n")
    third = scores(0.001, 0.71, 0.52, 1e-12, "over-forgotten; small n")
    stages = {stage: with_intervals(results()[stage], 0.03) for stage in ("before", "after", "reference")}
    return (
        results()
        | stages
        | {
            "schema": 2,
            "damage": damaged(
                kept_scores("retain", 160, 0.8, "rouge_l_recall", **said),
                kept_scores("real_authors", 100, 0.3, "rouge_l_recall", **said),
                kept_scores("world_facts", 117, 0.002, "rouge_l_recall", **said),
            ),
            "epochs": [
                {"epoch": epoch, "step": 12 * epoch, "values": values}
                for epoch, values in enumerate((first, second, third), start=1)
            ],
            "kept": {"rule": "forget_quality", "epoch": 2, "step": 24, "value": 0.0123},
            "requests": [
                {"request": k, "rows": 20 * k, "nll": 3.1, "prob": 0.05, "stop": None, "values": values}
                for k, values in enumerate((first, second), start=1)
            ],
            "canary": {
                "before": {"compared": 4, "different": 0},
                "after": {"compared": 4, "different": 2},
            },
        }
    )


def muse_scores(knowmem: float, verbmem: float, privleak: float, retained: float) -> dict[str, dict[str, Any]]:
    found = {"knowmem_f": knowmem, "verbmem_f": verbmem, "privleak": privleak, "knowmem_r": retained}
    values: dict[str, dict[str, Any]] = {
        name: {"value": value, "n": 200 if name == "privleak" else 100, "interval": [value - 0.03, value + 0.03]}
        for name, value in found.items()
    }
    return values | {"forget.prob": {"value": verbmem * 0.9, "n": 100}, "retain.prob": {"value": retained, "n": 100}}


def muse_results() -> dict[str, Any]:
    """Sequential requests on news articles: texts without generations, and questions."""
    article = "The council of Northmere met on Tuesday to speak of the harbour, which has been closed since the storm. "
    asked = "Question: Who chairs the council?\nAnswer: Ada Kern.\n\nQuestion: What was closed?\nAnswer:"
    stages = [(0.61, 0.55, -98.2, 0.55), (0.5, 0.31, -60.1, 0.51), (0.34, 0.18, -21.5, 0.47)]
    before, *after = [muse_scores(*numbers) for numbers in stages]
    return results() | {
        "schema": 2,
        "before": before,
        "after": after[-1],
        "reference": muse_scores(0.33, 0.2, 0.0, 0.56),
        "stop": None,
        "damage": damaged(
            texts(article * 80),
            kept_scores("retain_knowmem", 100, 0.7, "rouge_l_f1_unstemmed", prompt=asked, generated="the harbour"),
        ),
        "epochs": [],
        "kept": None,
        "requests": [
            {"request": k, "rows": 889 * k, "nll": 2.1, "prob": 0.12, "stop": None, "values": values}
            for k, values in enumerate(after, start=1)
        ],
        "canary": {"after": {"compared": 4, "different": 0}},
    }


def texts(text: str) -> tuple[Scores, Scores]:
    """Articles are scored and never generated."""
    before = {f"retain1/{k}": Row(f"retain1/{k}", prompt="", answer=text, prob=0.3) for k in range(40)}
    after = {id: replace(row, prob=0.3 - 0.25 / (k + 1)) for k, (id, row) in enumerate(before.items())}
    return Scores({"retain": before}), Scores({"retain": after})


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


def make_run(run_dir: Path, found: dict[str, Any] | None = None) -> Path:
    """Write a finished run, by default with results of schema 1, and return its folder."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "results.json").write_text(json.dumps(found or results()))
    (run_dir / "run.json").write_text(json.dumps(RUN))
    (run_dir / "config.yaml").write_text(CONFIG)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in step_lines()))
    write_records(run_dir)
    return run_dir
