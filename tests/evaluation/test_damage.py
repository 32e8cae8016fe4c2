from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from unlearn.evaluation.damage import LONGEST_TEXT, asked, changes, damage, shorten, worst_decile
from unlearn.evaluation.scores import Row, Scores


def of(name: str, probs: Sequence[float | None], **fields: Any) -> Scores:
    return Scores({name: {f"{name}/{k}": Row(f"{name}/{k}", prob=prob, **fields) for k, prob in enumerate(probs)}})


def test_one_example_takes_it_all_and_a_gain_does_not_make_up_for_it() -> None:
    after = [0.9] * 20
    after[7], after[3] = 0.1, 1.0
    found = damage(of("retain", [0.9] * 20), of("retain", after))["retain"]
    prob = found["prob"]
    assert prob["changes"][7] == pytest.approx(0.8)
    assert prob["changes"][3] == pytest.approx(-0.1)
    assert prob["total"] == pytest.approx(0.8)
    assert prob["mean"] == pytest.approx((0.8 - 0.1) / 20)  # 0.035: the mean hides it
    assert prob["worst_decile"] == 2
    assert prob["worst_decile_share"] == 1.0
    assert prob["worst_decile_mean"] == pytest.approx(0.8 / 2)
    assert prob["lost_more_than_half"] == 1
    assert [row["id"] for row in found["worst"]] == ["retain/7"]  # the decile's other example lost nothing


def test_damage_that_is_spread_evenly_gives_the_worst_decile_a_tenth() -> None:
    prob = changes([0.8] * 40, [0.5] * 40)
    assert prob["worst_decile_share"] == pytest.approx(0.1)
    assert prob["mean"] == pytest.approx(0.3)
    assert prob["total"] == pytest.approx(40 * 0.3)
    assert prob["lost_more_than_half"] == 0


def test_the_mean_hides_what_the_share_shows() -> None:
    """90 examples lose 0.001 each, 10 lose 0.5 each: 5 of 5.09 in the worst decile, 0.0509 on average."""
    prob = changes([0.6] * 100, [0.599] * 90 + [0.1] * 10)
    assert prob["mean"] == pytest.approx(5.09 / 100)
    assert prob["worst_decile_share"] == pytest.approx(5 / 5.09)
    assert prob["lost_more_than_half"] == 10


@pytest.mark.parametrize(("n", "size"), [(1, 1), (10, 1), (11, 2), (40, 4), (41, 5)])
def test_the_worst_decile_is_rounded_up(n: int, size: int) -> None:
    prob = changes([0.5] * n, [0.4] * n)
    assert prob["worst_decile"] == size
    assert prob["worst_decile_share"] == pytest.approx(size / n)


@pytest.mark.parametrize("after", [[0.5] * 12, [0.6] * 12, [0.5 - 1e-8] * 12], ids=["same", "gained", "rounding"])
def test_an_undamaged_set_has_no_share(after: list[float]) -> None:
    prob = changes([0.5] * 12, after)
    assert prob["total"] == 0
    assert prob["worst_decile_share"] is None
    assert prob["lost_more_than_half"] == 0


def test_what_is_not_scored_on_both_sides_is_counted_and_never_zero() -> None:
    prob = changes([0.9, None, 0.9, 0.9, math.nan], [0.5, 0.5, None, 0.8, 0.1])
    assert prob["changes"] == [pytest.approx(0.4), None, None, pytest.approx(0.1), None]
    assert (prob["n"], prob["missing"]) == (2, 3)
    assert prob["mean"] == pytest.approx(0.25)
    assert prob["worst_decile_share"] == pytest.approx(0.4 / 0.5)
    nothing = changes([None], [None])
    assert (nothing["n"], nothing["mean"], nothing["worst_decile_share"]) == (0, None, None)


def test_rows_are_matched_by_id_whatever_their_order() -> None:
    before, after = of("retain", [0.9, 0.8, 0.7]), of("retain", [0.9, 0.3])
    turned = Scores({"retain": dict(reversed(list(after.sets["retain"].items())))})
    found = damage(before, turned)["retain"]
    assert found["ids"] == ["retain/0", "retain/1", "retain/2"]
    assert found["prob"]["changes"] == [0, pytest.approx(0.5), None]
    only_after = damage(after, before)["retain"]
    assert only_after["ids"] == ["retain/0", "retain/1", "retain/2"]
    assert only_after["prob"]["missing"] == 1


def test_sets_that_are_to_be_forgotten_are_left_out() -> None:
    everything = Scores({name: of(name, [0.9]).sets[name] for name in ("forget", "holdout", "world_facts")})
    assert list(damage(everything, everything)) == ["world_facts"]


@pytest.mark.parametrize(
    ("name", "score", "loss"), [("retain", "rouge_l_recall", 0.5), ("retain_knowmem", "rouge_l_f1_unstemmed", 0.25)]
)
def test_rouge_is_that_of_the_benchmark(name: str, score: str, loss: float) -> None:
    before = of(name, [0.9] * 10, rouge_l_recall=1.0, rouge_l_f1_unstemmed=1.0)
    after = of(name, [0.9] * 10, rouge_l_recall=0.5, rouge_l_f1_unstemmed=0.75)
    rouge = damage(before, after)[name]["rouge"]
    assert rouge["score"] == score
    assert rouge["mean"] == pytest.approx(loss)
    assert rouge["worst_decile_share"] == pytest.approx(0.1)


def test_texts_without_generations_have_no_rouge_and_stay_bounded() -> None:
    long = "word " * 1600
    before = of("retain", [0.3] * 10, prompt="", answer=long)
    found = damage(before, of("retain", [0.1] * 10, prompt="", answer=long))["retain"]
    assert found["rouge"] is None
    (worst,) = found["worst"]
    assert worst["prompt"] == ""
    assert worst["answer"].endswith("word…")
    assert len(worst["answer"]) <= LONGEST_TEXT
    assert worst["generated_before"] is None
    assert json.loads(json.dumps(found)) == found


def test_the_worst_come_first_with_both_texts() -> None:
    said = {"prompt": "Question: Who?\nAnswer:", "answer": "Ilse Varga."}
    before = of("retain", [0.9] * 20, generated="Ilse Varga.", **said)
    after = of("retain", [0.9] * 18 + [0.4, 0.2], generated="Ilse who", **said)
    assert damage(before, after)["retain"]["worst"] == [
        {
            "id": f"retain/{k}",
            "prompt": "Question: Who?\nAnswer:",
            "answer": "Ilse Varga.",
            "prob_before": 0.9,
            "prob_after": prob,
            "generated_before": "Ilse Varga.",
            "generated_after": "Ilse who",
        }
        for k, prob in ((19, 0.2), (18, 0.4))
    ]


def test_ties_keep_the_order_of_the_data() -> None:
    assert worst_decile([0.1, 0.5, None, 0.5, *[0.2] * 8]) == [1, 3]  # 11 known, so 2


def test_shortened_texts() -> None:
    assert shorten("short", 5) == "short"
    assert shorten("a longer text", 9) == "a longer…"
    assert asked("\nQuestion: Who?\nAnswer: ") == "Question: Who?\nAnswer:"
    assert asked("Question: A?\nAnswer: B\n\nQuestion: Who?\nAnswer:") == "… Question: Who?\nAnswer:"
    assert asked("one two three", 6) == "… three"
    assert asked("") == ""
