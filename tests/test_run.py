"""A whole run, small: every file it leaves, the cache, and each way in which it may end."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from tests.helpers import compose_run
from unlearn.cli import report
from unlearn.cli.suite_checks import READ_AT_THE_END
from unlearn.errors import Diverged, UserError
from unlearn.evaluation import records, references
from unlearn.evaluation.metrics import METRICS, evaluate
from unlearn.evaluation.scores import Scores
from unlearn.run import run

SMALL = (
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def small(out: Path, cache: Path, *overrides: str) -> Path:
    run(compose_run(*SMALL, f"output_dir={out}", f"cache_dir={cache}", *overrides), [])
    return out


def load(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return small(tmp_path_factory.mktemp("runs") / "first", cache)


def test_a_run_leaves_every_file(done: Path) -> None:
    assert {path.name for path in done.iterdir() if not path.name.startswith(".")} == {
        "config.yaml",
        "run.json",
        "run.log",
        "metrics.jsonl",
        "results.json",
        "report.html",
        "records",
        "model",
    }
    status = load(done, "run.json")
    assert status["status"] == "done"
    assert status["error"] is None
    assert set(status["stages"]) == {"target", "reference", "before", "train", "after", "save", "perplexity"}
    assert set(status["fingerprints"]) >= {"forget", "retain", "holdout"}
    assert status["peak_memory_bytes"] > 1e6
    assert status["versions"]["torch"] == torch.__version__


def test_results_hold_every_metric_three_times_with_its_n(done: Path) -> None:
    results = load(done, "results.json")
    assert results["schema"] == 2
    assert results["labels"] == ["embedded, not comparable with published numbers"]
    for column in ("before", "after", "reference"):
        assert [name for name in METRICS if name in results[column]] == list(results[column])
        assert {"model_utility", "forget_quality", "privleak", "forget.prob", "retain.prob"} <= set(results[column])
        for name, value in results[column].items():
            assert value["value"] is not None or value["reason"], name
    assert results["before"]["forget.prob"]["n"] == 6
    assert results["before"]["retain.prob"]["n"] == 10
    assert results["after"]["forget.prob"]["value"] != results["before"]["forget.prob"]["value"]
    assert results["weights"]["changed_tensors"] > 0
    assert results["steps"] == 3


def test_every_number_can_be_traced_to_its_records(done: Path) -> None:
    results = load(done, "results.json")
    for column in ("before", "after", "reference"):
        rows = [r for r in records.read(done / "records" / column / "forget.parquet") if r.kind == "answer"]
        by_hand = sum(math.exp(row.logp_T.astype(float).mean()) for row in rows) / len(rows)
        assert results[column]["forget.prob"]["value"] == pytest.approx(by_hand, rel=1e-6)


def test_the_saved_config_is_resolved_and_gives_the_same_config_again(done: Path) -> None:
    saved = OmegaConf.load(done / "config.yaml")
    assert saved.data.source == "embedded"
    assert saved.method.combine.name == "ngdiff"
    assert saved.optimizer.lr == saved.model.lr == pytest.approx(3e-4)


def test_the_saved_model_is_the_one_that_was_scored(done: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(done / "model", local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(done / "model", local_files_only=True)
    row = next(r for r in records.read(done / "records" / "after" / "forget.parquet") if r.kind == "answer")
    ids = [tokenizer.bos_token_id, *tokenizer(row.prompt, add_special_tokens=False).input_ids]
    answer = [*tokenizer(" " + row.answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    with torch.no_grad():
        logp = model(torch.tensor([ids + answer])).logits[0].log_softmax(-1)
    own = [logp[len(ids) - 1 + k, token].item() for k, token in enumerate(answer)]
    assert own == pytest.approx(row.logp_T.tolist(), abs=1e-4)


def test_a_repeat_takes_target_reference_and_before_from_the_cache(done: Path, cache: Path, tmp_path: Path) -> None:
    again = small(tmp_path / "again", cache)
    stages = load(again, "run.json")["stages"]
    assert [stages[name].get("cached") for name in ("target", "reference", "before")] == [True] * 3
    assert load(again, "results.json") == load(done, "results.json"), "the same run to the last digit"


def test_a_folder_that_holds_a_run_is_not_written_again(done: Path, cache: Path) -> None:
    with pytest.raises(UserError, match=r"output_dir: needs a new folder; .* holds a run already"):
        small(done, cache)


def test_epochs_and_requests_hold_what_their_records_say(cache: Path, tmp_path: Path) -> None:
    words = ("suite.every_epochs=1", "suite.keep=model_utility", "trainer.max_steps=null", "trainer.epochs=1")
    out = small(tmp_path / "run", cache, *words, "data.requests=2", "trainer.batch_size=3")
    was = (out / "results.json").read_text()
    results = json.loads(was)
    assert [len(results[key]) for key in ("epochs", "requests")] == [2, 2]
    read = {value["values"]["forget.perplexity"]["n"] for key in ("epochs", "requests") for value in results[key]}
    assert read == {6}
    assert results["requests"][1]["values"] == results["after"]
    report.main(["score", str(out)])
    assert (out / "results.json").read_text() == was


def test_what_cannot_choose_an_epoch_is_what_waits_for_the_reference_to_read(done: Path) -> None:
    scores = references.read_column(done / "records" / "after")

    def read(nll: float | None) -> dict[str, Any]:
        said = {"generated": "plain words", "repetition": 0.0, "rouge_l_recall": 0.5, "generated_nll": nll}
        rows = {name: {id: replace(row, **said) for id, row in of_set.items()} for name, of_set in scores.sets.items()}
        return {name: value["value"] for name, value in evaluate(Scores(rows), scores, intervals=False).items()}

    unread, unlikely = read(None), read(99.0)
    late = {name for name in unread if unread[name] != unlikely[name]}
    assert late == {name for name in unread if name.rpartition(".")[2] in READ_AT_THE_END}


def test_evaluation_only(done: Path, cache: Path, tmp_path: Path) -> None:
    out = small(tmp_path / "none", cache, "method=none")
    results = load(out, "results.json")
    assert results["after"] == results["before"] == load(done, "results.json")["before"]
    assert not (out / "metrics.jsonl").exists()
    assert not (out / "model").exists()


def test_without_a_suite_nothing_is_measured(cache: Path, tmp_path: Path) -> None:
    out = small(tmp_path / "bare", cache, "suite=none", "trainer.save_model=false")
    results = load(out, "results.json")
    assert results["before"] is results["after"] is results["reference"] is None
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_reference_may_be_missing_if_that_was_said(done: Path, cache: Path, tmp_path: Path) -> None:
    allowed = ("model.reference=none", "suite.allow_missing_reference=true", "suite.generate=false")
    results = load(small(tmp_path / "alone", cache, *allowed), "results.json")
    assert results["reference"] is None
    assert results["after"]["forget_quality"]["value"] is None
    assert "retain90" in results["after"]["forget_quality"]["reason"]
    assert results["after"]["model_utility"]["value"] is None


def test_a_diverged_run_keeps_what_it_has(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "diverged"
    with pytest.raises(Diverged, match=r"diverged at step [23] of 30: .*loss .*gradient norm"):
        small(
            out, cache, "method=ga", "scheduler=constant", "optimizer=sgd", "optimizer.lr=1e20", "trainer.max_steps=30"
        )
    assert load(out, "run.json")["status"] == "diverged"
    assert "step" in load(out, "run.json")["error"]
    results = load(out, "results.json")
    assert results["before"] is not None
    assert results["after"] is None
    assert (out / "metrics.jsonl").exists()
    assert "diverged" in (out / "report.html").read_text()


def test_no_change_at_all_is_an_error(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "still"
    words = ("method=gdiff", "scheduler=constant", "optimizer=sgd", "optimizer.lr=1e-46")
    with pytest.raises(UserError, match=r"optimizer\.lr: needs steps that change the weights; 3 steps changed none of"):
        small(out, cache, *words)
    assert load(out, "run.json")["status"] == "failed"


def test_an_interrupted_run_says_so(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unlearn.recorder import Recorder

    def interrupt(self: Recorder, line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path / "stopped", cache)
    assert load(tmp_path / "stopped", "run.json")["status"] == "failed"
    assert "KeyboardInterrupt" in load(tmp_path / "stopped", "run.json")["error"]


def test_a_dry_run_prints_the_plan_and_leaves_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, cache = tmp_path / "out", tmp_path / "cache"
    run(compose_run(f"output_dir={out}", f"cache_dir={cache}", "dry_run=true"), [])
    plan = capsys.readouterr().out
    assert "40 forget rows / 32 per step -> 2 steps per epoch x 30 epochs = 60 optimizer steps" in plan
    assert "forget: 40 rows, 40 scored" in plan
    assert "second gradient" in plan
    assert "lr probe copies" in plan
    assert "target: trained here from random weights" in plan
    assert "embedded, not comparable with published numbers" in plan
    assert not list(tmp_path.iterdir())


def test_the_plan_warns_of_few_steps_and_leaves_out_what_a_method_does_not_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"output_dir={tmp_path / 'out'}", f"cache_dir={tmp_path / 'cache'}", "dry_run=true")
    run(compose_run(*words, "method=gdiff", "scheduler=constant", "trainer.epochs=2"), [])
    plan = capsys.readouterr().out
    assert "warning: under 20 steps" in plan
    assert "second gradient" not in plan
    run(compose_run(*words, "method=kl"), [])
    assert "copy of the start model" in capsys.readouterr().out
    run(compose_run(*words, "method=gdiff", "data.retain_rows=general", "data.requests=2", "model/adapter=lora"), [])
    plan = capsys.readouterr().out
    assert re.search(r"^ +retain: 160 rows, 160 scored \(", plan, re.MULTILINE), "scored, and not trained on"
    assert re.search(r"^ +retained: 40 rows, \d+ answer tokens \(", plan, re.MULTILINE)
    assert "for 2 removal requests one after the other" in plan
    assert re.search(r"trained: ([\d,]+) parameters of the \1 of adapter lora", plan)


def test_too_little_disk_is_refused_with_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unlearn.plan.free_bytes", lambda folder: 1_100_000)
    with pytest.raises(UserError, match=r"cache_dir: needs .*MiB for .*target model.* found 1.05 MiB free"):
        run(compose_run(f"output_dir={tmp_path / 'out'}", f"cache_dir={tmp_path / 'cache'}"), [])
    assert not list(tmp_path.iterdir())


def test_a_start_model_that_never_saw_the_forget_set_is_noticed(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = small(tmp_path / "blank", cache, "method=none", "suite.generate=false")
    assert "the start model hardly knows the forget set" in (out / "run.log").read_text()


@pytest.mark.parametrize("generate", [True, False])
def test_the_reference_stop_measures_as_an_evaluation_does(generate: bool, cache: Path, tmp_path: Path) -> None:
    """In eval mode, on the forget set alone, against the reference's value of the same metric."""
    from unlearn.evaluation.suite import Suite

    seen: list[tuple[bool, tuple[str, ...]]] = []
    score = Suite.run

    def watched(self: Suite, model: Any, title: str) -> Any:
        if title == "stop rule":
            seen.append((model.training, self.only or ()))
        return score(self, model, title)

    words = ("method=gdiff", "scheduler=constant", "trainer.stop=reference", "optimizer.lr=0.01", "trainer.epochs=30")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Suite, "run", watched)
        out = small(
            tmp_path / "run", cache, *words, "trainer.max_steps=null", f"suite.generate={str(generate).lower()}"
        )
    assert seen
    assert set(seen) == {(False, ("forget",))}
    results = json.loads((out / "results.json").read_text())
    name = "forget.rouge_l_recall" if generate else "forget.prob"
    assert results["stop"]["reason"].startswith(f"after an epoch {name} of ")
    assert results["after"][name]["value"] <= results["reference"][name]["value"] + 1e-6
