"""Records on disk, and the scores made from them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from unlearn.evaluation import formulas, records
from unlearn.evaluation.records import Record
from unlearn.evaluation.scores import from_records


def record(example: str, kind: str = "answer", logp: list[float] | None = None, **changed: object) -> Record:
    """A record of the given log-probabilities; the last token is the end marker unless n_content says otherwise."""
    logp_T = np.array([-0.5, -1.5, -1.0] if logp is None else logp, dtype=np.float32)
    n = len(logp_T)
    fields: dict[str, object] = {
        "prompt": "Who?",
        "answer": "Hina Ameen",
        "logp_T": logp_T,
        "greedy_T": np.ones(n, dtype=bool),
        "vocab_mean_T": np.full(n, -2, dtype=np.float32),
        "vocab_std_T": np.ones(n, dtype=np.float32),
        "n_content": max(0, n - 1),
    }
    return Record(id=example, kind=kind, **(fields | changed))  # type: ignore[arg-type]


def test_records_survive_the_disk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written = [
        record("forget01/0", logp=list(-rng.random(17)), generated='Häna\n"Ameen"', hit_limit=True, truncated=True),
        record("forget01/0", "perturbed_0"),
        record("forget01/1", logp=[]),
        record("forget01/2", logp=[-math.inf, math.nan, -1.0]),
    ]
    path = tmp_path / "before" / "forget.parquet"
    records.write(written, path)
    read = records.read(path)
    assert len(read) == len(written)
    for one, other in zip(written, read, strict=True):
        for name in records.SCHEMA.names:
            if name.endswith("_T"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
            else:
                assert getattr(one, name) == getattr(other, name)


def test_scores_are_the_same_before_and_after_the_disk(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    written = [
        record("a", kind, list(-rng.random(9))) for kind in ("answer", "paraphrase", "perturbed_0", "perturbed_1")
    ]
    records.write(written, tmp_path / "forget.parquet")
    assert from_records({"forget": records.read(tmp_path / "forget.parquet")}) == from_records({"forget": written})


def test_the_end_marker_enters_the_probability_and_nothing_else() -> None:
    # content log-probabilities -0.5 and -1.5, end marker -1; the end marker is not greedy
    row = from_records({"forget": [record("a", greedy_T=np.array([True, True, False]))]}).rows("forget")[0]
    assert row.n_tokens == 3
    assert row.nll == pytest.approx((0.5 + 1.5 + 1.0) / 3)
    assert row.prob == pytest.approx(math.exp(-1))
    assert row.zlib == formulas.zlib_score(1.0, "Hina Ameen")
    assert row.exact_memorization == 1  # 2 of 2, not 2 of 3
    assert row.extraction_strength == 1  # not 0
    assert row.min_k == pytest.approx(1.5)  # int(2 * 0.4) = 0, so the one least likely token
    assert row.min_k_plus_plus == pytest.approx(-(-1.5 - -2) / 1)


def test_a_template_tail_is_no_memorised_content() -> None:
    # three content tokens of which the first is right, then end marker, newline and end marker, all right
    greedy_T = np.array([True, False, False, True, True, True])
    row = from_records({"forget": [record("a", logp=[-1.0] * 6, greedy_T=greedy_T, n_content=3)]}).rows("forget")[0]
    assert row.exact_memorization == pytest.approx(1 / 3)
    assert row.extraction_strength == 0


def test_a_truncated_row_keeps_all_its_content_tokens() -> None:
    greedy_T = np.array([False, True, True])
    row = from_records({"forget": [record("a", greedy_T=greedy_T, n_content=3, truncated=True)]}).rows("forget")[0]
    assert row.exact_memorization == pytest.approx(2 / 3)
    assert row.extraction_strength == pytest.approx(2 / 3)


def test_variants_meet_at_their_example() -> None:
    rows = [
        record("a", logp=[-1.0, -1.0]),
        record("a", "paraphrase", [-2.0]),
        record("a", "perturbed_1", [-4.0]),
        record("a", "perturbed_0", [-3.0, -3.0]),
        record("b", logp=[-1.0]),
    ]
    scores = from_records({"retain": rows})
    a, b = scores.rows("retain")
    assert a.nll_perturbed == (3, 4)
    assert a.truth_ratio == pytest.approx(math.exp(2 - 3.5))
    assert a.truth_ratio_arithmetic == pytest.approx((math.exp(-3) + math.exp(-4)) / 2 / math.exp(-2))
    assert a.prob_options == pytest.approx(math.exp(-1) / (math.exp(-1) + math.exp(-3) + math.exp(-4)))
    # b lacks its paraphrase; its own answer must not stand in for it among rows that have one
    assert b.nll_paraphrase is None
    assert b.truth_ratio is None


def test_a_set_without_paraphrases_is_scored_against_its_own_answers() -> None:
    rows = [record("a", logp=[-1.0]), record("a", "perturbed_0", [-3.0])]
    (row,) = from_records({"real_authors": rows}).rows("real_authors")
    assert row.truth_ratio == pytest.approx(math.exp(1 - 3))


def test_more_than_ten_perturbed_answers_keep_their_order() -> None:
    rows = [record("a"), *(record("a", f"perturbed_{i}", [-float(i)]) for i in reversed(range(12)))]
    (row,) = from_records({"forget": rows}).rows("forget")
    assert row.nll_perturbed == tuple(range(12))


def test_generations_are_scored_where_there_are_any() -> None:
    rows = [
        record("a", generated="It is Hina", hit_limit=False),
        record("b"),
        record("c", answer="東京", generated="東京"),
    ]
    a, b, c = from_records({"forget": rows}).rows("forget")
    assert (a.rouge_l_recall, a.rouge_1_recall) == (0.5, 0.5)
    assert a.rouge_l_f1 == pytest.approx(2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2))
    assert b.rouge_l_recall is None
    assert b.generated is None
    assert c.rouge_l_recall is None
    assert c.generated == "東京"


def test_a_faulty_row_keeps_its_place_and_touches_no_other() -> None:
    good = from_records({"forget": [record("a"), record("c", logp=[-3.0, -1.0])]})
    bad = from_records({"forget": [record("a"), record("b", logp=[]), record("c", logp=[-3.0, -1.0])]})
    assert bad.sets["forget"]["a"] == good.sets["forget"]["a"]
    assert bad.sets["forget"]["c"] == good.sets["forget"]["c"]
    b = bad.sets["forget"]["b"]
    assert b.nll is None
    assert b.min_k is None
    assert b.fault == "no answer token"


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_non_finite_log_probability_unscores_what_it_enters(bad: float) -> None:
    answer, variant = from_records(
        {"forget": [record("a", logp=[-1.0, bad]), record("b"), record("b", "perturbed_0", [bad])]}
    ).rows("forget")
    assert answer.nll is None
    assert answer.fault == "a log-probability is not finite"
    assert variant.nll is not None
    assert variant.truth_ratio is None
    assert variant.fault == "a log-probability is not finite"


def test_the_answer_to_the_paraphrased_question_is_a_score_of_its_own() -> None:
    rows = [record("a"), record("a", "paraphrased_question", [-2.0, -1.0], generated="It is Hina", hit_limit=False)]
    rows += [record("b"), record("b", "paraphrased_question", [-2.0], answer="東京", generated="東京")]
    rows += [record("c"), record("c", "paraphrased_question", [math.nan])]
    a, b, c = from_records({"forget": rows}).rows("forget")
    assert a.paraphrased_prob == pytest.approx(math.exp(-1.5))
    assert a.paraphrased_rouge_l_recall == 0.5
    assert a.nll == pytest.approx(1.0)  # its own question's
    assert (b.paraphrased_prob, b.paraphrased_rouge_l_recall) == (pytest.approx(math.exp(-2)), None)
    assert c.paraphrased_prob is None


@pytest.mark.parametrize(
    ("answer", "wrong", "chosen"),
    [
        ([-1.0, -1.0], [[-2.5], [-1.5, -1.5]], 1),
        ([-1.0, -1.0], [[-1.5], [-9.0]], 0),  # likelier in all, though not per token
        ([-1.0, -1.0], [[-2.0], [-9.0]], 0),  # a tie
        ([-1.0, -math.inf], [[-2.0]], None),
        ([-1.0], [[math.nan]], None),
        ([-1.0], [], None),
    ],
)
def test_the_chosen_option_has_the_highest_total(
    answer: list[float], wrong: list[list[float]], chosen: float | None
) -> None:
    rows = [record("a", logp=answer), *(record("a", f"perturbed_{k}", logp) for k, logp in enumerate(wrong))]
    (row,) = from_records({"wmdp_bio": rows}).rows("wmdp_bio")
    assert row.chosen == chosen


def test_muse_sets_are_scored_without_stemming_too() -> None:
    rows = [record("a", answer="The author is Hina Ameen", generated="The authors are named Hina Ameen")]
    scores = from_records({"forget_knowmem": rows, "forget": rows})
    (muse,), (tofu,) = scores.rows("forget_knowmem"), scores.rows("forget")
    assert muse.rouge_l_f1 == tofu.rouge_l_f1 == pytest.approx(2 * 4 / (5 + 6))
    assert muse.rouge_l_f1_unstemmed == pytest.approx(2 * 3 / (5 + 6))
    assert tofu.rouge_l_f1_unstemmed is None


def test_generated_texts_are_measured() -> None:
    rows = [record("a", generated="no no no", generated_nll=2.5), record("b", generated=""), record("c")]
    a, b, c = from_records({"forget": rows}).rows("forget")
    assert (a.distinct, a.repetition, a.generated_nll, a.gibberish) == (0.5, 0, 2.5, 0)
    assert (b.distinct, b.repetition, b.generated_nll, b.gibberish) == (None, 0, None, 1)
    assert (c.distinct, c.repetition, c.generated_nll, c.gibberish) == (None, None, None, None)
