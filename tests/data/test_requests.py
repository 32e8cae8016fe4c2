"""Removal requests one after the other: which forget rows, which retain rows, and when a request is done."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from tests.conftest import SHARED, needs_shared
from tests.helpers import data_config
from unlearn.data import tofu
from unlearn.data.batches import Pairing, stream
from unlearn.errors import UserError


@pytest.mark.parametrize("anchor", ["forget", "retain"])
@pytest.mark.parametrize(("n_forget", "n_retain", "batch_size"), [(40, 160, 16), (5, 3, 4), (1, 1, 8), (7, 100, 1)])
def test_one_request_gives_the_plain_order(anchor: str, n_forget: int, n_retain: int, batch_size: int) -> None:
    """Step s of an epoch over n rows in k steps takes the places round(n s / k) to round(n (s + 1) / k) of a stream."""
    n = n_forget if anchor == "forget" else n_retain
    steps = math.ceil(n / batch_size)
    pairs = Pairing(n_forget, n_retain, batch_size, 3, anchor, epochs=2)
    assert (pairs.steps_per_epoch, pairs.total) == (steps, 2 * steps)
    # Past the end of the run too: the order is endless.
    for step in range(3 * steps):
        epoch, part = divmod(step, steps)
        start = epoch * n + round(n * part / steps)
        count = epoch * n + round(n * (part + 1) / steps) - start
        assert pairs.at(step) == (
            stream(n_forget, 3, "forget", start, count),
            stream(n_retain, 3, "retain", start, count),
        )
        assert pairs.request_of(step) == 0
        assert pairs.epoch_of(step) == (step + 1) / steps


def test_a_known_step_on_every_machine() -> None:
    assert Pairing(40, 160, 16, seed=1).at(4) == (
        [21, 11, 35, 9, 22, 0, 18, 34, 3, 4, 7, 10, 17, 25],
        [42, 20, 95, 93, 57, 107, 77, 151, 15, 3, 40, 117, 132, 63],
    )


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(("n_forget", "requests", "batch_size"), [(40, 4, 16), (40, 3, 8), (5, 5, 4), (17, 4, 2)])
def test_each_request_has_all_its_epochs_before_the_next(
    n_forget: int, requests: int, batch_size: int, epochs: int
) -> None:
    pairs = Pairing(n_forget, 100, batch_size, seed=0, requests=requests, epochs=epochs)
    parts = [list(pairs.rows_of(request)) for request in range(requests)]
    assert [row for part in parts for row in part] == list(range(n_forget))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert pairs.total == epochs * sum(math.ceil(size / batch_size) for size in sizes)
    assert pairs.total == epochs * pairs.steps_per_epoch
    for request, part in enumerate(parts):
        steps = pairs.steps_of(request)
        assert len(steps) == epochs * pairs.steps_per_epoch_of(request)
        assert {pairs.request_of(step) for step in steps} == {request}
        for epoch in range(epochs):
            length = pairs.steps_per_epoch_of(request)
            seen = [row for step in steps[epoch * length : (epoch + 1) * length] for row in pairs.at(step)[0]]
            assert sorted(seen) == part
            assert pairs.epoch_of(steps[(epoch + 1) * length - 1]) == epoch + 1
    assert [step for request in range(requests) for step in pairs.steps_of(request)] == list(range(pairs.total))


def test_the_retain_stream_goes_on_from_request_to_request() -> None:
    """Two epochs over 17 forget rows in 4 requests take 34 retain rows: 3 epochs of 10 and 4 more."""
    pairs = Pairing(17, 10, 3, seed=0, requests=4, epochs=2)
    retain = [row for step in range(pairs.total) for row in pairs.at(step)[1]]
    assert retain == stream(10, 0, "retain", 0, 34)
    assert all(len(pairs.at(step)[0]) == len(pairs.at(step)[1]) for step in range(pairs.total))


def test_with_the_retain_set_as_anchor_every_request_has_the_retain_epochs() -> None:
    pairs = Pairing(6, 10, 4, seed=0, anchor="retain", requests=3, epochs=2)
    assert pairs.total == 3 * 2 * 3
    for request in range(3):
        steps = pairs.steps_of(request)
        assert len(steps) == 6
        for half in (steps[:3], steps[3:]):
            assert sorted(row for step in half for row in pairs.at(step)[1]) == list(range(10))
        forgotten = [row for step in steps for row in pairs.at(step)[0]]
        assert len(forgotten) == 20
        assert set(forgotten) == {2 * request, 2 * request + 1}


def test_steps_that_are_given_are_shared_out_evenly() -> None:
    pairs = Pairing(40, 160, 16, seed=0, requests=4, epochs=99, max_steps=10)
    assert pairs.total == 10
    assert [pairs.steps_of(request) for request in range(4)] == [range(2), range(2, 5), range(5, 7), range(7, 10)]
    # Parts of 10 rows are one step an epoch: 2, 3, 2, 3 passes of 10 rows.
    assert [row for step in range(10) for row in pairs.at(step)[1]] == stream(160, 0, "retain", 0, 100)
    assert [pairs.epoch_of(step) for step in range(5)] == [1, 2, 1, 2, 3]


def test_a_step_depends_on_its_number_alone() -> None:
    straight = [Pairing(17, 30, 3, seed=5, requests=4, epochs=2).at(step) for step in range(12)]
    resumed = Pairing(17, 30, 3, seed=5, requests=4, epochs=2)
    assert [resumed.at(step) for step in range(7, 12)] == straight[7:]
    assert all(not set(resumed.fresh_retain(step, 8)) & set(resumed.at(step)[1]) for step in range(12))


def test_steps_past_the_end_go_on_with_the_last_request() -> None:
    pairs = Pairing(8, 8, 4, seed=0, requests=2)
    assert pairs.total == 2
    assert pairs.request_of(9) == 1
    assert set(pairs.at(9)[0]) == {4, 5, 6, 7}


def test_more_requests_than_rows_are_refused() -> None:
    config = data_config(forget=8)
    config.requests = 8
    tofu.load(config)
    config.requests = 9
    with pytest.raises(UserError, match=r"^data\.requests: needs at most .* forget set \(8\); found 9$"):
        tofu.load(config)


@needs_shared
@pytest.mark.parametrize(
    ("split", "requests", "sizes"),
    [("forget01", 3, [13, 13, 14]), ("forget10", 10, [40] * 10), ("forget10", 7, [57, 57, 57, 57, 57, 57, 58])],
)
def test_requests_of_the_published_sets(split: str, requests: int, sizes: list[int]) -> None:
    benchmark = tofu.load(data_config(str(SHARED / "tofu"), split=split))
    pairs = Pairing(len(benchmark.sets["forget"]), len(benchmark.retained), 32, 0, requests=requests, epochs=1)
    assert sorted(len(pairs.rows_of(request)) for request in range(requests)) == sizes
    assert all(a.stop == b.start for a, b in pairwise(pairs.rows_of(request) for request in range(requests)))
