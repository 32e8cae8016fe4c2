"""Several processes: the numbers of one, whatever is dealt to whom, and an end for all when one is lost.

Each test that starts processes costs the seconds in which they import torch, so one pair of them does all that is only
compared.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.helpers import compose_run, tiny_model, tiny_setup
from unlearn import ranks
from unlearn.cli import launch
from unlearn.cli.launch import share
from unlearn.cli.main import guarded, main
from unlearn.errors import UserError

if TYPE_CHECKING:
    from unlearn.evaluation.suite import Measured

SMALL = ("trainer.stop=none", "trainer.max_steps=3", "optimizer=sgd")

RUNS = {
    # 8 forget rows in batches of 3: steps of 3, 2 and 3 rows, which two processes cannot share evenly.
    "ngdiff": ("method=ngdiff", "trainer.batch_size=3", "scheduler.interval=2", "optimizer.lr=0.05"),
    "gdiff": ("method=gdiff", "trainer.batch_size=3", "scheduler=constant", "optimizer.lr=0.05"),
    "npo": ("method=npo", "trainer.batch_size=3", "trainer.micro_batch_size=1", "scheduler=constant",
            "optimizer.lr=0.05"),
    # One row for two processes: one of them has none, of either kind.
    "ngdiff, one row": ("method=ngdiff", "trainer.batch_size=1", "optimizer.lr=0.05", "scheduler.probe=fresh",
                        "scheduler.interval=1"),
    "sharpness-aware": ("method=npo_sam", "trainer.batch_size=3", "scheduler=constant", "optimizer.lr=0.05"),
    "two states": ("method=dualoptim", "trainer.batch_size=3", "scheduler=constant", "optimizer.lr=0.05"),
    "other answers": ("method=dpo", "trainer.batch_size=3", "scheduler=constant", "optimizer.lr=0.05"),
}  # fmt: skip


def cpu() -> torch.device:
    return torch.device("cpu")


def trained(words: tuple[str, ...]) -> tuple[list[dict[str, Any]], torch.Tensor]:
    """Log lines and final weights of three steps of a tiny model."""
    from unlearn.data import alternates
    from unlearn.training.loop import Unlearning

    _, benchmark, _, encoder = tiny_setup()
    rows = {name: encoder.answers(benchmark.sets[name]) for name in ("forget", "retain", "holdout")}
    other = alternates.load("refusals", benchmark.sets["forget"], encoder, 0)
    lines: list[dict[str, Any]] = []
    model = tiny_model()
    Unlearning(compose_run(*SMALL, *words), model, rows, other, encoder, cpu(), lines.append).train()
    return lines, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def evaluated() -> Measured:
    """What the suite finds out about a tiny model."""
    from contextlib import nullcontext

    from unlearn.evaluation.suite import Suite
    from unlearn.plan import evaluated_sets, scored_rows

    cfg, benchmark, _, encoder = tiny_setup()
    cfg = replace(cfg, suite=replace(cfg.suite, max_new_tokens=8))
    sets = evaluated_sets(cfg, benchmark)
    sets = {name: replace(sets[name], examples=sets[name].examples[:7]) for name in ("forget", "retain", "world_facts")}
    rows = scored_rows(cfg, sets, encoder)
    return Suite(cfg.suite, encoder, sets, rows, cpu(), nullcontext).run(tiny_model().eval(), "test")


def summed() -> dict[str, Any]:
    """A gradient that only the first process has, one that both have, one that none has; more than fits a message."""
    whole, ranks.BUCKET = ranks.BUCKET, 8
    first, both, none = (torch.nn.Parameter(torch.zeros(size)) for size in ((3, 4), (5,), (2,)))
    if ranks.is_main():
        first.grad = torch.arange(12.0).view(4, 3).T
    both.grad = torch.arange(5.0) + 10 * ranks.rank()
    ranks.reduce_grads([first, both, none])
    ranks.BUCKET = whole
    return {"first": first.grad, "both": both.grad, "none": none.grad, "sizes": ranks.total([1.0, ranks.rank()])}


def compare(folder: Path) -> None:
    """Everything whose outcome is compared, in every process, into one file each."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "ranks": (ranks.rank(), ranks.world(), ranks.is_main()),
        "gather": ranks.gather(f"from {ranks.rank()}"),
        "agree": ranks.agree(ranks.rank() + 7),
        "from_main": [ranks.from_main({"rank": ranks.rank()}), ranks.from_main(ranks.rank())],
        "summed": summed(),
        "runs": {name: trained(words) for name, words in RUNS.items()},
        "evaluated": evaluated(),
    }
    torch.save(found, folder / f"{ranks.rank()}.pt")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes has found."""
    folder = tmp_path_factory.mktemp("two")
    share(partial(compare, folder), cpu, 2, 60)
    return [torch.load(folder / f"{number}.pt", weights_only=False) for number in range(2)]


def test_processes_know_and_tell_one_another(two: list[dict[str, Any]]) -> None:
    assert [found["ranks"] for found in two] == [(0, 2, True), (1, 2, False)]
    for found in two:
        assert found["gather"] == ["from 0", "from 1"]
        assert found["agree"] == 7
        assert found["from_main"] == [{"rank": 0}, 0]


def test_gradients_are_summed_and_one_that_is_missing_is_zero(two: list[dict[str, Any]]) -> None:
    for found in two:
        summed = found["summed"]
        assert torch.equal(summed["first"], torch.arange(12.0).view(4, 3).T)
        assert summed["both"].tolist() == [10, 12, 14, 16, 18]
        assert summed["none"] is None
        assert summed["sizes"] == [2.0, 1.0]


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_as_one(two: list[dict[str, Any]], name: str) -> None:
    lines, weights = trained(RUNS[name])
    volatile = {"seconds", "tokens_per_s"}
    for found in two:
        found_lines, found_weights = found["runs"][name]
        torch.testing.assert_close(found_weights, weights, rtol=1e-5, atol=1e-6)
        assert len(found_lines) == len(lines) == 3
        for found_line, line in zip(found_lines, lines, strict=True):
            for key in line.keys() - volatile - {"probe"}:
                # The fit of AutoLR is a difference of losses that are close to one another.
                near = line[key] and pytest.approx(line[key], rel=1e-5 if key == "lr" else 1e-6, abs=1e-7)
                assert found_line[key] == near, (name, line["step"], key)
    first, second = (found["runs"][name] for found in two)
    assert torch.equal(first[1], second[1]), "the same weights in both, to the bit"
    for mine, other in zip(first[0], second[0], strict=True):
        assert {k: v for k, v in mine.items() if k not in volatile} == {
            k: v for k, v in other.items() if k not in volatile
        }


def test_two_processes_evaluate_as_one(two: list[dict[str, Any]]) -> None:
    one = evaluated()
    for found in two:
        assert list(found["evaluated"].records) == list(one.records)
        for name, expected in one.records.items():
            records = found["evaluated"].records[name]
            for record, other in zip(records, expected, strict=True):
                for key in ("id", "kind", "prompt", "answer", "generated", "hit_limit"):
                    assert getattr(record, key) == getattr(other, key), (name, other.id, key)
                assert (record.greedy_T == other.greedy_T).all()
                assert record.logp_T == pytest.approx(other.logp_T, abs=1e-5)


def ended(work: Callable[[], None], timeout_s: float = 60.0) -> tuple[int, float]:
    """Exit code of two processes that do `work`, and the seconds after both had begun with it."""
    code = guarded(partial(share, work, cpu, 2, timeout_s), show_traceback=False)
    return code, time.time()


def begin(folder: Path) -> None:
    ranks.gather(None)
    if ranks.is_main():
        (folder / "began").write_text(str(time.time()))


def killed(folder: Path) -> None:
    begin(folder)
    if not ranks.is_main():
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        time.sleep(60)
    finally:
        (folder / "closed").touch()


def hanging(folder: Path) -> None:
    begin(folder)
    if not ranks.is_main():
        time.sleep(60)
    ranks.gather(None)


def failing(folder: Path) -> None:
    begin(folder)
    if not ranks.is_main():
        raise ValueError("a defect\nin one of them")
    ranks.gather(None)


def refusing(folder: Path) -> None:
    begin(folder)
    raise UserError(["a.b: needs one", "c: needs two"])


def test_a_process_that_dies_ends_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the main process is busy with something else; it can still close what it has opened."""
    monkeypatch.setattr(launch, "GRACE_S", 2.0)
    code, end = ended(partial(killed, tmp_path))
    assert code == 1
    assert capfd.readouterr().err == (
        "error: process 2 of 2 ended with signal 9 (killed from outside, or out of memory); the run needs all of them\n"
    )
    assert end - float((tmp_path / "began").read_text()) < 10
    assert (tmp_path / "closed").exists()


def test_a_process_that_hangs_ends_the_run_by_the_timeout(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, end = ended(partial(hanging, tmp_path), timeout_s=3)
    assert code == 1
    assert capfd.readouterr().err == (
        "error: process 1 of 2 waited longer than trainer.timeout_s=3 for the others: one hangs, or needs more time\n"
    )
    assert end - float((tmp_path / "began").read_text()) < 12


def test_a_defect_in_one_process_is_named_and_not_what_followed_from_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, _ = ended(partial(failing, tmp_path))
    assert code == 1
    assert capfd.readouterr().err == (
        "error: process 2 of 2 ended with ValueError: a defect in one of them; the run needs all of them "
        "(traceback=true shows where)\n"
    )


def test_what_all_processes_raise_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _ = ended(partial(refusing, tmp_path))
    assert code == 2
    assert capfd.readouterr().err == "error: a.b: needs one\nerror: c: needs two\n"


def test_more_processes_than_gpus_are_refused() -> None:
    ranks.check_device(torch.device("cpu"), 8)
    with pytest.raises(UserError, match=r"trainer.devices: needs a mps device for each process, found 1 for 2; use"):
        ranks.check_device(torch.device("mps"), 2)


def test_what_several_processes_cannot_do_is_refused() -> None:
    assert ranks.ranks_faults(compose_run("trainer.device=mps", "trainer.start_model_on_host=true")) == []
    faults = ranks.ranks_faults(
        compose_run(
            "trainer.devices=2", "trainer.device=mps", "trainer.start_model_on_host=true", "model/adapter=qlora"
        )
    )
    assert [fault.partition(":")[0] for fault in faults] == [
        "trainer.device", "model/adapter", "trainer.start_model_on_host",
    ]  # fmt: skip
    assert all("; or use trainer.devices=1" in fault for fault in faults)


TINY = (
    "logger=none",
    "model.tiny.hidden_size=32",
    "model.tiny.layers=1",
    "model.tiny.heads=2",
    "model.tiny.vocab_size=400",
    "model.finetune.epochs=2",
    "data.limit.forget=6",
    "data.limit.retain=10",
    "data.limit.holdout=6",
    "data.limit.real_authors=4",
    "data.limit.world_facts=4",
    "suite.max_new_tokens=8",
    "trainer.batch_size=4",
    "trainer.max_steps=3",
    "trainer.stop=none",
)


def test_a_whole_run_on_two_processes_leaves_one_folder_with_the_results_of_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for devices in (2, 1):
        # A cache for each: on two processes the target and its records are made on two processes.
        folders = (f"output_dir={tmp_path / 'runs' / str(devices)}", f"cache_dir={tmp_path / f'cache{devices}'}")
        assert main([*TINY, f"trainer.devices={devices}", *folders]) == 0, capfd.readouterr().err
    two, one = (tmp_path / "runs" / str(devices) for devices in (2, 1))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["1", "2"]
    files = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) for folder in (two, one)]
    assert files[0] == files[1]
    assert json.loads((two / "run.json").read_text())["status"] == "done"
    for name in ("run.log", "metrics.jsonl"):
        assert len((two / name).read_text().splitlines()) == len((one / name).read_text().splitlines()), name
    results = [json.loads((folder / "results.json").read_text()) for folder in (two, one)]
    for stage in ("before", "after", "reference"):
        for name, value in results[1][stage].items():
            near = value["value"] and pytest.approx(value["value"], rel=1e-3, abs=1e-4)
            assert results[0][stage][name]["value"] == near, (stage, name)
