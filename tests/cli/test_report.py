"""`unlearn-report score`: the numbers of a run made again from what it kept."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import SHARED, needs_shared
from unlearn.cli.report import main
from unlearn.evaluation import records
from unlearn.evaluation.metrics import METRICS, UTILITY_SETS

PROB = {"before": 0.9, "after": 0.1, "reference": 0.2, "epoch-2": 0.5, "request-1": 0.4}
SETS = ("forget", "holdout", *UTILITY_SETS)
CONFIG = "model: {{name: tiny, reference: {reference}}}\ndata: {{name: tofu, split: forget10}}\nmethod: {{name: npo}}\n"
STALE = {"value": 0.5, "n": 1}
REQUEST = {"rows": 3, "nll": 1.0, "prob": 0.4, "values": {}}
MEASURED = [name for name, metric in METRICS.items() if set(metric.sets) <= {"forget", "holdout", *UTILITY_SETS}]


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The page takes seconds to draw: one test looks at it."""
    if "page" not in request.fixturenames:
        monkeypatch.setattr("unlearn.report.html.write_report", lambda folder: folder / "report.html")


@pytest.fixture
def page() -> str:
    """The name of the page, which a test that asks for it has written."""
    return "report.html"


def write_records(folder: Path, prob: float) -> None:
    """Three rows a set whose answers have `prob` times 1, 0.9 and 0.8, wrong ones half of that."""
    for name in SETS:
        found = []
        for k in range(3):
            share = prob * (1 - 0.1 * k) * (1 if name == "forget" else 0.9)
            logp_T = np.full(4, math.log(share), dtype=np.float32)
            row = records.Record(
                f"{name}/{k}", "answer", f"Question {k}?", "It is so.", logp_T, logp_T > -1, logp_T, -logp_T, 3,
                generated="It is so." if prob > 0.3 else "No.",
            )  # fmt: skip
            found += [row, replace(row, kind="perturbed_0", logp_T=logp_T + math.log(0.5), generated=None)]
        records.write(found, folder / f"{name}.parquet")


def make_run(folder: Path, columns: tuple[str, ...] = tuple(PROB), named: str = "auto", **results: Any) -> Path:
    folder.mkdir()
    for column in columns:
        write_records(folder / "records" / column, PROB[column])
    stored = {"schema": 1, "before": {}, "after": {}, "reference": None, "labels": ["kept"], "steps": 7} | results
    (folder / "results.json").write_text(json.dumps(stored))
    (folder / "run.json").write_text('{"status": "done"}')
    (folder / "config.yaml").write_text(CONFIG.format(reference=named))
    return folder


def stored(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return content


def test_every_column_is_scored_again(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        before={"forget.prob": STALE, "arc_easy.acc": STALE},
        epochs=[{"epoch": 2, "step": 4, "values": {}}, {"epoch": 4, "step": 8, "values": {"forget.prob": STALE}}],
        requests=[REQUEST | {"request": 1}, REQUEST | {"request": 2, "values": {"forget.prob": STALE}}],
    )
    assert main(["score", str(run)]) == 0
    found = stored(run)
    assert (found["schema"], found["labels"], found["steps"]) == (2, ["kept"], 7)
    for stage in ("before", "after", "reference"):
        assert found[stage].keys() - {"arc_easy.acc"} == set(MEASURED)
        assert found[stage]["forget.prob"]["value"] == pytest.approx(0.9 * PROB[stage])
        assert found[stage]["retain.rouge_l_recall"]["value"] == (1.0 if stage == "before" else 0.0)
    assert found["after"]["forget_quality"]["value"] == pytest.approx(1.0)
    assert found["before"]["arc_easy.acc"] == STALE
    first, last = found["epochs"]
    assert (first["step"], first["values"]["forget.prob"]["value"]) == (4, pytest.approx(0.45))
    assert last == {"epoch": 4, "step": 8, "values": {"forget.prob": STALE}}
    first, last = found["requests"]
    assert (first["rows"], first["values"]["forget.prob"]["value"]) == (3, pytest.approx(0.36))
    assert last["values"] == found["after"]
    # 0.9 * (0.9 - 0.1) * mean(1, 0.9, 0.8)
    assert found["damage"]["retain"]["prob"]["mean"] == pytest.approx(0.9 * 0.8 * 0.9)
    assert not list(run.glob(".*"))


def test_what_changed_is_printed_and_the_second_time_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    run = make_run(tmp_path / "run")
    main(["score", str(run)])
    said = capsys.readouterr().out
    assert said.startswith(f"{run}\n  before: {len(MEASURED)} new: model_utility, ")
    was = [(run / name).read_bytes() for name in ("results.json", page)]
    assert b"<html" in was[1]
    assert main(["score", str(run)]) == 0
    assert capsys.readouterr() == ("", "")
    assert [(run / name).read_bytes() for name in ("results.json", page)] == was
    content = stored(run)
    content["after"]["forget.prob"]["value"] = 0.25
    content["before"]["forget.prob"]["n"] = 400
    content["reference"]["knowmem_f"] = STALE
    content["before"]["retain.prob"] |= {"value": None, "reason": "forgotten"}
    (run / "results.json").write_text(json.dumps(content))
    assert main(["score", str(run)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(run),
        "  before: 1 with the same value and another n: forget.prob",
        "  before: retain.prob null -> 0.729",
        "  after: forget.prob 0.25 -> 0.09 (-0.16)",
        "  reference: 1 no more: knowmem_f",
    ]


def test_values_of_other_harnesses_come_from_their_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", after={"arc_easy.acc": STALE})
    measured = {"tasks": {"arc_easy.acc": {"value": 0.75, "n": 8}}, "canary": {}}
    (run / "records" / "after" / "measured.json").write_text(json.dumps(measured))
    main(["score", str(run)])
    assert stored(run)["after"]["arc_easy.acc"] == {"value": 0.75, "n": 8}


@needs_shared
def test_the_reference_comes_from_the_log_that_the_settings_name(tmp_path: Path) -> None:
    log = SHARED / "open_unlearning_eval_logs" / "tofu_Llama-3.2-1B-Instruct_retain99"
    run = make_run(tmp_path / "run", ("before", "after"), str(log))
    main(["score", str(run)])
    found = stored(run)
    summary = json.loads((log / "TOFU_SUMMARY.json").read_text())
    assert found["reference"]["model_utility"]["value"] == pytest.approx(summary["model_utility"], abs=1e-9)
    assert 0 < found["after"]["forget_quality"]["value"] < 1


def test_the_reference_comes_from_another_run(tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", ("reference",))
    run = make_run(tmp_path / "run", ("before", "after"), str(other))
    main(["score", str(run)])
    assert stored(run)["reference"]["forget.prob"]["value"] == pytest.approx(0.18)


def test_what_compares_with_a_reference_that_is_gone_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quality = {"value": 0.123, "n": 400}
    old = {"forget_quality": quality, "forget.prob": STALE}
    run = make_run(tmp_path / "run", ("after",), "gone.json", after=old, reference={"forget.prob": STALE})
    assert main(["score", str(run)]) == 0
    said = capsys.readouterr()
    assert "the scores of its reference (gone.json) are not there" in said.err
    found = stored(run)
    assert found["reference"] == {"forget.prob": STALE}
    assert found["after"]["forget_quality"] == quality
    assert found["after"]["forget.prob"]["value"] == pytest.approx(0.09)
    assert found["after"]["privleak"] == {"value": None, "n": 0, "reason": "no reference scores"}
    assert (found["before"], found.get("damage")) == ({}, None)
    main(["score", str(run)])
    assert capsys.readouterr().out == ""


def test_a_run_without_a_reference_says_nothing_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reason = {"value": None, "n": 0, "reason": "no reference model: nothing trained on retain90 alone was given"}
    run = make_run(tmp_path / "run", ("before", "after"), "none", after={"privleak": reason})
    main(["score", str(run)])
    assert capsys.readouterr().err == ""
    assert stored(run)["after"]["privleak"] == reason
    assert stored(run)["reference"] is None


def test_what_is_no_run_ends_in_one_line_each_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    was = (run / "results.json").read_bytes()
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["score", str(run), str(empty), str(tmp_path / "gone")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: {empty}: needs the folder of a run, found no run.json and no results.json",
        f"error: {tmp_path / 'gone'}: needs the folder of a run, found no folder",
    ]
    assert (run / "results.json").read_bytes() == was


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("results.json", "[]", "results.json: needs an object, found a list"),
        ("results.json", "{", "results.json: cannot be read (Expecting"),
        ("records/after/forget.parquet", "x", "forget.parquet: needs the records of a run, found Arrow"),
        ("records/after/measured.json", "{", "measured.json: cannot be read ("),
        ("config.yaml", "a: [", "config.yaml: cannot be read ("),
    ],
)
def test_a_broken_file_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, content: str, said: str
) -> None:
    run = make_run(tmp_path / "run", ("before", "after"))
    (run / file).write_text(content)
    assert main(["score", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True)


def test_torch_is_never_imported(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    program = (
        "import sys; from unlearn.cli.report import main; code = main(['score', 'run']);"
        "heavy = {'torch', 'transformers', 'datasets', 'wandb'} & set(sys.modules); print(heavy); sys.exit(code)"
    )
    done = python("-c", program, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr
    assert done.returncode == 0


def test_help_is_quick(tmp_path: Path) -> None:
    """In seconds of the processor, so that a busy machine does not count."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = python("-m", "unlearn.cli.report", "score", "--help", cwd=tmp_path)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < 1
    assert "from its records" in " ".join(done.stdout.split())
    assert python("-m", "unlearn.cli.report", cwd=tmp_path).returncode == 2
