"""Who bears the brunt: one line, one plot and the examples that lost most, for each set of what should be kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unlearn.report.plots import sorted_losses
from unlearn.report.rows import format_value, set_title
from unlearn.report.verdict import FELT

OPEN = 3
"""Examples of a set that are shown at once; the others unfold."""

MOST = 50
"""Examples of a set on the page; results.json has all of the worst decile."""

ROUGE_TITLES = {"rouge_l_recall": "ROUGE-L recall", "rouge_l_f1_unstemmed": "ROUGE-L F1"}


@dataclass(frozen=True)
class Brunt:
    """One set: its sentences, its plot ("" without any change to show), and examples as results.json has them.

    `left_out` counts those that are in results.json only.
    """

    title: str
    text: str
    drawing: str
    shown: list[Mapping[str, Any]]
    folded: list[Mapping[str, Any]]
    left_out: int


def brunts(results: Mapping[str, Any]) -> list[Brunt]:
    """One for each set in results["damage"]."""
    return [_brunt(name, of_set) for name, of_set in (results.get("damage") or {}).items()]


def _brunt(name: str, of_set: Mapping[str, Any]) -> Brunt:
    prob, rouge, worst = of_set["prob"], of_set["rouge"], [one for one in of_set["worst"] if _is_felt(one)]
    title, text = set_title(name), _sentences(prob, rouge)
    losses = [change for change in prob["changes"] if change is not None]
    drawing = sorted_losses(f"brunt-{name}", title, text, losses, prob["worst_decile"]) if losses else ""
    return Brunt(title, text, drawing, worst[:OPEN], worst[OPEN:MOST], len(worst[MOST:]))


def _is_felt(example: Mapping[str, Any]) -> bool:
    """A decile exists where nobody lost anything worth telling, too."""
    before, after = example["prob_before"], example["prob_after"]
    return bool(before - after >= FELT or after < before / 2)


def _sentences(prob: Mapping[str, Any], rouge: Mapping[str, Any] | None) -> str:
    n, missing = prob["n"], prob["missing"]
    uncompared = f"{missing} of {n + missing} examples could not be compared." if missing else ""
    if not n:
        return uncompared
    sentences = [f"Mean change of the answers' probability {_signed(prob['mean'])} (n = {n})."]
    if prob["worst_decile_share"] is None:
        sentences.append("No example lost any.")
    else:
        sentences.append(
            f"Of all that was lost, the worst {prob['worst_decile']} carry {100 * prob['worst_decile_share']:.0f} %; "
            f"{prob['lost_more_than_half'] or 'none'} lost more than half."
        )
    if rouge is not None:
        share = rouge["worst_decile_share"]
        carried = "" if share is None else f", the worst {rouge['worst_decile']} carry {100 * share:.0f} % of the loss"
        sentences.append(f"{ROUGE_TITLES[rouge['score']]} {_signed(rouge['mean'])}{carried}.")
    return " ".join([*sentences, uncompared]).rstrip()


def _signed(loss: float) -> str:
    """Minus for a loss, as after against before."""
    text = format_value(abs(loss)) if abs(loss) >= 0.0005 else "0"
    return text if text == "0" else f"{'-' if loss > 0 else '+'}{text}"
