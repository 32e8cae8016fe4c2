from __future__ import annotations

from tests.report import fake_run
from unlearn.report import course


def test_epochs_with_the_one_that_was_kept() -> None:
    epochs, requests = course.courses(fake_run.full_results())
    assert epochs.title == "Epoch by epoch"
    assert [(line.label, line.kept) for line in epochs.lines] == [
        ("before", False),
        ("epoch 1", False),
        ("epoch 2", True),
        ("epoch 3", False),
        ("reference", False),
    ]
    assert [name for name, _, _ in epochs.columns] == [
        "model_utility",
        "forget_quality",
        "forget.prob",
        "forget.rouge_l_recall",
        "retain.prob",
    ]  # privleak has no value at any time
    assert [line.cells["forget.prob"].value for line in epochs.lines] == [0.98123, 0.51, 0.04321, 0.001, 0.12345]
    assert "the best forget_quality" in epochs.text
    assert [line.label for line in requests.lines][1:-1] == ["request 1 (20 rows)", "request 2 (40 rows)"]


def test_muse_puts_its_four_numbers_first() -> None:
    (requests,) = course.courses(fake_run.muse_results())
    assert [name for name, _, _ in requests.columns[:4]] == ["knowmem_f", "verbmem_f", "privleak", "knowmem_r"]
    assert [line.cells["privleak"].value for line in requests.lines] == [-98.2, -60.1, -21.5, 0.0]


def test_requests_and_epochs_without_values_have_no_table() -> None:
    assert course.courses(fake_run.results()) == []
    one = {"request": 1, "rows": 20, "nll": 3.0, "prob": 0.05, "stop": None}
    assert course.courses(fake_run.results() | {"requests": [one], "epochs": None, "kept": None}) == []
