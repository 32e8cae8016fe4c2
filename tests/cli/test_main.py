"""The command line: what it refuses and in which words, exit codes, help, and what a run leaves on disk."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.composing import config, faults, read_conf_once, write
from unlearn.cli.main import main
from unlearn.cli.overrides import check
from unlearn.config import GROUPS, RunConfig
from unlearn.errors import Diverged, UserError

__all__ = ["read_conf_once"]

OVERLAY = "# @package _global_\n"

BAD = [
    # Keys: the level is listed, and the nearest valid name is given.
    ("trainer.lerning_rate=1", "trainer.lerning_rate: no such key; trainer has epochs, ", "did you mean optimizer.lr?"),
    ("+trainer.lerning=1", "trainer.lerning: no such key", "trainer has epochs"),
    ("++trainer.epoch=1", "trainer.epoch: no such key", "did you mean trainer.epochs?"),
    ("num_train_epochs=3", "num_train_epochs: no such key", "did you mean trainer.epochs?"),
    ("modle=tiny", "modle: no such key", "did you mean model?"),
    ("trainer.epochs.x=1", "trainer.epochs.x: no such key"),
    ("method.forget.beta=0.1", "method.forget.beta: no such key", "belongs to method/forget=npo, simnpo, "),
    ("+trainer.seed=1", "trainer.seed: no such key", "did you mean seed?"),
    ("+trainer.batch_size=2", "+trainer.batch_size: exists already", "without +"),
    ("hydra.ouput_subdir=x", "hydra.ouput_subdir: no such key", "did you mean hydra.output_subdir?"),
    ("hydra.swep.dir=x", "hydra.swep.dir: no such key", "did you mean hydra.sweep.dir?"),
    ("hydra.run.dir=x", "hydra.run.dir: is derived", "output_dir"),
    ("hydra.job.chdir=true", "hydra.job.chdir: stays false"),
    ("hydra.searchpath=conf", "hydra.searchpath: needs a list of folders"),
    ("hydra.job.env_set.X=1", "hydra.job.env_set.X: no such entry; write +hydra.job.env_set.X="),
    ("model.format.template_args={a: b}", "model.format.template_args: no such entry a; write +model.format."),
    ("model.published.tofu.target=x", "model.published.tofu.target: no such entry; new ones are made in a file"),
    ("~seed", "~seed: settings and groups cannot be removed"),
    # Groups and options.
    ("scheduler=autlr", "scheduler: needs one of constant, linear, cosine, autolr, autolr_budget, ",
     "found 'autlr'; did you mean autolr?"),
    ("method=ngdif", "method: needs one of ", "options (unlearn-run --help lists them); found 'ngdif'",
     "did you mean ngdiff?"),
    ("method/forget=npoo", "method/forget: needs one of none, ascent, npo, ", "found 'npoo'; did you mean npo?"),
    ("method/forgt=npo", "method/forgt: no such group", "did you mean method/forget?"),
    ("logger=null", "logger: needs one of none, wandb; found null"),
    ("+optimizer=sgd", "+optimizer=sgd: is chosen without +"),
    ("hydra/launcher=slurm", "hydra/launcher: needs one of basic", "found 'slurm'"),
    ("method.retain=kl", "method.retain: is a group; write method/retain=kl"),
    ("method.name=npo", "method.name: is chosen by method=npo"),
    ("method.forget.name=npo", "method.forget.name: is chosen by method/forget=npo"),
    ("trainer=3", "trainer: holds several settings (epochs, "),
    # Types.
    ("seed=1.5", "seed: needs an integer, at least 0 and at most 2147483647; found 1.5"),
    ("optimizer.beta1=high", "optimizer.beta1: needs a number, at least 0 and below 1; found 'high'"),
    ("optimizer.lr='1e-5'", "optimizer.lr: needs a number, above 0; found the text '1e-5'",
     "write it without quotes: optimizer.lr=1e-5"),
    ("trainer.save_model=maybe", "trainer.save_model: needs true or false; found 'maybe'"),
    ("model.finetune.epochs=null", "model.finetune.epochs: needs an integer, at least 1; found null"),
    ("model.revision=1e5", "model.revision: needs text", "put it in quotes"),
    ("logger.tags=a", "logger.tags: needs a list such as [a,b]; found 'a'"),
    ("data.limit={forget: x, foo: 1}", "data.limit.forget: needs an integer or null, at least 1; found 'x'"),
    # Ranges, over the whole tree.
    ("trainer.epochs=0", "trainer.epochs: needs an integer, at least 1; found 0"),
    ("trainer.precision=fp16", "trainer.precision: needs one of fp32, bf16_mixed, bf16; found 'fp16'"),
    ("data.split=forget02", "data.split: needs one of forget01, forget05, forget10; found 'forget02'"),
    ("scheduler.clip=nan", "scheduler.clip: needs a number, above 1; found nan"),
    ("trainer.clip_norm=inf", "trainer.clip_norm: needs a finite number; found inf"),
    # Several values, and text that cannot be read.
    ("suite.token_budget=1,2", "suite.token_budget: found 1,2, which is several values; add -m"),
    ("model.format.stop=a,b", "model.format.stop: found a,b", "for a list write model.format.stop=[a,b]"),
    ("suite.max_new_tokens=range(3)", "suite.max_new_tokens: found range(3)", "add -m"),
    ("model.path=a=b", "model.path=a=b: cannot be read", """'model.path="a=b"'"""),
    ("logger.group=[a", "logger.group=[a: cannot be read", """'logger.group="[a"'"""),
    ("logger.entity=a;b", "logger.entity=a;b: cannot be read (unexpected ';b')"),
    ("npo", "npo: needs the form key=value, as in method=npo"),
    ("=3", "=3: no such key"),
]  # fmt: skip


@pytest.fixture(scope="module")
def lines() -> list[str]:
    with pytest.raises(UserError) as refused:
        check([text for text, *_ in BAD])
    return refused.value.messages


@pytest.mark.parametrize(("text", "fragments"), [(text, fragments) for text, *fragments in BAD])
def test_bad_input_is_refused_in_one_line(lines: list[str], text: str, fragments: list[str]) -> None:
    own = [line for line in lines if line.startswith(fragments[0])]
    assert len(own) == 1, lines
    assert all(fragment in own[0] for fragment in fragments)
    assert "\n" not in own[0]


def test_all_bad_inputs_are_reported_at_once(lines: list[str]) -> None:
    assert len(lines) == len(BAD) + 1  # data.limit has two faults


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("optimizer.lr=${model.lrr}", ["optimizer.lr: ${model.lrr} cannot be resolved", "did you mean ${model.lr}?"]),
        ("model.lr=???", ["model.lr: needs a value; found ???"]),
        ("model.tiny.hidden_size=90", ["model.tiny.hidden_size: needs a multiple of 2 * model.tiny.heads (8)"]),
        ("model.target=self", ["model.target: self needs weights"]),
        ("logger.tags=${seed}", ["logger.tags: needs a list such as [a,b]; found 0"]),
        (
            "experiment=nothing",
            ["experiment: needs one of muse-books, muse-news, paper-ngdiff, tofu-llama-3.2-1b; found 'nothing'"],
        ),
        (f"output_dir={__file__}/x", [f"output_dir: needs a folder; {__file__} is a file"]),
        ("output_dir=${nothing}", ["output_dir: ${nothing} cannot be resolved"]),
    ],
)
def test_faults_of_the_whole(text: str, fragments: list[str]) -> None:
    assert all(fragment in faults(text)[0] for fragment in fragments)


def test_what_is_right_passes() -> None:
    texts = ["++trainer.epochs=3", "trainer={batch_size: 4}", "+hydra.job.env_set.X=1", "model.format.stop=[a,b]"]
    cfg = config(*texts, "logger.group=${hydra:runtime.choices.method}", "data.source='a=b'")
    assert (cfg.trainer.epochs, cfg.trainer.batch_size, cfg.model.format.stop) == (3, 4, ["a", "b"])
    assert (cfg.logger.group, cfg.data.source) == ("ngdiff", "a=b")


FILES = {
    "bad": OVERLAY + "trainer: {lerning_rate: 3, epochs: many}\nmodel: {lr: '1e-5', name: mine}\n",
    "launcher": OVERLAY + "defaults:\n  - override /hydra/launcher: joblib\n",
    "nogroup": OVERLAY + "defaults:\n  - override /method/forgt: npo\n",
    "relative": OVERLAY + "defaults:\n  - override method: npo\n",
    "nooption": OVERLAY + "defaults:\n  - override /method: npoo\n",
    "twice": OVERLAY + "defaults:\n  - /method: npo\n",
    "nested": OVERLAY + "defaults:\n  - nooption\n  - missing\n",
    "syntax": OVERLAY + "trainer: {epochs: 3\n",
    "header": "trainer: {epochs: 3}\n",
    "empty": "",
    "list": OVERLAY + "- 3\n",
    "range": OVERLAY + "trainer: {epochs: 0}\n",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bad", ["trainer.lerning_rate: no such key; ", "trainer.epochs: needs an integer", "model.lr: needs a number",
                 "model.name: is chosen by model=mine"]),
        ("launcher", ["`override /hydra/launcher: joblib` comes too late in this file and would be ignored; write "
                      "hydra/launcher=joblib on the command line"]),
        ("nogroup", ["defaults: no such group method/forgt"]),
        ("relative", ["defaults: no such group experiment/method; did you mean /method?"]),
        ("nooption", ["defaults: method: needs one of "]),
        ("twice", ["defaults: write `override /method: npo`"]),
        ("nested", ["experiment/nooption.yaml: defaults: method: needs", "experiment/missing.yaml: no such file"]),
        ("header", ["the first line must be `# @package _global_`"]),
        ("empty", ["the first line must be `# @package _global_`"]),
        ("list", ["needs lines of the form `key: value`"]),
    ],
)  # fmt: skip
def test_faults_in_a_file_name_the_file(tmp_path: Path, name: str, expected: list[str]) -> None:
    for file, text in FILES.items():
        write(tmp_path, f"experiment/{file}", text)
    found = faults(f"experiment={name}", "trainer.batch_size=x", config_dir=tmp_path)
    assert found[-1].startswith("trainer.batch_size: needs")
    assert len(found) == len(expected) + 1, found
    for line, start in zip(found, expected, strict=False):
        assert line.startswith(f"experiment/{name}.yaml: {start}")


def test_faults_in_files_of_other_kinds(tmp_path: Path) -> None:
    write(tmp_path, "experiment/syntax", FILES["syntax"])
    write(tmp_path, "experiment/range", FILES["range"])
    write(tmp_path, "method/mine", "defaults:\n  - forget: npo\n  - retain: nll\n  - combine: linear\n  - _self_\n"
          "name: mine\nforget: {beta: high, gamma: 1}\n")  # fmt: skip
    assert faults("experiment=syntax", config_dir=tmp_path)[0].startswith("experiment/syntax.yaml, line 3: is not YAML")
    assert faults("experiment=range", config_dir=tmp_path) == ["trainer.epochs: needs an integer, at least 1; found 0"]
    starts = ["method/mine.yaml: method.forget.beta: needs a number", "method/mine.yaml: method.forget.gamma: no such"]
    for line, start in zip(faults("method=mine", config_dir=tmp_path), starts, strict=True):
        assert line.startswith(start)
    assert faults(config_dir=tmp_path / "nowhere")[0].startswith("--config-dir: no such folder")


def test_every_element_of_a_sweep_is_checked() -> None:
    texts = ["seed=0,1,x", "method=ngdiff,npo", "method.forget.beta=0.1", "trainer.epochs=range(0,2)"]
    beta, seed, epochs = sorted(faults(*texts, multirun=True))
    assert re.search(r"belongs to method/forget=npo, .* or \w+ \[in the job ", beta)
    assert "method=ngdiff" in beta
    assert seed == "seed: needs an integer, at least 0 and at most 2147483647; found 'x'"
    assert epochs == "trainer.epochs: needs an integer, at least 1; found 0"


def test_sweeps_that_cannot_be() -> None:
    found = faults("scheduler=constant,autlr", "hydra.verbose=true,false", "optimizer.lr=interval(1e-5,1e-3)",
                   "output_dir=x", "method=glob(zz*)", multirun=True)  # fmt: skip
    starts = ["scheduler: needs one of", "hydra.verbose: settings of Hydra cannot be swept", "optimizer.lr: interval()",
              "output_dir: with -m", "method: glob(zz*) stands for no value"]  # fmt: skip
    for line, start in zip(found, starts, strict=True):
        assert line.startswith(start)


def test_a_sweep_in_an_experiment(tmp_path: Path) -> None:
    text = OVERLAY + "hydra:\n  mode: MULTIRUN\n  sweeper: {params: {seed: '3,4', method: 'npo,ga'}}\n"
    write(tmp_path, "experiment/sweep", text)
    checked = check(["experiment=sweep", "method=gdiff"], config_dir=str(tmp_path))
    assert checked.multirun
    assert [(cfg.method.name, cfg.seed) for cfg in checked.jobs] == [("gdiff", 3), ("gdiff", 4)]
    assert [Path(cfg.output_dir).name for cfg in checked.jobs] == ["0", "1"]


# The process: exit codes, streams, folders.


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[RunConfig]:
    """Calls of the flow, which is replaced: seeds from 90 fail in their own ways."""
    called: list[RunConfig] = []
    failures = {
        90: UserError(["data.source: no such folder", "model.path: no such folder"]),
        91: Diverged("step 3: the forget loss is not finite"),
        92: RuntimeError("first\nsecond"),
        93: KeyboardInterrupt(),
    }

    def run(cfg: RunConfig, warnings: list[str]) -> None:
        called.append(cfg)
        if cfg.seed in failures:
            raise failures[cfg.seed]

    monkeypatch.setitem(sys.modules, "unlearn.run", SimpleNamespace(run=run))
    monkeypatch.chdir(tmp_path)
    return called


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["seed=1"], 0, []),
        (["seed=x", "foo=1"], 2, ["error: seed: needs an integer", "error: foo: no such key"]),
        (["seed=90"], 2, ["error: data.source: no such folder", "error: model.path: no such folder"]),
        (["seed=91"], 4, ["diverged: step 3: the forget loss is not finite"]),
        (["seed=92", "dry_run=true"], 1, ["error: unexpected RuntimeError: first second (traceback=true shows where)"]),
        (["seed=93"], 130, ["interrupted"]),
        (["--lr", "1e-5", "seed=x"], 2, ["error: --lr: no such flag", "error: seed: needs an integer"]),
        (["--cfg", "everything"], 2, ["error: argument --cfg/-c: invalid choice"]),
        (["--config-name", "other"], 2, ["error: --config-name: is not taken"]),
        (["output_dir=/proc/none"], 2, ["error: output_dir: cannot create the folder /proc/none"]),
    ],
)
def test_exit_codes(
    runs: list[RunConfig], capsys: pytest.CaptureFixture[str], argv: list[str], code: int, said: list[str]
) -> None:
    assert main(argv) == code
    lines = capsys.readouterr().err.splitlines()
    for line, start in zip(lines, said, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize("seed", [90, 92])
def test_traceback_on_request(runs: list[RunConfig], capsys: pytest.CaptureFixture[str], seed: int) -> None:
    main([f"seed={seed}", "traceback=true", "dry_run=true"])
    error = capsys.readouterr().err
    assert error.startswith("Traceback (most recent call last):")
    assert "shows where" not in error


def test_a_run_has_its_folder_and_a_failed_start_leaves_none(runs: list[RunConfig], tmp_path: Path) -> None:
    assert main(["output_dir=mine"]) == 0
    assert main(["seed=90", "output_dir=failed"]) == 2
    assert [cfg.output_dir for cfg in runs] == ["mine", "failed"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def test_a_dry_run_leaves_no_trace(runs: list[RunConfig], tmp_path: Path) -> None:
    assert main(["dry_run=true", "-m", "seed=0,1"]) == 0
    assert main(["dry_run=true", "seed=90"]) == 2
    assert [cfg.dry_run for cfg in runs] == [True] * 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("seeds", "code"), [("0,90,91,2", 3), ("90", 2)])
def test_a_sweep_goes_on_after_a_failed_job(
    runs: list[RunConfig], capsys: pytest.CaptureFixture[str], seeds: str, code: int
) -> None:
    assert main([f"seed={seeds}", "-m", "hydra.sweep.dir=sweep"]) == code
    expected = [int(seed) for seed in seeds.split(",")]
    assert [cfg.seed for cfg in runs] == expected
    assert [cfg.output_dir for cfg in runs] == [f"sweep/{number}" for number in range(len(expected))]
    if 91 in expected:
        assert "diverged: job 2: step 3" in capsys.readouterr().err


def test_hydra_flags_work(runs: list[RunConfig], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["trainer.epochs=7", "--cfg", "job", "--package", "trainer"]) == 0
    assert "epochs: 7" in capsys.readouterr().out
    assert main(["seed=x", "--cfg", "job"]) == 2
    write(tmp_path / "conf", "experiment/mine", OVERLAY + "seed: 5\n")
    assert main(["--config-dir", "conf", "experiment=mine", "output_dir=out"]) == 0
    assert [cfg.seed for cfg in runs] == [5]
    assert main(["--version"]) == 0


def test_help_is_for_a_person(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["-h"]) == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 100
    for word in ("Usage: unlearn-run", "* ngdiff ", "* tiny ", "llama-3.2-1b-instruct", "method/forget", "bf16_mixed",
                 "dry_run=true", "outputs/", "* autolr ", "4 the run diverged", "debug\n    smoke "):  # fmt: skip
        assert word in page
    assert "hydra.cc" not in page
    assert len(page.splitlines()) < 220
    # Parts of a method by name only; what they are is told by `--help all`.
    assert re.search(r"^  method/combine: .*\n    linear, \*ngdiff, ngdiff_adam, ", page, re.MULTILINE)
    assert main(["--help", "all"]) == 0
    whole = capsys.readouterr().out
    assert "scheduler.probe_batches" in whole
    for group in ("method/forget", "method/retain", "method/combine"):
        assert all(re.search(rf"^  [* ] {name} +\S", whole, re.MULTILINE) for name in GROUPS[group])
    write(tmp_path, "experiment/mine", f"{OVERLAY}# unlearn-run experiment=mine: a preset of my own\n")
    assert main(["--help", "--config-dir", str(tmp_path)]) == 0
    assert "mine                   A preset of my own" in capsys.readouterr().out


@pytest.mark.parametrize(("argv", "code"), [(["--help"], 0), (["trainer.epochs=0", "scheduler=autlr"], 2)])
def test_answers_come_before_torch_and_within_two_seconds(argv: list[str], code: int) -> None:
    """Processor time, since a busy machine says nothing about us."""
    program = f"import sys; from unlearn.cli.main import main; code = main({argv}); assert 'torch' not in sys.modules"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; sys.exit(code)"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == code, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0
