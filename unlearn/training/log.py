"""The line that every optimizer step leaves in metrics.jsonl, and the words behind the progress bar."""

from __future__ import annotations

from typing import Any

from unlearn.gradients.collect import Combined

StepLog = dict[str, Any]


def step_line(step: int, epoch: float, combined: Combined, lr: float, tokens: int, seconds: float) -> StepLog:
    """One step's numbers; null is what the method does not have or its rule never saw apart."""
    gram = combined.gram
    return {
        "step": step + 1,
        "epoch": round(epoch, 4),
        "loss_forget": combined.forget.loss if combined.forget else None,
        "loss_retain": combined.retain.loss if combined.retain else None,
        "nll_forget": combined.forget.nll if combined.forget else None,
        "nll_retain": combined.retain.nll if combined.retain else None,
        "prob_forget": combined.forget.prob if combined.forget else None,
        "prob_retain": combined.retain.prob if combined.retain else None,
        "norm_forget": gram.norm_forget if gram else None,
        "norm_retain": gram.norm_retain if gram else None,
        "norm": combined.norm,
        "cosine": gram.cosine if gram else None,
        "weight_forget": combined.weights.forget,
        "weight_retain": combined.weights.retain,
        "lr": lr,
        "tokens_per_s": round(tokens / seconds, 1),
        "seconds": round(seconds, 4),
    }


def note(line: StepLog) -> str:
    """The numbers behind the progress bar."""
    words = {
        "nll_forget": "forget",
        "nll_retain": "retain",
        "norm_forget": "|gF|",
        "norm_retain": "|gR|",
        "cosine": "cos",
        "weight_forget": "wF",
        "weight_retain": "wR",
        "lr": "lr",
    }
    return " ".join(f"{word} {line[key]:.3g}" for key, word in words.items() if line.get(key) is not None)
