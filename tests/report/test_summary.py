from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.report import fake_run
from unlearn.evaluation.metrics import METRICS
from unlearn.report import rows as report_rows
from unlearn.report import summary, verdict


def printed(run_dir: Path, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    summary.print_summary(console, run_dir)
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def folder(results: dict[str, Any], status: str = "done") -> report_rows.RunFolder:
    return report_rows.RunFolder(Path("run"), results, {"status": status}, {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.0, "0"),
        (1.0, "1"),
        (0.98123, "0.981"),
        (0.0004, "4.0e-04"),
        (1.1e-239, "1.1e-239"),
        (-22.7212, "-22.7"),
        (-0.41, "-0.410"),
        (1234.56, "1,234.6"),
    ],
)
def test_small_values_keep_digits_and_null_is_never_zero(value: float | None, text: str) -> None:
    assert report_rows.format_value(value) == text


def test_rows_hold_the_values_of_results_json_headline_first() -> None:
    results = fake_run.results()
    rows = report_rows.table_rows(results)
    assert {row.name for row in rows} == set(results["after"])
    for row in rows:
        for stage in report_rows.STAGES:
            assert row.cells[stage].value == results[stage][row.name]["value"]
            assert row.cells[stage].n == results[stage][row.name]["n"]
    groups = list(dict.fromkeys(row.group for row in rows))
    assert groups == ["headline", "forget", "retain"]


def test_every_arrow_follows_the_metric_direction() -> None:
    stage = {name: {"value": 0.5, "n": 1} for name in METRICS}
    arrows = {row.name: row.arrow for row in report_rows.table_rows({"before": stage})}
    expected = {"higher": "↑", "lower": "↓", "reference": "≈ ref"}
    assert arrows == {name: expected[metric.direction] for name, metric in METRICS.items()}
    assert (arrows["forget.prob"], arrows["retain.prob"], arrows["privleak"]) == ("↓", "↑", "≈ ref")


def test_a_metric_without_a_definition_is_shown_last_and_without_arrow() -> None:
    rows = report_rows.table_rows({"after": {"mine": {"value": 2.0, "n": 3}, "retain.prob": {"value": 0.5, "n": 3}}})
    assert [(row.name, row.arrow) for row in rows] == [("retain.prob", "↑"), ("mine", "")]


@pytest.mark.parametrize(
    ("name", "before", "after", "reference", "change"),
    [
        ("retain.prob", 0.9, 0.8, None, "worse"),
        ("forget.prob", 0.9, 0.1, None, "better"),
        ("forget.prob", 0.90001, 0.90002, None, ""),
        ("forget.min_k_auc", 0.1, 0.6, 0.5, "better"),  # distances 0.4 -> 0.1
        ("forget.min_k_auc", 0.4, 0.9, 0.5, "worse"),  # distances 0.1 -> 0.4
        ("forget.min_k_auc", 0.1, 0.6, None, ""),
        ("forget.prob", 0.9, None, None, ""),
    ],
)
def test_change_is_judged_by_direction(
    name: str, before: float, after: float | None, reference: float | None, change: str
) -> None:
    values = {"before": before, "after": after, "reference": reference}
    row = report_rows.Row(name, METRICS[name], {stage: report_rows.Cell(value, 1) for stage, value in values.items()})
    assert row.change == change


def test_footnotes_are_deduplicated_and_every_null_has_one() -> None:
    rows = report_rows.table_rows(fake_run.results())
    numbers = report_rows.footnotes(rows)
    assert sorted(numbers.values()) == list(range(1, len(numbers) + 1))
    assert "no holdout rows" in numbers  # three cells, one footnote
    assert all(cell.remarks for row in rows for cell in row.cells.values() if cell.value is None)
    one = {"value": 0.5, "n": 1}
    missing = report_rows.table_rows({"before": {"forget.prob": one}, "after": {"retain.prob": one}})
    assert missing[0].cells["after"] == report_rows.Cell(None, 0, ("not scored at this stage",))


def test_dropped_rows_are_told_once() -> None:
    scores = {
        "forget.prob": {"value": 0.5, "n": 38, "dropped": 2},
        "retain.prob": {"value": 0.5, "n": 38, "dropped": 2, "note": "2 dropped: truncated"},
    }
    rows = report_rows.table_rows({"after": scores})
    assert rows[0].cells["after"].remarks == ("2 of 40 examples could not be scored",)
    assert rows[1].cells["after"].remarks == ("2 dropped: truncated",)


def test_verdict_says_what_fell_what_it_cost_and_how_the_reference_compares() -> None:
    text = " ".join(verdict.verdict(folder(fake_run.results())))
    assert (
        "probability of the forget answers fell from 0.981 to 0.043; the reference, which never saw them, has 0.123."
        in text
    )
    assert (
        "probability of the retain answers fell from 0.977 to 0.943 (97 % of before)." in text
    )  # 0.94321 / 0.97654 = 0.966
    assert "Model utility fell from 0.712 to 0.663 (93 % of before)." in text  # 0.66321 / 0.71234 = 0.931
    assert "(p = 0.012, n = 40) the truth ratios differ from the reference's (over-forgotten)" in text
    assert "only gross differences" in text


def test_verdict_does_not_claim_what_was_not_measured() -> None:
    results = fake_run.results() | {"reference": None}
    results["after"]["forget.prob"] = {"value": None, "n": 0, "reason": "no forget rows"}
    results["after"]["forget_quality"] = {"value": None, "n": 0, "reason": "no reference"}
    text = " ".join(verdict.verdict(folder(results)))
    assert "was not scored after unlearning (no forget rows)" in text
    assert "Forget quality was not scored (no reference)" in text
    assert "There is no reference in this run" in text
    diverged = " ".join(verdict.verdict(folder({"before": results["before"], "steps": 7}, "diverged")))
    assert diverged == (
        "The run ended as diverged after 7 optimizer steps. "
        "The model was not evaluated after unlearning, so nothing here says what it forgot."
    )


def test_verdict_on_a_matched_reference_is_no_proof() -> None:
    results = fake_run.results()
    results["after"]["forget_quality"] = {"value": 0.4, "n": 400, "note": "matched"}
    text = " ".join(verdict.verdict(folder(results)))
    assert "(p = 0.400, n = 400) the truth ratios cannot be told apart from the reference's." in text


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_shows_the_numbers_and_the_places(tmp_path: Path, width: int) -> None:
    run_dir = fake_run.make_run(tmp_path / "run")
    (run_dir / "report.html").touch()
    (run_dir / "wandb" / "offline-run-1-abc").mkdir(parents=True)
    text = printed(run_dir, width)
    results = json.loads((run_dir / "results.json").read_text())
    for name in ("model_utility", "forget_quality", "forget.prob", "retain.prob"):
        for stage in report_rows.STAGES:
            assert report_rows.format_value(results[stage][name]["value"]) in text
    unwrapped = " ".join(text.split())
    assert fake_run.LABEL in unwrapped
    assert "ngdiff_auto on tofu forget10, model tiny" in unwrapped
    assert "over-forgotten" in unwrapped
    assert "Stopped at step 32: forget loss 3.41 reached the holdout's 3.38." in unwrapped
    assert "The trained weights moved by 1.23% of their norm; 45 of 45 tensors changed." in unwrapped
    for path in ("report.html", "results.json", "metrics.jsonl", "records", "config.yaml"):
        assert str(run_dir / path) in text.splitlines()[-1] or f"{run_dir / path}\n" in text
    assert f"wandb sync {run_dir / 'wandb' / 'offline-run-1-abc'}" in text
    prose = [line for line in text.splitlines() if str(run_dir) not in line]
    assert max(map(len, prose)) <= width


def test_the_link_of_an_online_run_is_shown(tmp_path: Path) -> None:
    (tmp_path / "wandb" / "run-1-abc").mkdir(parents=True)
    (tmp_path / "wandb" / "url").write_text("https://wandb.example/me/unlearn-run/runs/abc")
    assert "W&B        https://wandb.example/me/unlearn-run/runs/abc" in printed(tmp_path)


def test_terminal_without_any_results(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"status": "failed"}))
    text = printed(tmp_path)
    assert "failed" in text
    assert "not evaluated" in text


def test_where_none_of_the_chosen_metrics_is_there_all_are_shown(tmp_path: Path) -> None:
    run_dir = fake_run.make_run(tmp_path / "run")
    only = {stage: {"mine/acc": {"value": value, "n": 8}} for stage, value in (("before", 0.625), ("after", 0.375))}
    (run_dir / "results.json").write_text(json.dumps(fake_run.results() | only | {"reference": None}))
    (line,) = (line for line in printed(run_dir).splitlines() if "mine/acc" in line)
    assert "0.625" in line
    assert "0.375" in line


def test_brackets_in_names_are_not_markup(tmp_path: Path) -> None:
    run_dir = fake_run.make_run(tmp_path / "run")
    results = fake_run.results() | {"labels": ["[red]not markup[/red]"]}
    (run_dir / "results.json").write_text(json.dumps(results))
    assert "[red]not markup[/red]" in printed(run_dir)


def test_rows_ignore_a_null_reference() -> None:
    rows = report_rows.table_rows(fake_run.results() | {"reference": None})
    assert set(rows[0].cells) == {"before", "after"}
    assert math.isclose(rows[0].cells["after"].value or 0, 0.66321)


def muse_verdict(**after: float | None) -> str:
    results = fake_run.muse_results()
    results["after"] |= {name: {"value": value, "n": 100, "reason": "no texts"} for name, value in after.items()}
    return " ".join(verdict.verdict(folder(results)))


def test_verdict_on_muse_speaks_of_knowledge_wording_cost_and_privacy() -> None:
    text = muse_verdict()
    assert (
        "(knowmem, ROUGE-L of answers) fell from 0.610 to 0.340; the reference, which never saw them, has 0.330."
        in text
    )
    assert "(verbmem, ROUGE-L of continuations) fell from 0.550 to 0.180; the reference" in text
    assert "Knowledge of the retain texts fell from 0.550 to 0.470 (85 % of before)." in text  # 0.47 / 0.55 = 0.855
    assert "PrivLeak (-21.5) privacy leaks" in text
    assert "under-forgotten" in text
    assert "forget answers" not in text
    assert "Forget quality" not in text


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (-5.1, "(under-forgotten)"),
        (-5.0, "no better and no worse"),
        (4.9, "no better and no worse"),
        (93.0, "(over-forgotten)"),
        (None, "PrivLeak was not scored (no texts)."),
    ],
)
def test_verdict_reads_the_sign_of_privleak(value: float | None, told: str) -> None:
    text = muse_verdict(privleak=value)
    assert told in text
    assert ("leaks" in text) is (value is not None and abs(value) > 5)


def test_metrics_of_muse_without_any_value_leave_the_verdict_to_tofu() -> None:
    results = fake_run.results()
    results["after"] |= {name: {"value": None, "n": 0, "reason": "no rows"} for name in verdict.MUSE}
    text = " ".join(verdict.verdict(folder(results)))
    assert "forget answers fell" in text
    assert "knowmem" not in text


def test_the_ending_tells_what_was_kept_and_where_answers_differ() -> None:
    lines = verdict.ending(fake_run.full_results())
    assert "The weights of epoch 2 (step 24) were kept, which has the best forget_quality (0.012)." in lines
    assert "After: 2 of 4 answers differ from plain greedy decoding." in lines
    assert not any(line.startswith("Before:") for line in lines)  # 0 of 4


def test_intervals_stand_in_a_wide_terminal_only(tmp_path: Path) -> None:
    run_dir = fake_run.make_run(tmp_path / "run", fake_run.full_results())
    interval = "[0.915, 0.972]"  # 0.94321 * 0.97, * 1.03
    assert interval in printed(run_dir, 120)
    assert interval not in printed(run_dir, 80)
    assert "Worst decile's share: retain 74 %" in " ".join(printed(run_dir, 80).split())


def test_a_value_without_interval_shows_none() -> None:
    one = report_rows.cell({"value": 0.86, "n": 40, "interval": [0.84, 0.88]})
    assert one.interval_text == "[0.840, 0.880]"
    for without in ({"value": 0.86, "n": 1}, {"value": None, "n": 0, "interval": [0.1, 0.2], "reason": "none"}):
        assert report_rows.cell(without).interval_text == ""
    assert report_rows.cell({"value": 0.86, "n": 1, "interval": [None, None]}).interval is None
