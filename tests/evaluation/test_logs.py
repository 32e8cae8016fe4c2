"""Small logs written by hand: both kinds, both layouts, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from unlearn.evaluation.logs import read_log

TABLE: dict[str, list[Any]] = {
    "avg_gt_loss": [0.5, 1.0],
    "num_token_gt": [4, 5],
    "avg_paraphrased_loss": [1.0, 2.0],
    "average_perturb_loss": [[2.0, 3.0], [1.0, 2.0]],
    "rougeL_recall": [1.0, 0.5],
    "rouge1_recall": [1.0, 0.75],
    "generated_text": [["Who?", "Hina", "Hina"], ["Where?", "Rome", "In Rome"]],
}


def save(folder: Path, name: str, log: Any) -> Path:
    path = folder / name
    path.write_text(log if isinstance(log, str) else json.dumps(log))
    return path


def test_tofu_lists_and_objects_read_the_same(tmp_path: Path) -> None:
    as_objects = {key: {str(i): x for i, x in enumerate(column)} for key, column in TABLE.items()}
    lists = read_log(save(tmp_path, "lists.json", {"eval_log_forget.json": TABLE}))
    objects = read_log(save(tmp_path, "objects.json", {"eval_log_forget.json": as_objects}))
    assert lists == objects
    first, second = lists.rows("forget")
    assert (first.id, first.prompt, first.generated, first.answer) == ("forget/0", "Who?", "Hina", "Hina")
    assert first.prob == pytest.approx(math.exp(-0.5))
    assert first.truth_ratio == pytest.approx(math.exp(1 - 2.5))
    assert (second.n_tokens, second.rouge_l_recall, second.nll_perturbed) == (5, 0.5, (1, 2))
    assert lists.rows("retain") == []


def test_open_unlearning_keeps_what_was_logged(tmp_path: Path) -> None:
    log = {
        "forget_Q_A_Prob": {"agg_value": 0.6, "value_by_index": {"0": {"prob": 0.61, "avg_loss": 0.5}, "1": None}},
        "mia_min_k": {"auc": 1, "forget": {"value_by_index": {"0": {"score": 0.1}}},
                      "holdout": {"value_by_index": {"7": {"score": 2.0}}}},
        "ra_Q_A_Prob": {"value_by_index": {"0": {"prob": 0.5, "avg_loss": math.log(2)}}},
        "ra_Q_A_PERT_Prob": {"value_by_index": {"0": {"prob": [0.25], "avg_loss": [math.log(4)]}}},
        "forget_quality": {"agg_value": None},
    }  # fmt: skip
    save(tmp_path, "TOFU_EVAL.json", log)
    scores = read_log(tmp_path)
    first, second = scores.rows("forget")
    assert (first.prob, first.nll, first.min_k) == (0.61, 0.5, 0.1)
    assert (second.id, second.prob) == ("forget/1", None)
    assert scores.sets["holdout"]["holdout/7"].min_k == 2
    (author,) = scores.rows("real_authors")
    assert author.truth_ratio == pytest.approx(0.25 / 0.5)
    assert author.prob_options == pytest.approx(0.5 / (0.5 + 0.25))


def test_muse_sets_and_the_score_without_a_stemmer(tmp_path: Path) -> None:
    """Of "named" and "names" the stem is the same: 1 of 1 words with the stemmer, none without."""
    answered = {"rougeL_f1": 1.0, "rougeL_recall": 1.0, "rouge1_recall": 1.0, "input": "Q", "ground_truth": "named",
                "generation": "names"}  # fmt: skip
    log = {
        "retain_knowmem_ROUGE": {"value_by_index": {"3": answered}},
        "exact_memorization": {"value_by_index": {"0": {"score": 0.25}}},
        "mia_loss": {"forget": {"value_by_index": {"0": {"score": 1.5}}},
                     "holdout": {"value_by_index": {"0": {"score": 2.5}}}},
        "mia_gradnorm": {"forget": {"value_by_index": {"0": {"score": 9.0}}}},
    }  # fmt: skip
    scores = read_log(save(tmp_path, "any-name.json", log))
    assert list(scores.sets) == ["retain_knowmem", "forget_verbmem", "forget", "holdout"]
    row = scores.sets["retain_knowmem"]["retain_knowmem/3"]
    assert (row.rouge_l_f1, row.rouge_l_f1_unstemmed) == (1.0, 0.0)
    assert (row.prompt, row.answer, row.generated) == ("Q", "named", "names")
    assert scores.sets["forget_verbmem"]["forget_verbmem/0"].exact_memorization == 0.25
    assert [scores.rows(name)[0].nll for name in ("forget", "holdout")] == [1.5, 2.5]


def test_a_logged_nan_is_unscored(tmp_path: Path) -> None:
    path = save(tmp_path, "TOFU_EVAL.json", '{"forget_Q_A_Prob": {"value_by_index": {"0": {"avg_loss": NaN}}}}')
    (row,) = read_log(path).rows("forget")
    assert row.nll is None
    assert row.fault == "a log-probability is not finite"


REFUSED = [
    ("not json", "found no readable JSON"),
    ("[1, 2]", "found a JSON list"),
    ("{}", "found the keys no key"),
    ({"privleak": {}, "mia_min_k": {}}, "found the keys privleak, mia_min_k"),
    ({"forget_knowmem_ROUGE": {}, "privleak": {}}, "found no scores of single examples"),
    ({"forget_verbmem_ROUGE": {"value_by_index": {"0": {"generation": 1}}}}, "[0].generation needs a text, found 1"),
    ({"forget_Q_A_Prob": 0.5}, "forget_Q_A_Prob needs an object, found 0.5"),
    ({"forget_Q_A_Prob": {"value_by_index": [1]}}, "forget_Q_A_Prob.value_by_index needs an object, found [1]"),
    ({"forget_Q_A_Prob": {"value_by_index": {"3": {"prob": "high"}}}}, '[3].prob needs a number, found "high"'),
    ({"forget_Q_A_Prob": {"agg_value": 0.5}}, "found no scores of single examples"),
    ({"eval_log.json": {}}, "found no scores of single examples"),
    ({"eval_log.json": [1]}, "eval_log.json needs an object, found [1]"),
    ({"eval_log.json": {"avg_gt_loss": 0.5}}, "eval_log.json.avg_gt_loss needs an object, found 0.5"),
    ({"eval_log.json": TABLE | {"avg_paraphrased_loss": [1.0]}}, "needs the 2 rows of the columns before it, found 1"),
    ({"eval_log.json": TABLE | {"avg_gt_loss": [1.0, [2]]}}, "avg_gt_loss[1] needs a number, found [2]"),
    ({"eval_log.json": TABLE | {"generated_text": [["a"], ["b"]]}}, "needs [prompt, generated, reference]"),
]


@pytest.mark.parametrize(("log", "message"), REFUSED)
def test_a_malformed_log_is_refused_in_one_line(tmp_path: Path, log: Any, message: str) -> None:
    path = save(tmp_path, "log.json", log)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below, without a pattern
        read_log(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found no readable JSON"):
        read_log(tmp_path / "absent.json")
    names = "TOFU_EVAL.json, MUSE_EVAL.json, eval_log_aggregated.json"
    with pytest.raises(ValueError, match=f"needs one of {names}, found none of them"):
        read_log(tmp_path)
    for name in names.split(", ")[:2]:
        save(tmp_path, name, {})
    with pytest.raises(ValueError, match=r"found TOFU_EVAL.json, MUSE_EVAL.json$"):
        read_log(tmp_path)
