"""What the numbers of a run say, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unlearn.report.rows import STAGES, RunFolder, format_value

MUSE = ("knowmem_f", "verbmem_f", "knowmem_r")
LEAK = 5.0
"""PrivLeak within this distance of 0 counts as no leak (MUSE, 2407.06460)."""

MOST = 0.5
"""From this share of the damage on, the worst decile is named in the terminal."""

FELT = 0.01
"""A smaller mean loss of the worst decile is not worth a line."""


def verdict(folder: RunFolder) -> list[str]:
    """What the numbers say, in sentences: what fell, what it cost, how it compares with the reference."""
    results = folder.results
    before, after, reference = (results.get(stage) or {} for stage in STAGES)
    sentences = []
    if folder.status in ("diverged", "failed", "preempted"):
        when = f" after {results['steps']} optimizer steps" if "steps" in results else ""
        sentences.append(f"The run ended as {folder.status}{when}.")
    if not after:
        sentences.append("The model was not evaluated after unlearning, so nothing here says what it forgot.")
        return sentences
    is_muse = any((after.get(name) or {}).get("value") is not None for name in MUSE)
    sentences += (_on_texts if is_muse else _on_questions)(before, after, reference)
    if not reference:
        sentences.append(
            "There is no reference in this run, so nothing here says how a model that never saw the forget set answers."
        )
    return sentences


def _on_questions(before: Mapping[str, Any], after: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """TOFU: the forget answers, what it cost, and forget quality."""
    sentences = []
    if "forget.prob" in after:
        sentences.append(
            _changed("The mean probability of the forget answers", "forget.prob", before, after, reference)
        )
    kept = {"retain.prob": "The mean probability of the retain answers", "model_utility": "Model utility"}
    sentences += [_changed(subject, name, before, after, None) for name, subject in kept.items() if name in after]
    if "forget_quality" in after:
        sentences.append(_forget_quality(after["forget_quality"]))
    return sentences


def _on_texts(before: Mapping[str, Any], after: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """MUSE: what is left of the knowledge and of the wording, what it cost, and whether privacy leaks."""
    forgotten = {
        "knowmem_f": "Knowledge of the forget texts (knowmem, ROUGE-L of answers)",
        "verbmem_f": "Verbatim memory of the forget texts (verbmem, ROUGE-L of continuations)",
    }
    sentences = [
        _changed(subject, name, before, after, reference) for name, subject in forgotten.items() if name in after
    ]
    if "knowmem_r" in after:
        sentences.append(_changed("Knowledge of the retain texts", "knowmem_r", before, after, None))
    if "privleak" in after:
        sentences.append(_privacy(after["privleak"]))
    return sentences


def _privacy(score: Mapping[str, Any]) -> str:
    """PrivLeak below 0: forget texts are easier to recognise than under the reference; above 0: harder."""
    value = score["value"]
    if value is None:
        return f"PrivLeak was not scored ({score.get('reason', 'no reason given')})."
    if abs(value) <= LEAK:
        return (
            f"By PrivLeak ({format_value(value)}, within {LEAK:g} of 0) a membership attack finds the forget texts no "
            "better and no worse than under the reference."
        )
    told = (
        "still recognises the forget texts better than under the reference (under-forgotten)"
        if value < 0
        else "finds the forget texts less likely than under the reference, which gives them away too (over-forgotten)"
    )
    return f"By PrivLeak ({format_value(value)}) privacy leaks: a membership attack {told}."


def _changed(
    subject: str, name: str, before: Mapping[str, Any], after: Mapping[str, Any], reference: Mapping[str, Any] | None
) -> str:
    """One sentence on one metric; `reference` None: say the share that was kept instead of the reference's value."""
    now, start = after[name]["value"], before.get(name, {}).get("value")
    if now is None:
        return f"{subject} was not scored after unlearning ({after[name].get('reason', 'no reason given')})."
    if start is None:
        return f"{subject} is {format_value(now)}; there is no value from before to compare it with."
    if format_value(start) == format_value(now):
        return f"{subject} stayed at {format_value(now)}."
    sentence = f"{subject} {'fell' if now < start else 'rose'} from {format_value(start)} to {format_value(now)}"
    if reference is None:
        return f"{sentence} ({100 * now / start:.0f} % of before)." if start > 0 else f"{sentence}."
    expected = reference.get(name, {}).get("value")
    if expected is None:
        return f"{sentence}."
    return f"{sentence}; the reference, which never saw them, has {format_value(expected)}."


def _forget_quality(score: Mapping[str, Any]) -> str:
    value, n = score["value"], score["n"]
    if value is None:
        return f"Forget quality was not scored ({score.get('reason', 'no reason given')})."
    told = "differ from the reference's" if value < 0.05 else "cannot be told apart from the reference's"
    notes = str(score.get("note", "")).split("; ")
    judged = f" ({notes[0]})" if notes[0].endswith("-forgotten") else ""
    weak = "; with so few rows the test sees only gross differences" if "small n" in notes else ""
    return f"By forget quality (p = {format_value(value)}, n = {n}) the truth ratios {told}{judged}{weak}."


def ending(results: Mapping[str, Any]) -> list[str]:
    """Why the run stopped, which weights were kept, what became of each removal request, how far the weights moved,
    and whether answers differ from plain decoding, one sentence each.
    """
    lines = []
    if stop := results.get("stop"):
        lines.append(f"Stopped at step {stop['step']}: {stop['reason']}.")
    if kept := results.get("kept"):
        lines.append(_kept(kept))
    lines += [
        f"After removal request {done['request']} the {done['rows']} rows asked for until then had a mean probability "
        f"of {done['prob']:.3f}."
        for done in results.get("requests") or ()
    ]
    if weights := results.get("weights"):
        lines.append(
            f"The trained weights moved by {weights['relative_l2']:.2%} of their norm; "
            f"{weights['changed_tensors']} of {weights['tensors']} tensors changed."
        )
    lines += [
        f"{stage.capitalize()}: {found['different']} of {found['compared']} answers differ from plain greedy decoding."
        for stage, found in (results.get("canary") or {}).items()
        if found.get("different")
    ]
    return lines


def _kept(kept: Mapping[str, Any]) -> str:
    return (
        f"The weights of epoch {kept['epoch']:g} (step {kept['step']}) were kept, which has the best {kept['rule']} "
        f"({format_value(kept.get('value'))})."
    )


def burden(results: Mapping[str, Any]) -> str:
    """One line where the worst decile of a set carries most of what the set lost; "" where none does."""
    parts = []
    for name, of_set in (results.get("damage") or {}).items():
        prob = of_set["prob"]
        share, loss = prob["worst_decile_share"], prob["worst_decile_mean"]
        # Below ten examples the "decile" is more than a tenth, and most of the damage by itself.
        if prob["n"] >= 10 and share is not None and share > MOST and loss >= FELT:
            parts.append(
                f"{name} {100 * share:.0f} % ({prob['worst_decile']} of {prob['n']} examples, on average {loss:.2f} of "
                "probability each)"
            )
    return f"A few examples carry most of the damage. Worst decile's share: {'; '.join(parts)}." if parts else ""
