"""Labels other than the truth: a function of the row, and of nothing that happens around it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AddedToken

from tests.conftest import SHARED, needs_shared
from tests.helpers import tiny_setup
from unlearn.data.batches import collate, micro_batches
from unlearn.data.encode import Row
from unlearn.data.labels import random_labels, refusal_labels, vocabulary

WORDS = torch.arange(100, 150)


def row(n_prompt: int, n_answer: int, id: str = "x/0") -> Row:
    return Row(id, "answer", "", "", tuple(range(10, 10 + n_prompt + n_answer)), n_prompt, n_answer)


ROWS = [row(k % 3 + 1, k % 5 + 1, f"x/{k}") for k in range(11)]


def by_id(size: int, rows: list[Row] = ROWS, step: int = 0, seed: int = 0) -> dict[str, list[int]]:
    labels: dict[str, list[int]] = {}
    for batch in micro_batches(rows, size, pad_id=0):
        drawn = random_labels(batch, WORDS, seed, step)
        assert drawn.shape == batch.labels_N.shape
        labels |= {id: drawn[batch.row_N == place].tolist() for place, id in enumerate(batch.ids)}
    return labels


@pytest.mark.parametrize("size", [1, 3, 4])
def test_random_labels_do_not_depend_on_how_the_step_is_cut(size: int) -> None:
    assert by_id(size) == by_id(11) == by_id(11, rows=ROWS[::-1])


def test_random_labels_change_with_step_seed_and_row() -> None:
    rows = [row(1, 40, f"x/{k}") for k in range(4)]
    drawn = [by_id(4, rows), by_id(4, rows, step=1), by_id(4, rows, seed=1)]
    sequences = [tuple(labels) for found in drawn for labels in found.values()]
    assert len(set(sequences)) == len(sequences) == 12


def test_random_labels_leave_the_global_random_state_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    by_id(4)
    assert torch.equal(torch.rand(3), expected)


def test_random_labels_are_uniform() -> None:
    """Pearson's statistic over 50 cells has mean 49 and standard deviation sqrt(2 * 49) = 9.9: 49 + 4 * 9.9 = 89."""
    drawn = torch.tensor(
        [token for labels in by_id(64, [row(1, 20, f"x/{k}") for k in range(500)]).values() for token in labels]
    )
    counts = torch.bincount(drawn - 100, minlength=50).double()
    assert counts.numel() == 50
    assert ((counts - 200) ** 2 / 200).sum().item() < 89


def test_first_labels_of_neighbouring_rows_are_uniform_too() -> None:
    """Seeds of rows that differ in one figure must not give draws that are alike."""
    first = torch.tensor([labels[0] for labels in by_id(64, [row(1, 1, f"x/{k}") for k in range(5000)]).values()])
    counts = torch.bincount(first - 100, minlength=50).double()
    assert ((counts - 100) ** 2 / 100).sum().item() < 89


def test_a_refusal_is_repeated_over_each_answer() -> None:
    batch = collate([row(2, 5, "a"), row(1, 0, "b"), row(3, 2, "c"), row(1, 3, "d")], pad_id=0)
    assert refusal_labels(batch, [7, 8]).tolist() == [7, 8, 7, 8, 7, 7, 8, 7, 8, 7]
    assert refusal_labels(batch, [7]).tolist() == [7] * 10


def test_rows_without_answer_tokens_get_no_labels() -> None:
    batch = collate([row(3, 0, "a"), row(2, 0, "b")], pad_id=0)
    assert random_labels(batch, WORDS, 0, 0).shape == refusal_labels(batch, [7, 8]).shape == (0,)
    assert random_labels(batch, WORDS, 0, 0).dtype == torch.int64


def test_the_vocabulary_is_every_token_but_the_special_ones() -> None:
    import copy

    tokenizer: Any = copy.deepcopy(tiny_setup()[2])
    assert vocabulary(tokenizer).tolist() == list(range(3, len(tokenizer))), "<pad>, <s> and </s> are the first three"
    tokenizer.add_tokens([AddedToken("<|reserved|>", special=True), "plain"])
    assert vocabulary(tokenizer).tolist() == [*range(3, len(tokenizer) - 2), len(tokenizer) - 1]


@needs_shared
def test_the_vocabulary_of_a_published_tokenizer() -> None:
    from transformers import AutoTokenizer

    words = vocabulary(AutoTokenizer.from_pretrained(SHARED / "models" / "stories260K"))
    assert words.tolist() == list(range(3, 512)), "<unk>, <s> and </s> are special"


def test_the_tokens_of_a_refusal_decode_to_it() -> None:
    _, _, tokenizer, encoder = tiny_setup()
    assert tokenizer.decode(encoder.answer_ids("No idea")).strip() == "No idea"
