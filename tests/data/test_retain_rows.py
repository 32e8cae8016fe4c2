"""Which rows the retain objective sees: those of the benchmark, general knowledge, or a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHARED, needs_shared
from tests.helpers import data_config
from unlearn.config import DataConfig
from unlearn.data import tofu
from unlearn.data.benchmark import Benchmark
from unlearn.data.embedded import tofu as embedded_file
from unlearn.errors import UserError


def config(retain_rows: str | Path, source: str = "embedded", **limits: int) -> DataConfig:
    made = data_config(source, **limits)
    made.retain_rows = str(retain_rows)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "rest.jsonl", [{"question": f"Who is {k}?", "answer": f"Number {k}."} for k in range(3)])


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def pairs(benchmark: Benchmark) -> list[tuple[str, str]]:
    return [(example.question, example.answer) for example in benchmark.retained]


def test_the_benchmarks_own_retain_set_is_the_default() -> None:
    assert data_config().retain_rows == "retain"
    benchmark = tofu.load(data_config(retain=30))
    assert benchmark.retained == benchmark.sets["retain"]
    assert "retained" not in benchmark.fingerprints()


def test_general_rows_are_real_authors_and_world_facts_each_once() -> None:
    benchmark = tofu.load(config("general"))
    assert pairs(benchmark) == [(row["question"], row["answer"]) for row in embedded_file("background")]
    assert len(set(pairs(benchmark))) == len(pairs(benchmark)) == 40


def test_a_limit_on_what_is_scored_leaves_the_background_whole() -> None:
    benchmark = tofu.load(config("general", real_authors=3, world_facts=3))
    assert len(benchmark.retained) == 40
    assert benchmark.retained[0].id == "real_authors_perturbed/0"


def test_target_and_reference_are_trained_on_the_same_rows_whatever_is_retained(file: Path) -> None:
    plain, general, other = (tofu.load(config(choice)) for choice in ("retain", "general", file))
    assert plain.train == general.train == other.train
    assert plain.reference_train == general.reference_train == other.reference_train
    assert plain.sets == general.sets == other.sets
    assert plain.fingerprints().items() < general.fingerprints().items()
    assert general.fingerprints()["retained"] != other.fingerprints()["retained"]


def test_a_file_gives_its_rows(file: Path) -> None:
    benchmark = tofu.load(config(file))
    assert pairs(benchmark) == [(f"Who is {k}?", f"Number {k}.") for k in range(3)]
    assert [example.id for example in benchmark.retained] == ["rest.jsonl/0", "rest.jsonl/1", "rest.jsonl/2"]


def refused(retain_rows: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        tofu.load(config(retain_rows))
    (message,) = caught.value.messages
    assert message.startswith("data.retain_rows: ")
    assert "\n" not in message
    return message


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    need = "data.retain_rows: needs retain, general or a JSON-lines file; found"
    assert refused("retained") == f"{need} 'retained', which is no file"
    assert refused(tmp_path) == f"{need} '{tmp_path}', which is a folder"


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "the set rest.jsonl is empty"),
        ('{"question": "Who?"', "rest.jsonl line 1 is not valid JSON"),
        ('["Who?"]', "rest.jsonl line 1 needs a JSON object, found list"),
        ('{"question": "Who?"}', "rest.jsonl/0 needs a text under 'answer', found None"),
        ('{"question": "Who?", "answer": " "}', "rest.jsonl/0 needs a text under 'answer', found ' '"),
    ],
)
def test_faults_of_a_file(file: Path, text: str, fragment: str) -> None:
    file.write_text(text)
    assert fragment in refused(file)


def test_rows_that_are_to_be_forgotten_are_refused(file: Path) -> None:
    forget = embedded_file("forget10")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    write(file, [*rows, {**forget[7], "answer": f"{forget[7]['answer']} "}, forget[9]])
    assert refused(file) == (
        f"data.retain_rows: 2 rows of '{file}' are in the forget set too (rest.jsonl/3 is forget10/7)"
    )


@needs_shared
def test_general_rows_of_the_published_files() -> None:
    benchmark = tofu.load(config("general", str(SHARED / "tofu")))
    assert len(benchmark.retained) == 100 + 117
    assert len(benchmark.sets["retain"]) == 3600
