"""Collation under an explicit mask, and the order of rows: seeded, complete, and a function of the step alone."""

from __future__ import annotations

import pytest
import torch

from unlearn.data.batches import Pairing, by_length, collate, epoch_batches, micro_batches, permutation
from unlearn.data.encode import Row


def row(n_prompt: int, n_answer: int, id: str = "x/0") -> Row:
    ids = tuple(range(10, 10 + n_prompt + n_answer))
    return Row(id, "answer", "", "", ids, n_prompt, n_answer)


def test_positions_predict_the_next_token_and_padding_is_masked() -> None:
    batch = collate([row(3, 2), row(1, 1)], pad_id=11)
    assert batch.input_ids_BT.tolist() == [[10, 11, 12, 13, 14], [10, 11, 11, 11, 11]]
    assert batch.attention_mask_BT.tolist() == [[1] * 5, [1, 1, 0, 0, 0]], "a real token may have the pad's id"
    assert batch.row_N.tolist() == [0, 0, 1]
    assert batch.position_N.tolist() == [2, 3, 0]
    assert batch.labels_N.tolist() == [13, 14, 11]


def test_a_row_without_labels_gives_none() -> None:
    batch = collate([row(3, 0), row(2, 1)], pad_id=0)
    assert batch.row_N.tolist() == [1]


def test_rows_that_all_have_no_labels() -> None:
    (batch,) = micro_batches([row(3, 0, "a"), row(2, 0, "b")], 4, pad_id=0)
    assert batch.ids == ("b", "a")
    assert batch.n_tokens == 0
    assert {part.dtype for part in (batch.row_N, batch.position_N, batch.labels_N)} == {torch.int64}
    assert batch.attention_mask_BT.sum(1).tolist() == [2, 3]


def test_an_alternate_goes_with_its_row_into_the_batch_and_onto_the_device() -> None:
    rows = [row(k % 5 + 1, 2, f"x/{k}") for k in range(7)]
    alternates = {made.id: row(made.n_prompt, 9 - k, f"{made.id}#0") for k, made in enumerate(rows)}
    plain, batches = micro_batches(rows, 3, pad_id=0), micro_batches(rows, 3, pad_id=0, alternates=alternates)
    assert [batch.ids for batch in batches] == [batch.ids for batch in plain], "the order is that of the rows"
    for batch in batches:
        moved = batch.to("meta")
        assert batch.alternate is not None
        assert moved.alternate is not None
        assert batch.alternate.ids == moved.alternate.ids == tuple(f"{id}#0" for id in batch.ids)
        assert {moved.labels_N.device.type, moved.alternate.labels_N.device.type} == {"meta"}
        lengths = [alternates[id].n_answer for id in batch.ids]
        assert torch.bincount(batch.alternate.row_N).tolist() == lengths
    assert plain[0].alternate is None
    assert plain[0].to("meta").alternate is None


def test_micro_batches_hold_every_row_once() -> None:
    rows = [row(k % 5 + 1, 2, f"x/{k}") for k in range(11)]
    batches = micro_batches(rows, 4, pad_id=0)
    assert [len(batch) for batch in batches] == [4, 4, 3]
    assert sorted(id for batch in batches for id in batch.ids) == sorted(row.id for row in rows)


@pytest.mark.parametrize("n", [1, 40, 131])
def test_a_training_epoch_visits_every_row_once_in_batches_of_like_length(n: int) -> None:
    rows = [row(1 + 7 * k % 23, 2, f"x/{k}") for k in range(n)]
    batches = epoch_batches(rows, 4, seed=0, epoch=0)
    assert sorted(place for batch in batches for place in batch) == list(range(n))
    assert len(batches) == -(-n // 4)
    padded = sum(len(batch) * max(len(rows[place].input_ids) for place in batch) for batch in batches)
    assert padded <= 1.25 * sum(len(row.input_ids) for row in rows)
    if n > 1:
        assert epoch_batches(rows, 4, seed=0, epoch=1) != batches


def test_evaluation_batches_keep_to_the_token_budget_and_know_their_rows() -> None:
    rows = [row(k + 1, 2, f"x/{k}") for k in range(9)]
    places: list[int] = []
    for found, batch in by_length(rows, token_budget=24, pad_id=0):
        assert batch.input_ids_BT.numel() <= 24
        assert [rows[place].id for place in found] == list(batch.ids)
        places += found
    assert sorted(places) == list(range(9))


def test_a_row_longer_than_the_budget_goes_alone() -> None:
    assert [len(batch) for _, batch in by_length([row(30, 2), row(1, 1)], token_budget=8, pad_id=0)] == [1, 1]


@pytest.mark.parametrize("anchor", ["forget", "retain"])
@pytest.mark.parametrize(("n_forget", "n_retain", "batch_size"), [(40, 160, 16), (5, 3, 4), (1, 1, 8), (7, 100, 1)])
def test_an_epoch_visits_every_row_of_the_anchor_once(
    anchor: str, n_forget: int, n_retain: int, batch_size: int
) -> None:
    pairs = Pairing(n_forget, n_retain, batch_size, seed=3, anchor=anchor)
    for epoch in range(3):
        steps = range(epoch * pairs.steps_per_epoch, (epoch + 1) * pairs.steps_per_epoch)
        seen = [place for step in steps for place in pairs.at(step)[0 if anchor == "forget" else 1]]
        assert sorted(seen) == list(range(pairs.n_anchor))
        sizes = [len(pairs.at(step)[0]) for step in steps]
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= 1
        assert all(len(pairs.at(step)[0]) == len(pairs.at(step)[1]) for step in steps)


def test_the_other_set_comes_without_replacement_within_its_own_epochs() -> None:
    pairs = Pairing(10, 25, 5, seed=0)
    stream = [place for step in range(10) for place in pairs.at(step)[1]]
    assert sorted(stream[:25]) == list(range(25))
    assert sorted(stream[25:]) == list(range(25))
    assert stream[:25] != stream[25:]


def test_order_is_a_function_of_seed_and_step_and_of_no_global_state() -> None:
    straight = [Pairing(40, 160, 16, seed=1).at(step) for step in range(6)]
    permutation.cache_clear()
    torch.manual_seed(99)
    resumed = [Pairing(40, 160, 16, seed=1).at(step) for step in range(3, 6)]
    assert resumed == straight[3:]
    assert [Pairing(40, 160, 16, seed=2).at(step) for step in range(6)] != straight


def test_a_known_order_on_every_machine() -> None:
    assert permutation(8, 0, "forget", 0) == (6, 7, 0, 1, 2, 3, 5, 4)


def test_fresh_probe_rows_are_not_those_of_the_step() -> None:
    pairs = Pairing(40, 160, 16, seed=0)
    fresh = pairs.fresh_retain(4, 48)
    assert len(set(fresh)) == 48
    assert not set(fresh) & set(pairs.at(4)[1])
    assert fresh != pairs.fresh_retain(5, 48)


def test_too_small_a_set_gives_what_it_has() -> None:
    assert len(Pairing(4, 6, 4, seed=0).fresh_retain(0, 48)) == 2
