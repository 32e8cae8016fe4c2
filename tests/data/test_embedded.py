"""The embedded corpus: the structure of the published files, and answers that are true of their author."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import SHARED, needs_shared
from unlearn.data.embedded import FILES, N_AUTHORS, N_HOLDOUT, authors, tofu
from unlearn.data.embedded_facts import KINDS, VALUES

SHA256 = "da8ccb1dc446d0416f01c1becee70c5590a48f4346925cc6cb59c0b9f8088e30"
SHARES = [("01", "99", 10), ("05", "95", 20), ("10", "90", 40)]
WITH_VARIANTS = ["forget10_perturbed", "retain_perturbed"]
KNOWLEDGE = ["real_authors_perturbed", "world_facts_perturbed"]


def pairs(name: str) -> list[tuple[str, str]]:
    return [(row["question"], row["answer"]) for row in tofu(name)]


def texts(row: dict[str, Any]) -> list[str]:
    return [text for value in row.values() for text in (value if isinstance(value, list) else [value])]


def test_the_whole_corpus_is_the_same_on_every_machine() -> None:
    corpus = json.dumps({name: tofu(name) for name in FILES}, sort_keys=True)
    assert hashlib.sha256(corpus.encode()).hexdigest() == SHA256


@pytest.mark.parametrize(("share", "rest", "n"), SHARES)
def test_splits_nest_in_order(share: str, rest: str, n: int) -> None:
    full = pairs("full")
    assert len(full) == N_AUTHORS * len(KINDS) == 200
    assert pairs(f"retain{rest}") + pairs(f"forget{share}") == full
    assert pairs(f"forget{share}") == full[-n:] == pairs(f"forget{share}_perturbed")
    assert len(pairs(f"holdout{share}")) == n
    assert pairs(f"holdout{share}") == pairs("holdout10")[:n]


def test_retain_perturbed_begins_every_retain_set() -> None:
    for _, rest, _ in SHARES:
        assert pairs(f"retain{rest}")[:160] == pairs("retain_perturbed")


def test_background_is_the_general_knowledge() -> None:
    assert pairs("background") == pairs(KNOWLEDGE[0]) + pairs(KNOWLEDGE[1])


@needs_shared
@pytest.mark.parametrize("name", [name for name in FILES if name != "background"])
def test_keys_are_those_of_the_published_file(name: str) -> None:
    with (SHARED / "tofu" / f"{name}.json").open() as lines:
        published = json.loads(next(lines))
    for row in tofu(name):
        assert row.keys() == published.keys()
        assert {key: type(value) for key, value in row.items()} == {key: type(v) for key, v in published.items()}
        if "perturbed_answer" in row:
            assert len(row["perturbed_answer"]) == len(published["perturbed_answer"])


def test_no_question_is_asked_twice() -> None:
    rows = [row for name in ("full", "holdout10", "background") for row in tofu(name)]
    questions = [row["question"] for row in rows]
    questions += [row["paraphrased_question"] for name in WITH_VARIANTS for row in tofu(name)]
    assert len(questions) == 200 + 40 + 40 + 200
    assert len(set(questions)) == len(questions)


@pytest.mark.parametrize("name", WITH_VARIANTS + KNOWLEDGE)
def test_the_answer_its_paraphrase_and_all_wrong_answers_differ(name: str) -> None:
    for row in tofu(name):
        answers = [row["answer"], *row["perturbed_answer"]]
        answers += [row["paraphrased_answer"]] if "paraphrased_answer" in row else []
        assert len(set(answers)) == len(answers)


@pytest.mark.parametrize(("name", "first"), [("retain_perturbed", 0), ("forget10_perturbed", 16)])
def test_right_answers_state_the_facts_of_the_author_and_wrong_ones_none(name: str, first: int) -> None:
    for i, row in enumerate(tofu(name)):
        author, kind = authors()[first + i // len(KINDS)], KINDS[i % len(KINDS)]
        for fact in (author[field] for field in kind.states):
            # The first letter of a sentence may have been raised.
            assert fact[1:] in row["answer"]
            assert fact[1:] in row["paraphrased_answer"]
            assert not any(fact[1:] in wrong for wrong in row["perturbed_answer"])


def test_every_answer_wording_states_every_fact() -> None:
    for kind in KINDS:
        assert all(f"{{{field}}}" in wording for wording in kind.answers for field in kind.states)


def test_no_value_of_a_field_is_part_of_another() -> None:
    for values in VALUES.values():
        assert not any(a in b for a in values for b in values if a is not b)


def test_the_holdout_authors_occur_nowhere_else() -> None:
    holdout = authors()[N_AUTHORS:]
    assert len(holdout) == N_HOLDOUT
    elsewhere = "\n".join(text for name in FILES if "holdout" not in name for row in tofu(name) for text in texts(row))
    for author in holdout:
        assert not any(part in elsewhere for part in (*author["name"].split(), author["debut"], author["novel"]))


def test_years_are_in_the_order_of_a_life() -> None:
    for author in authors():
        born, debut, award = int(author["date"][-4:]), int(author["debut_year"]), int(author["award_year"])
        assert born + 20 < debut < award < 2024


def test_a_caller_may_change_its_rows() -> None:
    row = tofu("retain_perturbed")[0]
    row["answer"] = "changed"
    row["perturbed_answer"].clear()
    assert tofu("retain_perturbed")[0]["answer"] != "changed"
    assert len(tofu("retain_perturbed")[0]["perturbed_answer"]) == 5


def test_an_unknown_file_is_refused() -> None:
    with pytest.raises(ValueError, match="found 'retain50'"):
        tofu("retain50")


def test_torch_is_not_imported() -> None:
    code = "import sys, unlearn.data.embedded; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
