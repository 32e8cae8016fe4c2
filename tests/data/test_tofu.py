"""TOFU from its sources: which rows belong to which set, limits, and every fault of a folder in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHARED, needs_shared
from tests.helpers import data_config
from unlearn.data import embedded, tofu
from unlearn.errors import UserError

SPLITS = {"forget01": ("retain99", 40), "forget05": ("retain95", 200), "forget10": ("retain90", 400)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The embedded corpus as published files."""
    for name in embedded.FILES:
        lines = [json.dumps(row) for row in embedded.tofu(name)]
        (tmp_path / f"{name}.json").write_text("\n".join(lines) + "\n")
    return tmp_path


def edit(file: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    change(rows)
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def test_a_folder_gives_what_the_embedded_source_gives(folder: Path) -> None:
    from_folder, own = tofu.load(data_config(str(folder))), tofu.load(data_config())
    for name in ("forget", "retain", "holdout"):
        assert from_folder.sets[name] == own.sets[name]
    assert from_folder.evaluated == own.evaluated
    assert list(own.evaluated) == ["forget", "retain", "holdout", "real_authors", "world_facts"]
    assert from_folder.sets["background"] == (), "published models know the world already"
    assert own.labels
    assert not from_folder.labels


@pytest.mark.parametrize("split", SPLITS)
def test_sets_of_the_embedded_splits_belong_together(split: str) -> None:
    benchmark = tofu.load(data_config(split=split))
    assert benchmark.retain_name == SPLITS[split][0]
    assert len(benchmark.sets["holdout"]) == len(benchmark.sets["forget"])
    assert all(example.has_variants for example in benchmark.sets["forget"])
    assert set(benchmark.train) == set(benchmark.reference_train) | set(benchmark.sets["forget"])


@needs_shared
@pytest.mark.parametrize("split", SPLITS)
def test_the_published_files(split: str) -> None:
    benchmark = tofu.load(data_config(str(SHARED / "tofu"), split=split))
    _, n_forget = SPLITS[split]
    assert {name: len(examples) for name, examples in benchmark.sets.items()} == {
        "forget": n_forget,
        "retain": 4000 - n_forget,
        "holdout": n_forget,
        "background": 0,
    }
    assert {name: len(scored.examples) for name, scored in benchmark.evaluated.items()} == {
        "forget": n_forget,
        "retain": 400,
        "holdout": n_forget,
        "real_authors": 100,
        "world_facts": 117,
    }
    assert {len(example.perturbed_answers) for example in benchmark.evaluated["retain"].examples} == {5}
    assert {name for name, scored in benchmark.evaluated.items() if scored.max_new_tokens is None} == {"holdout"}
    assert benchmark.sets["forget"][0].id == f"{split}/0"


@needs_shared
def test_a_limited_retain_set_is_scored_on_rows_that_were_trained() -> None:
    benchmark = tofu.load(data_config(str(SHARED / "tofu"), split="forget01", retain=160, real_authors=7))
    assert len(benchmark.sets["retain"]) == 160
    assert benchmark.evaluated["retain"].examples == benchmark.sets["retain"]
    assert len(benchmark.evaluated["real_authors"].examples) == 7


def test_rows_that_can_be_scored_come_first_under_a_limit(folder: Path) -> None:
    edit(folder / "retain_perturbed.json", lambda rows: rows.__delitem__(slice(0, len(rows) - 3)))
    benchmark = tofu.load(data_config(str(folder), retain=5))
    assert [example.has_variants for example in benchmark.sets["retain"]] == [True] * 3 + [False] * 2
    assert len(benchmark.evaluated["retain"].examples) == 3


def test_the_fingerprint_follows_the_texts(folder: Path) -> None:
    before = tofu.load(data_config(str(folder))).fingerprints()
    edit(folder / "world_facts_perturbed.json", lambda rows: rows[0].__setitem__("answer", "Elsewhere"))
    after = tofu.load(data_config(str(folder))).fingerprints()
    assert {name for name in before if before[name] != after[name]} == {"world_facts"}


def check_refused(folder: Path, *fragments: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        tofu.load(data_config(str(folder)))
    text = "\n".join(caught.value.messages)
    assert all(fragment in text for fragment in fragments), text
    assert all("\n" not in message for message in caught.value.messages)
    return caught.value.messages


def test_no_such_folder(tmp_path: Path) -> None:
    check_refused(tmp_path / "nowhere", "data.source", "nowhere", "is no folder")


def test_missing_files_are_named_all_at_once(folder: Path) -> None:
    (folder / "holdout10.json").unlink()
    (folder / "world_facts_perturbed.json").unlink()
    assert len(check_refused(folder, "holdout10.json", "world_facts_perturbed.json")) == 2


def test_a_corrupt_line_is_named(folder: Path) -> None:
    file = folder / "retain90.json"
    lines = file.read_text().splitlines()
    lines[6] = lines[6][:-5]
    file.write_text("\n".join(lines))
    check_refused(folder, "retain90.json line 7 is not valid JSON")


def test_a_line_that_is_no_object(folder: Path) -> None:
    (folder / "retain90.json").write_text('["question", "answer"]\n')
    check_refused(folder, "retain90.json line 1 needs a JSON object, found list")


def test_a_row_without_an_answer(folder: Path) -> None:
    edit(folder / "forget10.json", lambda rows: rows[3].pop("answer"))
    check_refused(folder, "forget10/3 needs a text under 'answer', found None")


def test_an_empty_forget_set(folder: Path) -> None:
    (folder / "forget10.json").write_text("")
    check_refused(folder, "the set forget10 is empty")


def test_a_forget_set_inside_the_retain_set(folder: Path) -> None:
    (folder / "retain90.json").write_text((folder / "full.json").read_text())
    check_refused(folder, "40 rows of the forget set are in the retain set too", "forget10/0 is retain90/160")


def test_variants_of_another_split(folder: Path) -> None:
    (folder / "forget10_perturbed.json").write_text((folder / "retain_perturbed.json").read_text())
    check_refused(folder, "forget10_perturbed/0", "is not in the forget set of this split")
