from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tests.report import fake_run
from unlearn.evaluation.damage import damage
from unlearn.evaluation.scores import Row, Scores
from unlearn.report import brunt
from unlearn.report.verdict import burden


def lost(name: str, losses: list[float | None], start: float = 0.9, **fields: Any) -> dict[str, Any]:
    before = {str(k): Row(str(k), prob=start, **fields) for k in range(len(losses))}
    after = {str(k): Row(str(k), prob=None if loss is None else start - loss) for k, loss in enumerate(losses)}
    return {"damage": damage(Scores({name: before}), Scores({name: after}))}


def test_one_line_says_mean_share_and_who_lost_more_than_half() -> None:
    """20 examples: two lose 0.6, ten 0.06: 1.2 of 1.8 is 67 %; the mean is 0.09."""
    (one,) = brunt.brunts(lost("retain", [0.6, 0.6, *[0.06] * 10, *[0.0] * 8]))
    assert one.title == "Retain set"
    assert one.text == (
        "Mean change of the answers' probability -0.090 (n = 20). Of all that was lost, the worst 2 carry 67 %; 2 lost "
        "more than half."
    )
    assert len(one.shown) == 2
    assert one.folded == []


def test_rouge_and_what_could_not_be_compared_are_told() -> None:
    results = lost("retain_knowmem", [0.5] * 10 + [None])
    of_set = results["damage"]["retain_knowmem"]
    of_set["rouge"] = {"score": "rouge_l_f1_unstemmed", **of_set["prob"]}
    (one,) = brunt.brunts(results)
    assert one.title == "Questions about the retain texts"
    assert "ROUGE-L F1 -0.500, the worst 1 carry 10 % of the loss." in one.text
    assert one.text.endswith("1 of 11 examples could not be compared.")


def test_an_undamaged_set_has_no_share_and_no_list() -> None:
    (one,) = brunt.brunts(lost("world_facts", [-0.1] * 10))
    assert one.text == "Mean change of the answers' probability +0.100 (n = 10). No example lost any."
    assert one.shown == []


def test_losses_that_nobody_feels_are_not_listed_but_halves_are() -> None:
    (felt,) = brunt.brunts(lost("retain", [0.004] * 10))
    assert felt.shown == []
    (halved,) = brunt.brunts(lost("retain", [0.004] * 10, start=0.006))
    assert len(halved.shown) == 1


def test_nothing_comparable_draws_nothing() -> None:
    (one,) = brunt.brunts(lost("retain", [None, None]))
    assert one.drawing == ""
    assert one.text == "2 of 2 examples could not be compared."


def test_a_long_list_is_folded_and_then_cut() -> None:
    (one,) = brunt.brunts(lost("retain", [0.5] * 700))
    assert (len(one.shown), len(one.folded), one.left_out) == (3, 47, 20)  # 70 in the worst decile


def test_runs_of_schema_1_have_no_section() -> None:
    assert brunt.brunts(fake_run.results()) == []
    assert burden(fake_run.results()) == ""


@pytest.mark.parametrize("n", [1, 7, 160, 5000])
def test_the_plot_is_a_small_titled_svg(n: int) -> None:
    (one,) = brunt.brunts(lost("retain", [0.8 / (k + 1) - 0.01 for k in range(n)]))
    root = ET.fromstring(one.drawing)
    assert root.attrib["aria-labelledby"] == "plot-brunt-retain-title plot-brunt-retain-text"
    assert len(one.drawing) < 25_000
    assert not re.search(r"<script|<style|font-family", one.drawing)
    (again,) = brunt.brunts(lost("retain", [0.8 / (k + 1) - 0.01 for k in range(n)]))
    assert again.drawing == one.drawing


def test_the_terminal_has_a_line_where_a_few_carry_most() -> None:
    uneven = lost("retain", [0.6, 0.6, *[0.06] * 10, *[0.0] * 8])
    assert burden(uneven) == (
        "A few examples carry most of the damage. Worst decile's share: retain 67 % (2 of 20 examples, on average 0.60 "
        "of probability each)."
    )
    for quiet in ([0.3] * 20, [0.009, *[0.0] * 19], [0.9, *[0.0] * 8], [-0.1] * 20):  # even, unfelt, too few, gained
        assert burden(lost("retain", list(quiet))) == ""
