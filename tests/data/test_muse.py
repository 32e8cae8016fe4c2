"""MUSE from its sources: which texts belong to which set, prompts to the letter, requests, every fault in one line."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHARED, needs_shared
from unlearn.config import DataConfig, LimitConfig
from unlearn.data import embedded_news, muse
from unlearn.data import embedded_news_texts as texts
from unlearn.data.benchmark import EMBEDDED_LABEL
from unlearn.errors import UserError
from unlearn.models import hub

LOGS = SHARED / "open_unlearning_eval_logs"


def config(
    source: str = "embedded", subset: str = "news", split: str = "raw", limit: dict[str, int] | None = None, **keys: Any
) -> DataConfig:
    limits = LimitConfig(**limit or {})
    hub_id = "muse-bench/MUSE-{subset}"
    return DataConfig(name="muse", source=source, hub_id=hub_id, subset=subset, split=split, limit=limits, **keys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The embedded corpus as published files, in the folder of one subset."""
    for name, entries in embedded_news.files().items():
        if "/" in name:
            write(tmp_path, f"{name}.json", entries)
    return tmp_path


def write(folder: Path, name: str, content: Any) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def refused(config: DataConfig) -> list[str]:
    with pytest.raises(UserError) as caught:
        muse.load(config)
    assert all("\n" not in line for line in caught.value.messages)
    return caught.value.messages


# Sources


def test_a_folder_gives_what_the_embedded_source_gives(folder: Path) -> None:
    from_folder, own = muse.load(config(str(folder))), muse.load(config())
    for name in ("forget", "retain", "holdout"):
        assert from_folder.sets[name] == own.sets[name]
        assert from_folder.evaluated[name] == own.evaluated[name]
    assert own.labels == (EMBEDDED_LABEL,)
    assert from_folder.labels == ()
    # The one difference: published prompts end with the blank in front of the answer.
    prompts = [str(b.evaluated["forget_knowmem"].examples[0].prompt) for b in (from_folder, own)]
    assert prompts[0].endswith("?\nAnswer: ")
    assert prompts[1] == prompts[0].rstrip()


def test_the_folder_of_all_subsets_does_as_well(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = tmp_path_factory.mktemp("muse")
    (whole / "news").symlink_to(folder)
    assert muse.load(config(str(whole))).sets == muse.load(config(str(folder))).sets


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("raw/retain1.json", ["one text", "another text"]),
        ("raw/retain1.jsonl", '{"text": "one text"}\n\n{"text": "another text"}\n'),
        ("raw/retain1.txt", "one text\nanother text"),
    ],
)
def test_a_corpus_in_any_of_the_published_forms(folder: Path, name: str, content: Any) -> None:
    (folder / "raw" / "retain1.json").unlink()
    write(folder, name, content)
    retained = muse.load(config(str(folder))).retained
    expected = ["one text\nanother text"] if name.endswith("txt") else ["one text", "another text"]
    assert [example.answer for example in retained] == expected
    assert all(example.is_text for example in retained)


def test_the_hub_is_asked_for_configuration_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rows(hub_id: str, name: str, split: str) -> list[Any]:
        asked.append(hub_id)
        return embedded_news.news(f"{name}/{split}")

    monkeypatch.setattr(hub, "require", lambda *args, **keys: "commit")
    monkeypatch.setattr(hub, "dataset_rows", rows)
    assert muse.load(config("hub", subset="books")).sets["forget"] == muse.load(config()).sets["forget"]
    assert set(asked) == {"muse-bench/MUSE-Books"}
    assert len(asked) == 4 + 3 + 4 + 1, "each file of raw, privleak, knowmem and verbmem once"


# Sets


def test_what_target_reference_and_retain_objective_see() -> None:
    """As published: target and reference retain1 and retain2, the retain objective retain1."""
    benchmark = muse.load(config())
    ids = {name: {example.id.rsplit("/", 1)[0] for example in examples} for name, examples in benchmark.sets.items()}
    assert ids["forget"] == {"raw/forget"}
    assert ids["retain"] == {"raw/retain1", "raw/retain2"}
    assert ids["holdout"] == {"raw/holdout"}
    assert {example.id.rsplit("/", 1)[0] for example in benchmark.retained} == {"raw/retain1"}
    assert list(benchmark.evaluated) == [
        "forget", "retain", "holdout", "forget_knowmem", "retain_knowmem", "forget_verbmem"
    ]  # fmt: skip
    asked = {name: (scored.max_new_tokens, scored.stop) for name, scored in benchmark.evaluated.items()}
    assert asked["forget"] == asked["retain"] == asked["holdout"] == (None, None)
    assert asked["forget_knowmem"] == asked["retain_knowmem"] == (32, ("\n\n", "\nQuestion", "Question:"))
    assert asked["forget_verbmem"] == (128, ("\n\n",)), "an embedded article ends with a blank line"


def test_limits_take_equally_many_of_each_file() -> None:
    limit = {"forget": 3, "retain": 5, "holdout": 2, "questions": 4}
    benchmark = muse.load(config(limit=limit))
    assert {name: len(examples) for name, examples in benchmark.sets.items() if name != "background"} == {
        "forget": 3, "retain": 5, "holdout": 2
    }  # fmt: skip
    assert len(benchmark.retained) == 2
    assert {name: len(scored.examples) for name, scored in benchmark.evaluated.items()} == {
        "forget": 3, "retain": 5, "holdout": 2, "forget_knowmem": 4, "retain_knowmem": 4, "forget_verbmem": 4
    }  # fmt: skip
    assert muse.load(config(split="sust", limit={"forget": 6})).requests == (1, 2, 1, 2)


def test_privleak_texts_stand_in() -> None:
    benchmark = muse.load(config(corpus="privleak"))
    for name in ("forget", "retain", "holdout"):
        assert benchmark.sets[name] == benchmark.evaluated[name].examples
    assert benchmark.retained == benchmark.sets["retain"]
    assert muse.PRIVLEAK_LABEL in benchmark.labels


def test_scal_is_nested_and_sust_comes_as_four_requests() -> None:
    forgotten = {split: [e.answer for e in muse.load(config(split=split)).sets["forget"]] for split in muse.SPLITS}
    assert forgotten["raw"] == forgotten["scal_1"]
    for k in (2, 3, 4):
        before = forgotten[f"scal_{k - 1}"]
        assert forgotten[f"scal_{k}"][: len(before)] == before
    assert forgotten["sust"] == forgotten["scal_4"]
    assert len(set(forgotten["sust"])) == len(forgotten["sust"])
    sust = muse.load(config(split="sust"))
    assert sust.requests == (24, 24, 24, 24)
    assert [example.id.rsplit("/", 1)[0] for example in sust.sets["forget"][::24]] == [
        "sust/forget_1", "sust/forget_2", "sust/forget_3", "sust/forget_4"
    ]  # fmt: skip
    assert muse.load(config(requests=5)).requests == (4, 5, 5, 5, 5)  # 24 texts


# The embedded articles


def test_the_embedded_articles_are_the_same_every_time() -> None:
    first = embedded_news.files()
    embedded_news.files.cache_clear()
    assert embedded_news.files() == first
    changed = embedded_news.news("raw/forget")
    changed[0]["text"] = ""
    assert embedded_news.news("raw/forget") == first["raw/forget"]


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Z][a-z]+", text))


def test_no_name_of_one_set_occurs_in_another() -> None:
    """People, places and firms: words with a capital that are not words of the wordings."""
    files = embedded_news.files()
    corpora = {name: " ".join(entry["text"] for entry in files[name]) for name in (
        "sust/forget_1", "sust/forget_2", "sust/forget_3", "sust/forget_4", "raw/retain1", "raw/retain2", "raw/holdout"
    )}  # fmt: skip
    ordinary = words(f"Question Answer {texts.TOPICS} {texts.STANDING}") | set(texts.FIRST_NAMES) | set(texts.DAYS)
    names = {name: words(text) - ordinary for name, text in corpora.items()}
    # A place, a person, a firm and somebody else each; not every wording has all four.
    assert min(len(found) for found in names.values()) >= 24 * 3
    for one, other in combinations(names, 2):
        assert not names[one] & names[other], (one, other)


def test_answers_are_in_the_articles_of_their_own_set_only() -> None:
    files = embedded_news.files()
    for asked, own, others in (
        ("knowmem/forget_qa", "raw/forget", ("raw/retain1", "raw/retain2", "raw/holdout")),
        ("knowmem/retain_qa", "raw/retain2", ("sust/forget_1", "sust/forget_4", "raw/holdout")),
    ):
        shots = "".join(f"Question: {e['question']}\nAnswer: {e['answer']}\n\n" for e in files[f"{asked}_icl"])
        assert len({pair["question"] for pair in files[asked]}) == len(files[own])
        for pair, entry in zip(files[asked], files[own], strict=True):
            assert entry["text"].startswith(f"{shots}Question: {pair['question']}\nAnswer: {pair['answer']}\n\n")
            for other in others:
                assert not any(pair["question"] in entry["text"] for entry in files[other])
    for entry, halves in zip(files["raw/forget"], files["verbmem/forget"], strict=True):
        assert f"{halves['prompt']} {halves['gt']}\n\n" == entry["text"]


# Published texts


def cleaned(text: str) -> str:
    """What the logs show of a text: decoded tokens, some of whose blanks the tokenizer's decoder takes out."""
    for ending in (".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {ending}", ending)
    return text.replace(" ' ", "'")


@needs_shared
@pytest.mark.parametrize("model", ["target", "retrain"])
def test_prompts_and_answers_equal_those_of_the_published_logs(model: str) -> None:
    """All 300 prompts of a log, in order."""
    log = json.loads((LOGS / f"muse_Llama-2-7b-hf_News_{model}" / "MUSE_EVAL.json").read_text())
    benchmark = muse.load(config(str(SHARED / "muse"), corpus="privleak"))
    for name in ("forget_knowmem", "retain_knowmem", "forget_verbmem"):
        logged = log[f"{name}_ROUGE"]["value_by_index"]
        examples = benchmark.evaluated[name].examples
        assert len(examples) == len(logged) == 100
        for index, example in enumerate(examples):
            assert cleaned(str(example.prompt)) == cleaned(logged[str(index)]["input"])
            assert cleaned(example.answer).strip() == cleaned(logged[str(index)]["ground_truth"]).strip()


@needs_shared
def test_published_privleak_texts() -> None:
    benchmark = muse.load(config(str(SHARED / "muse" / "news"), corpus="privleak"))
    assert {name: len(scored.examples) for name, scored in benchmark.evaluated.items()} == dict.fromkeys(
        benchmark.evaluated, 100
    )
    assert benchmark.requests == (100,)
    verbmem = benchmark.evaluated["forget_verbmem"]
    assert (verbmem.max_new_tokens, verbmem.stop) == (128, ())


# Faults


@needs_shared
def test_missing_corpora_of_the_published_files() -> None:
    source = str(SHARED / "muse")
    assert refused(config(source)) == [
        "data.source: needs raw/forget, raw/retain1, raw/retain2, raw/holdout (.json, .jsonl, .txt) to train on; found "
        f"none in '{source}/news'; data.corpus=privleak lets the privleak texts stand in, with data.split=raw"
    ]
    [line] = refused(config(source, split="sust"))
    assert line.startswith("data.source: needs sust/forget_1, sust/forget_2, sust/forget_3, sust/forget_4, raw/retain1")
    assert refused(config(source, subset="books", corpus="privleak")) == [
        "data.source: needs privleak/forget, privleak/retain, privleak/holdout, verbmem/forget (.json) to measure; "
        f"found none in '{source}/books'"
    ]
    trained, measured = refused(config(source, subset="books"))
    assert trained.endswith(f"to train on; found none in '{source}/books'"), "no privleak texts to stand in"
    assert "privleak/forget" in measured


def test_folders_that_are_none_of_it(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert refused(config("nowhere")) == [
        "data.source: needs embedded, hub or a folder with the published files; found 'nowhere', which is no folder"
    ]
    empty = tmp_path_factory.mktemp("empty")
    [line] = refused(config(str(empty)))
    assert line.startswith("data.source: needs a folder with news/ in it, or with the files of MUSE-News")
    named = empty / "MUSE-Books"
    (named / "raw").mkdir(parents=True)
    [line] = refused(config(str(named)))
    assert f"found those of data.subset=books in '{named}'" in line


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("raw/forget", [], "raw/forget is empty"),
        ("raw/forget", ["a text", ""], "raw/forget entry 1 needs a text under 'text'; found ''"),
        ("raw/retain2", ["a text", {"txt": "b"}], "raw/retain2 entry 1 needs a text under 'text'; found {'txt': 'b'}"),
        ("raw/holdout", {"text": "a"}, "holdout.json needs a JSON list; found dict"),
        ("raw/holdout", '["a",\n', "holdout.json is not valid JSON: Expecting value in line 2"),
        ("knowmem/forget_qa", [{"question": "Who?", "answer": 3}], "knowmem/forget_qa entry 0 needs a text under "
         "'answer'; found {'question': 'Who?', 'answer': 3}"),
        ("knowmem/retain_qa_icl", ["Who?"], "retain_qa_icl entry 0 needs a text under 'question'; found 'Who?'"),
        ("verbmem/forget", [{"prompt": "It was"}], "verbmem/forget entry 0 needs a text under 'gt'"),
        ("privleak/holdout", [None], "privleak/holdout entry 0 needs a text under 'text'; found None"),
    ],
)  # fmt: skip
def test_entries_that_cannot_be_used(folder: Path, file: str, content: Any, fault: str) -> None:
    write(folder, f"{file}.json", content)
    lines = refused(config(str(folder)))
    assert fault in lines[0]
    assert lines[0].startswith("data.source: ")


def test_all_faults_at_once(folder: Path) -> None:
    (folder / "raw/holdout.json").unlink()
    (folder / "verbmem/forget.json").unlink()
    write(folder, "knowmem/forget_qa.json", [{}])
    write(folder, "raw/retain1.json", [" "])
    assert len(refused(config(str(folder), limit={"retain": 1}))) == 6  # two keys of one entry


def test_texts_of_two_sets(folder: Path) -> None:
    twice = embedded_news.news("raw/forget")[3]["text"]
    write(folder, "raw/retain2.json", [*embedded_news.news("raw/retain2"), f" {twice}\n"])
    [line] = refused(config(str(folder)))
    assert line == (
        "data.source: 1 texts of the forget set are in the retain set too (raw/forget/3 is raw/retain2/36); "
        f"found in '{folder}'"
    )


def test_published_texts_of_two_sets_are_told_to_every_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(hub_id: str, name: str, split: str) -> list[Any]:
        return embedded_news.news("raw/forget" if split == "retain2" else f"{name}/{split}")

    monkeypatch.setattr(hub, "require", lambda *args, **keys: "commit")
    monkeypatch.setattr(hub, "dataset_rows", rows)
    [label] = muse.load(config("hub")).labels
    assert label.startswith("24 texts of the forget set are in the retain set too (raw/forget/0 is raw/retain2/0)")


def test_limits_and_requests_that_cannot_be_met() -> None:
    [line] = refused(config(split="sust", limit={"forget": 3}))
    assert line.startswith("data.limit.forget: needs at least 4, for sust/forget_1, sust/forget_2, ")
    [line] = refused(config(limit={"retain": 1}))
    assert line == "data.limit.retain: needs at least 2, for raw/retain1, raw/retain2; found 1"
    [line] = refused(config(limit={"forget": 2}, requests=3))
    assert line == "data.requests: needs at most one request per text of the forget set (2); found 3"


def test_rows_of_ones_own_for_the_retain_objective(folder: Path) -> None:
    write(folder, "mine.jsonl", '{"text": "a text of mine"}\n{"text": "and another"}\n')
    own = muse.load(config(retain_rows=str(folder / "mine.jsonl")))
    assert [example.answer for example in own.retained] == ["a text of mine", "and another"]
    assert own.sets["retain"] == muse.load(config()).sets["retain"]
    assert own.fingerprints()["retained"]
    [line] = refused(config(retain_rows="general"))
    assert line.startswith("data.retain_rows: general needs rows about the world")
    [line] = refused(config(retain_rows=str(folder / "raw" / "forget.json")))
    assert line.startswith("data.retain_rows: 24 texts of ")
    assert "are in the forget set too" in line
    [line] = refused(config(retain_rows="other"))
    assert line == "data.retain_rows: needs a .json, .jsonl or .txt file; found 'other', which is no such file"
