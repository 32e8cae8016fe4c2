"""Other answers to the rows: from our refusals, other rows, columns and files, and every fault in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHARED, needs_shared
from tests.helpers import compose_run, data_config, tiny_setup
from unlearn.data import alternates, tofu
from unlearn.data.batches import Pairing, micro_batches
from unlearn.data.encode import Encoder, Row
from unlearn.data.example import Example
from unlearn.data.refusals import REFUSALS
from unlearn.errors import UserError

Rows = dict[str, list[Row]]


def forget() -> tuple[Example, ...]:
    return tiny_setup()[1].sets["forget"]


def retain() -> tuple[Example, ...]:
    return tiny_setup()[1].sets["retain"]


def load(choice: str | Path, examples: tuple[Example, ...] | None = None, seed: int = 0) -> Rows:
    return alternates.load(str(choice), forget() if examples is None else examples, tiny_setup()[3], seed, retain())


def texts(rows: Rows) -> dict[str, list[str]]:
    return {id: [row.answer for row in found] for id, found in rows.items()}


def refused(choice: str | Path, examples: tuple[Example, ...] | None = None) -> list[str]:
    with pytest.raises(UserError) as caught:
        load(choice, examples)
    messages = caught.value.messages
    assert all(message.startswith("method.alternates: ") and "\n" not in message for message in messages)
    return messages


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two answers to every forget row, and a row that nobody asked for."""
    rows: list[dict[str, Any]] = [
        {"question": e.question, "answer": [f"First {k}.", f"Second {k}."]} for k, e in enumerate(forget())
    ]
    return write(tmp_path / "mine.jsonl", [*rows, {"question": "Who else?", "answer": "Nobody."}])


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_our_refusals_are_60_different_sentences() -> None:
    assert len(REFUSALS) == 60
    assert len({text.lower() for text in REFUSALS}) == 60
    assert all(text == " ".join(text.split()) and text[-1] in ".?" for text in REFUSALS)


@needs_shared
def test_no_refusal_is_taken_from_the_published_list() -> None:
    published = (SHARED / "tofu" / "idontknow.jsonl").read_text()
    words = {
        " ".join("".join(c for c in line.lower() if c.isalpha() or c == " ").split()) for line in published.splitlines()
    }
    ours = {" ".join("".join(c for c in text.lower() if c.isalpha() or c == " ").split()) for text in REFUSALS}
    assert len(words) == 100
    assert not words & ours


@pytest.mark.parametrize("choice", alternates.CHOICES)
def test_every_row_has_alternates_under_its_own_prompt(choice: str) -> None:
    _, _, tokenizer, encoder = tiny_setup()
    found = load(choice)
    assert list(found) == [example.id for example in forget()]
    ids = [row.id for rows in found.values() for row in rows]
    assert len(set(ids)) == len(ids)
    for own, rows in zip(encoder.answers(forget()), found.values(), strict=True):
        assert len(rows) == 5
        assert len({row.answer for row in rows}) == len(rows)
        assert own.answer not in {row.answer for row in rows}
        for k, row in enumerate(rows):
            assert (row.id, row.kind) == (f"{own.id}#{k}", "alternate")
            assert row.input_ids[: row.n_prompt] == own.input_ids[: own.n_prompt]
            labels = tokenizer.decode(row.input_ids[row.n_prompt :])
            assert labels.strip() == f"{row.answer}</s>"


def test_the_column_gives_the_texts_of_the_benchmark_in_their_order() -> None:
    wanted = {example.id: list(example.perturbed_answers) for example in forget()}
    assert texts(load("perturbed_answer")) == wanted


@pytest.mark.parametrize(("choice", "source"), [("shuffled", forget), ("retained", retain)])
def test_shuffled_answers_are_those_of_other_rows_and_retained_ones_those_of_rows_to_keep(
    choice: str, source: Callable[[], tuple[Example, ...]]
) -> None:
    answers = {example.answer for example in source()}
    assert all(set(found) < answers for found in texts(load(choice)).values())


def test_retained_answers_do_not_depend_on_the_other_forget_rows() -> None:
    assert texts(load("retained", forget()[::-1][:3])).items() <= texts(load("retained")).items()


def test_rows_to_keep_that_answer_alike_leave_out_the_own_answer() -> None:
    pool = (replace(retain()[0], answer=forget()[0].answer), replace(retain()[1], answer="Another."))
    found = alternates.load("retained", forget()[:2], tiny_setup()[3], 0, pool)
    assert texts(found)[forget()[0].id] == ["Another."]
    assert sorted(texts(found)[forget()[1].id]) == sorted([forget()[0].answer, "Another."])


def test_without_rows_to_keep_there_are_no_answers_of_them() -> None:
    need = "method.alternates: needs another answer among the rows to keep (retained) for every row;"
    for pool, count in {(): 2, (replace(retain()[0], answer=forget()[0].answer),): 1}.items():
        with pytest.raises(UserError) as caught:
            alternates.load("retained", forget()[:2], tiny_setup()[3], 0, pool)
        assert caught.value.messages == [f"{need} {count} of 2 have none (first: forget10/0)"]


def test_the_requests_of_a_set_draw_from_themselves_and_have_ids_of_their_own() -> None:
    """8 rows in 3 requests: 2, 3 and 3 of them, so 1 or 2 other answers each."""
    pairs = Pairing(len(forget()), len(retain()), 4, 0, requests=3)
    found: Rows = {}
    for request in range(3):
        part = tuple(forget()[place] for place in pairs.rows_of(request))
        own = load("shuffled", part)
        for example in part:
            others = {other.answer for other in part} - {example.answer}
            assert {row.answer for row in own[example.id]} == others
        found |= own
    assert list(found) == [example.id for example in forget()]
    assert [len(rows) for rows in found.values()] == [1] * 2 + [2] * 6
    ids = [row.id for rows in found.values() for row in rows]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("choice", ["refusals", "shuffled", "retained"])
def test_draws_are_a_function_of_seed_and_row(choice: str) -> None:
    first = texts(load(choice))
    assert texts(load(choice)) == first
    assert texts(load(choice, seed=1)) != first
    assert len({tuple(found) for found in first.values()}) == len(first), "rows differ from one another"


def test_a_refusal_does_not_depend_on_the_other_rows() -> None:
    assert texts(load("refusals", forget()[::-1][:3])).items() <= texts(load("refusals")).items()


def test_draws_use_all_refusals() -> None:
    examples = tuple(replace(forget()[0], id=f"x/{k}") for k in range(200))
    assert {text for found in texts(load("refusals", examples)).values() for text in found} == set(REFUSALS)


def test_what_equals_the_own_answer_is_never_drawn() -> None:
    own = tuple(Example(f"x/{k}", "Who?", text.replace(" ", "  ", 1)) for k, text in enumerate(REFUSALS))
    for choice in ("refusals", "shuffled", "retained"):
        drawn = alternates.load(choice, own, tiny_setup()[3], 0, own)
        for example, found in zip(own, texts(drawn).values(), strict=True):
            assert len(found) == 5
            assert " ".join(example.answer.split()) not in {" ".join(text.split()) for text in found}


def test_a_small_set_gives_as_many_as_it_has() -> None:
    answers = texts(load("shuffled", forget()[:3]))
    assert sorted(answers[forget()[0].id]) == sorted(example.answer for example in forget()[1:3])
    need = "method.alternates: needs another answer among the rows of its request (shuffled) for every row;"
    assert refused("shuffled", forget()[:1]) == [f"{need} 1 of 1 have none (first: forget10/0)"]
    alike = tuple(replace(example, answer="The same.") for example in forget()[:3])
    assert refused("shuffled", alike) == [f"{need} 3 of 3 have none (first: forget10/0)"]


def test_a_file_is_matched_by_question(file: Path) -> None:
    wanted = {example.id: [f"First {k}.", f"Second {k}."] for k, example in enumerate(forget())}
    assert texts(load(file)) == wanted
    write(file, lines(file)[::-1])
    assert texts(load(file)) == wanted


def test_a_question_may_stand_in_several_lines_and_five_texts_are_taken(file: Path) -> None:
    extra = [{"question": f" {forget()[0].question}\n", "answer": f"More {k}."} for k in range(9)]
    write(file, [*lines(file), {"question": forget()[0].question, "answer": "First 0."}, *extra])
    assert texts(load(file))[forget()[0].id] == ["First 0.", "Second 0.", "More 0.", "More 1.", "More 2."]


def test_a_file_that_leaves_rows_out(file: Path) -> None:
    write(file, lines(file)[3:])
    assert refused(file) == [
        "method.alternates: needs an answer in mine.jsonl for every row; 3 of 8 have none (first: forget10/0)"
    ]


def test_answers_that_are_empty_or_the_own_answer_are_counted(file: Path) -> None:
    rows = lines(file)
    rows[1]["answer"] = ["Fine.", " "]
    rows[4]["answer"] = f"{forget()[4].answer} "
    rows[5]["answer"] = forget()[5].answer
    write(file, rows)
    need = "method.alternates: needs an answer in mine.jsonl for every row;"
    assert refused(file) == [
        f"{need} 1 of 8 have an empty one (first: forget10/1)",
        f"{need} 2 of 8 have their own answer (first: forget10/4)",
    ]


@pytest.mark.parametrize(
    ("row", "fragment"),
    [
        ({"answer": "Nobody."}, "mine.jsonl/9 needs a text under 'question', found None"),
        ({"question": "Who?"}, "mine.jsonl/9 needs texts under 'answer', found None"),
        ({"question": "Who?", "answer": []}, "mine.jsonl/9 needs texts under 'answer', found []"),
        ({"question": "Who?", "answer": ["a", 3]}, "mine.jsonl/9 needs texts under 'answer', found ['a', 3]"),
    ],
)
def test_a_row_that_is_not_a_question_with_answers(file: Path, row: dict[str, Any], fragment: str) -> None:
    write(file, [*lines(file), row])
    assert refused(file) == [f"method.alternates: {fragment}"]
    write(file, [*lines(file), row])
    assert refused(file) == [f"method.alternates: {fragment} (and 1 more rows)"]


def test_a_file_that_is_no_json_lines(file: Path) -> None:
    file.write_text('{"question": ')
    (line,) = refused(file)
    assert "mine.jsonl line 1 is not valid JSON" in line


def test_an_unknown_choice_and_a_folder(tmp_path: Path) -> None:
    need = "needs refusals, shuffled, retained, perturbed_answer or a JSON-lines file"
    for name in ("perturbed_answers", "paraphrased_answer"):
        assert refused(name) == [f"method.alternates: {need}; found '{name}', which is no file"]
    assert refused(tmp_path) == [f"method.alternates: {need}; found '{tmp_path}', which is a folder"]


def test_rows_without_the_column_are_counted() -> None:
    bare = tuple(replace(e, perturbed_answers=()) for e in forget()[2:4])
    assert refused("perturbed_answer", (*forget()[:2], *bare)) == [
        "method.alternates: needs a text under 'perturbed_answer' for every row; 2 of 4 have none (first: forget10/2)"
    ]


def test_a_long_alternate_is_cut_at_its_end_and_keeps_the_prompt() -> None:
    cfg, _, tokenizer, _ = tiny_setup()
    encoder = Encoder(tokenizer, cfg.model.format, 64)
    example = Example("x/0", "Who was it? " * 3, "Me.", perturbed_answers=("Nobody at all. " * 30, "You."))
    (own,) = encoder.answers([example])
    long, short = alternates.load("perturbed_answer", (example,), encoder, 0)["x/0"]
    assert not own.truncated
    assert not short.truncated
    assert long.truncated
    assert len(long.input_ids) == 64
    assert long.input_ids[: long.n_prompt] == own.input_ids[: own.n_prompt] == short.input_ids[: short.n_prompt]
    assert long.n_content == long.n_answer, "no end marker: the answer goes on"


def test_an_alternate_that_the_tokenizer_cannot_spell_names_the_setting(file: Path) -> None:
    write(file, [{**row, "answer": "Say </s><s> twice."} for row in lines(file)])
    (line,) = refused(file)
    assert "row forget10/0#0 (alternate)" in line


def test_batches_carry_the_alternate_of_each_row_in_order() -> None:
    _, _, _, encoder = tiny_setup()
    found = load("perturbed_answer")
    second = {id: rows[1] for id, rows in found.items()}
    batches = micro_batches(encoder.answers(forget()), 3, encoder.pad_id, second)
    assert [len(batch) for batch in batches] == [3, 3, 2]
    for batch in batches:
        assert batch.alternate is not None
        assert batch.alternate.ids == tuple(f"{id}#1" for id in batch.ids)
        assert batch.alternate.n_tokens == sum(second[id].n_answer for id in batch.ids)


@needs_shared
@pytest.mark.parametrize(("split", "n"), [("forget10", 400), ("forget01", 40)])
def test_five_perturbed_answers_for_each_published_row(split: str, n: int) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SHARED / "models" / "stories260K")
    encoder = Encoder(tokenizer, compose_run().model.format, 512)
    benchmark = tofu.load(data_config(str(SHARED / "tofu"), split=split))
    examples = benchmark.sets["forget"]
    own = {row.id: row for row in encoder.answers(examples)}
    kept = benchmark.retained[:400]
    for choice in alternates.CHOICES:
        found = alternates.load(choice, examples, encoder, 0, kept)
        assert len(found) == n
        assert {len(rows) for rows in found.values()} == {5}
        assert all(
            row.input_ids[: row.n_prompt] == own[id].input_ids[: own[id].n_prompt]
            for id, rows in found.items()
            for row in rows
        )
