"""Who bears the brunt: what every example that should be kept has lost, and how few examples carry most of it.

A mean over a set hides that. Pruning was found to cost a few examples almost everything at an unchanged mean (Hooker
et al., 1911.05248).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from unlearn.evaluation.scores import Row, Scores

KEPT = ("retain", "real_authors", "world_facts", "retain_knowmem")
"""Sets of what should be kept, of all benchmarks."""

ROUGE = {"retain_knowmem": "rouge_l_f1_unstemmed"}
"""What a set's generated answers are compared by, where it is not the recall that TOFU takes."""

ROUNDING = 1e-6
"""A change up to this is no loss: two passes over the same weights differ by as much."""

LONGEST_TEXT = 400
"""Characters that are stored of each text of the worst examples."""


def damage(before: Scores, after: Scores) -> dict[str, Any]:
    """The change (before - after, so that a loss is positive) of every example, by set; ready for JSON.

    Each set that either side has gives

        ids    of all its examples
        prob   changes of the answer's probability exp(-nll), see `changes`
        rouge  the same of the generated answer's ROUGE-L, with its score's name; null where none was generated
        worst  the worst decile by probability, the largest loss first, as far as it lost anything: id, prompt, answer,
               and prob_before, prob_after, generated_before, generated_after
    """
    return {name: _of_set(name, before, after) for name in KEPT if before.rows(name) or after.rows(name)}


def _of_set(name: str, before: Scores, after: Scores) -> dict[str, Any]:
    olds, news = before.sets.get(name, {}), after.sets.get(name, {})
    ids = list(dict.fromkeys([*olds, *news]))
    pairs = [(olds.get(id, Row(id)), news.get(id, Row(id))) for id in ids]
    score = ROUGE.get(name, "rouge_l_recall")
    prob = changes([old.prob for old, _ in pairs], [new.prob for _, new in pairs])
    rouge = changes([getattr(old, score) for old, _ in pairs], [getattr(new, score) for _, new in pairs])
    worst = [pairs[k] for k in worst_decile(prob["changes"]) if prob["changes"][k] > ROUNDING]
    return {
        "ids": ids,
        "prob": prob,
        "rouge": {"score": score, **rouge} if rouge["n"] else None,
        "worst": [_told(old, new) for old, new in worst],
    }


def changes(before: Sequence[float | None], after: Sequence[float | None]) -> dict[str, Any]:
    """How one score of one set changed.

    changes               before - after of every example, null where it is not scored on both sides
    n, missing            examples with and without a change
    mean                  of the changes, null without any
    total                 damage: the sum of the losses; what others gained does not make up for it
    worst_decile          examples in the worst decile, ceil(n / 10)
    worst_decile_mean     mean loss of these; null without any
    worst_decile_share    their share of the total; null where nothing was lost
    lost_more_than_half   examples whose score fell below half of what it was
    """
    pairs = list(zip(before, after, strict=True))
    differences = [_difference(old, new) for old, new in pairs]
    known = [change for change in differences if change is not None]
    losses = sorted((change if change > ROUNDING else 0.0 for change in known), reverse=True)
    size = math.ceil(len(known) / 10)
    total, worst = math.fsum(losses), math.fsum(losses[:size])
    return {
        "changes": differences,
        "n": len(known),
        "missing": len(differences) - len(known),
        "mean": math.fsum(known) / len(known) if known else None,
        "total": total,
        "worst_decile": size,
        "worst_decile_mean": worst / size if size else None,
        "worst_decile_share": worst / total if total else None,
        "lost_more_than_half": sum(
            change is not None and old is not None and new is not None and change > ROUNDING and new < old / 2
            for change, (old, new) in zip(differences, pairs, strict=True)
        ),
    }


def worst_decile(changes: Sequence[float | None]) -> list[int]:
    """Positions of the ceil(n / 10) largest of the n changes that are known, the largest first, ties in order."""
    known = [(change, k) for k, change in enumerate(changes) if change is not None]
    known.sort(key=lambda entry: (-entry[0], entry[1]))
    return [k for _, k in known[: math.ceil(len(known) / 10)]]


def _difference(old: float | None, new: float | None) -> float | None:
    if old is None or new is None or not math.isfinite(old - new):
        return None
    return old - new


def _told(old: Row, new: Row) -> dict[str, Any]:
    """One example for a reader, with bounded texts."""
    prompt, answer = (_either(getattr(old, name), getattr(new, name)) for name in ("prompt", "answer"))
    return {
        "id": old.id,
        "prompt": None if prompt is None else asked(prompt),
        "answer": None if answer is None else shorten(answer),
        "prob_before": old.prob,
        "prob_after": new.prob,
        "generated_before": None if old.generated is None else shorten(old.generated),
        "generated_after": None if new.generated is None else shorten(new.generated),
    }


def _either(first: str | None, second: str | None) -> str | None:
    return second if first is None else first


def shorten(text: str, longest: int = LONGEST_TEXT) -> str:
    """The beginning of a text, with an ellipsis where more follows."""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def asked(prompt: str, longest: int = LONGEST_TEXT) -> str:
    """The end of a prompt, which is what it asks: its last paragraph only, where others (few-shot examples) precede."""
    text = prompt.strip()
    last = text.rsplit("\n\n", 1)[-1]
    kept = last if len(last) <= longest else last[len(last) - longest + 1 :].lstrip()
    return kept if kept == text else f"… {kept}"
