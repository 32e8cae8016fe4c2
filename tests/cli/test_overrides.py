"""Composition, presets, ranges, and what the checks of the whole tree say."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from tests.cli.composing import config, plain_composer, read_conf_once, write
from unlearn.cli.checks import check_ranges, cross_checks, folder_fault, no_effect
from unlearn.cli.compose import Choice
from unlearn.cli.keys import select
from unlearn.cli.overrides import check
from unlearn.config import GROUPS, conf_dir
from unlearn.gradients.combine import Linear, NGDiff
from unlearn.models.sources import TRAIN, choose
from unlearn.objectives.forget import NPO, Ascent
from unlearn.schedulers.autolr import AutoLR
from unlearn.schedulers.schedules import Constant, Cosine

FEWEST = {
    "data": 1,
    "debug": 2,
    "experiment": 2,
    "logger": 2,
    "method": 53,
    "method/combine": 1,
    "model": 11,
    "scheduler": 2,
    "suite": 4,
}
FILES = sorted(
    file.relative_to(conf_dir()).with_suffix("").as_posix() for file in conf_dir().rglob("*.yaml") if file.stem != "run"
)
OPTIONS = [f"{group}/{option}" for group, nodes in GROUPS.items() for option in nodes]

__all__ = ["read_conf_once"]

SPELLINGS = {"1e-5": 1e-5, "1e5": 1e5, "5e-06": 5e-6, "1.0e-5": 1e-5, ".5e-5": 5e-6}


def warnings(*texts: str) -> list[str]:
    checked = check(list(texts))
    return no_effect(checked.jobs[0], checked.touched)


def plain(tree: DictConfig) -> Any:
    tree = tree.copy()
    with open_dict(tree):
        tree.pop("hydra")
    return OmegaConf.to_container(tree, resolve=False)


def test_every_preset_is_found() -> None:
    found = Counter(name.rpartition("/")[0] for name in FILES)
    assert found.keys() == FEWEST.keys()
    assert all(found[group] >= fewest for group, fewest in FEWEST.items())


def together() -> list[list[str]]:
    """Command lines that use every option of every group at least once, one of each group at a time.

    Presets of methods have a test of their own: there are many.
    """
    groups: dict[str, list[str]] = {}
    for name in [*FILES, *OPTIONS]:
        group, _, option = name.rpartition("/")
        groups.setdefault(group, []).append(f"{group}={option}")
    del groups["method"]
    return [[text for text in row if text is not None] for row in zip_longest(*groups.values())]


@pytest.mark.parametrize("texts", together())
def test_every_preset_composes_as_hydra_composes_it(texts: list[str]) -> None:
    composer = plain_composer()
    base = composer.base([Choice(text.partition("=")[0], [text.partition("=")[2]], text) for text in texts])
    assert base.faults == []
    hydra = composer.loader.load_configuration("run", texts, RunMode.RUN)
    assert plain(base.tree) == plain(hydra)
    for part in ("method.forget", "method.combine", "scheduler", "optimizer"):
        assert OmegaConf.get_type(select(base.tree, part)) is OmegaConf.get_type(select(hydra, part))
    assert base.tree.hydra.runtime.choices == hydra.hydra.runtime.choices
    # Not every part of a method goes with every other one: test_method_checks.py; nor suite=lm_eval without its tasks,
    # nor an experiment for MUSE, which names a subset, with other data than its own.
    left_out = ["method/", "optimizer=", "suite=lm_eval"]
    if any(text.startswith("experiment=muse") for text in texts):
        left_out.append("data=")
    sound = [text for text in texts if not text.startswith(tuple(left_out))]
    check([*sound, "model.path=./weights"] if "model=custom" in sound else sound)


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith(("experiment/", "debug/"))])
def test_overlays_name_their_command(name: str) -> None:
    first, second = (conf_dir() / f"{name}.yaml").read_text().splitlines()[:2]
    assert first == "# @package _global_"
    assert second.startswith(f"# unlearn-run {name.replace('/', '=')}: ")


def test_every_method_takes_every_combine_rule() -> None:
    jobs = check(["method=ga,ngdiff_auto", "method/combine=linear,ngdiff,lossnorm"], multirun=True).jobs
    assert len(jobs) == 2 * 3


def test_defaults_are_ngdiff_on_tofu_with_the_tiny_model() -> None:
    cfg = config()
    assert (cfg.method.name, cfg.data.name, cfg.model.name, cfg.data.source) == ("ngdiff", "tofu", "tiny", "embedded")
    assert isinstance(cfg.method.combine, NGDiff)
    assert isinstance(cfg.scheduler, AutoLR)
    assert cfg.optimizer.lr == cfg.model.lr


def test_later_layers_win(tmp_path: Path) -> None:
    defaults = plain_composer().loader.compute_defaults_list("run", [], RunMode.RUN).defaults
    listed = [default.config_path for default in defaults]
    assert listed.index("schema") < listed.index("method/ngdiff") < listed.index("run")
    write(tmp_path, "experiment/e", "# @package _global_\ntrainer: {epochs: 3, batch_size: 3, clip_norm: 3.0}\n")
    write(tmp_path, "debug/d", "# @package _global_\ntrainer: {batch_size: 4, clip_norm: 4.0}\n")
    trainer = config("trainer.clip_norm=5.0", "debug=d", "experiment=e", config_dir=tmp_path).trainer
    assert (trainer.epochs, trainer.batch_size, trainer.clip_norm) == (3, 4, 5.0)


def test_a_method_brings_its_scheduler_and_yields_to_the_user(tmp_path: Path) -> None:
    assert isinstance(config("method=gdiff").scheduler, Constant)
    assert config("method=ngdiff_auto").scheduler == AutoLR(probe="fresh", budget=0.02)
    for texts in (["method=ngdiff", "scheduler=cosine"], ["scheduler=cosine", "method=ngdiff"]):
        assert isinstance(config(*texts).scheduler, Cosine)
    write(tmp_path, "experiment/e", "# @package _global_\ndefaults:\n  - override /scheduler: cosine\n")
    assert isinstance(config("experiment=e", config_dir=tmp_path).scheduler, Cosine)


def test_parts_of_a_method_are_chosen_one_by_one(tmp_path: Path) -> None:
    cfg = config("method=ngdiff", "method/forget=npo", "method.forget.beta=0.2", "method/combine=linear")
    assert cfg.method.forget == NPO(beta=0.2)
    assert cfg.method.combine == Linear()
    write(tmp_path, "experiment/e", "# @package _global_\ndefaults:\n  - override /method/forget: npo\n")
    assert config("experiment=e", config_dir=tmp_path).method.forget == NPO()
    assert config("experiment=e", "method/forget=ascent", config_dir=tmp_path).method.forget == Ascent()


def test_all_spellings_of_a_float_read_the_same(tmp_path: Path) -> None:
    """On the command line, in a YAML file, and in a config that was saved and read again."""
    keys = ("model.lr", "model.finetune.lr", "optimizer.lr", "optimizer.eps", "trainer.clip_norm")
    texts = [f"{key}={text}" for key, text in zip(keys, SPELLINGS, strict=True)]
    write(
        tmp_path,
        "experiment/e",
        "# @package _global_\n"
        "model: {lr: 1e-5, finetune: {lr: 1e5}}\noptimizer: {lr: 5e-06, eps: 1.0e-5}\ntrainer: {clip_norm: .5e-5}\n",
    )
    typed, filed = config(*texts), config("experiment=e", config_dir=tmp_path)
    OmegaConf.save(OmegaConf.structured(typed), tmp_path / "saved.yaml")
    saved = OmegaConf.load(tmp_path / "saved.yaml")
    for key, value in zip(keys, SPELLINGS.values(), strict=True):
        for cfg in (OmegaConf.structured(typed), OmegaConf.structured(filed), saved):
            assert OmegaConf.select(cfg, key) == value
            assert isinstance(OmegaConf.select(cfg, key), float)


def test_text_stays_text() -> None:
    assert config("model.revision='10e2'").model.revision == "10e2"
    assert config("logger.project=2024").logger.project == "2024"


def test_ranges_are_checked_over_the_whole_tree() -> None:
    cfg = config()
    assert check_ranges(cfg) == []
    cfg.trainer.epochs = 0
    cfg.scheduler.clip = 1.0
    cfg.optimizer.beta1 = 1.0
    cfg.trainer.clip_norm = float("inf")
    cfg.model.lr = float("nan")
    cfg.data.corpus = "rare"
    assert check_ranges(cfg) == [
        "model.lr: needs a number, above 0; found nan",
        "data.corpus: needs one of raw, privleak; found 'rare'",
        "scheduler.clip: needs a number, above 1; found 1.0",
        "optimizer.beta1: needs a number, at least 0 and below 1; found 1.0",
        "trainer.epochs: needs an integer, at least 1; found 0",
        "trainer.clip_norm: needs a finite number; found inf",
    ]


def test_settings_that_exclude_one_another() -> None:
    cfg = config()
    cfg.scheduler.min_lr, cfg.scheduler.max_lr = 1.0, 0.1
    cfg.model.tiny.hidden_size = 90
    cfg.model.target = "self"
    keys = [fault.partition(":")[0] for fault in cross_checks(cfg)]
    assert keys == ["scheduler.min_lr", "model.tiny.hidden_size", "model.target"]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["method=ngdiff"], []),
        (["debug=smoke", "trainer.epochs=3"], ["trainer.epochs: has no effect, because trainer.max_steps=2 decides"]),
        (["trainer.batch_size=4", "trainer.micro_batch_size=8"], ["trainer.micro_batch_size: "]),
        (["scheduler.probe_batches=2"], ["scheduler.probe_batches: "]),
        (["scheduler.probe_batches=2", "scheduler.probe=fresh"], []),
        (["model.path=gpt2", "model.tiny.layers=2"], ["model.tiny.layers: "]),
        (["model.revision=main", "model.tokenizer=gpt2"], ["model.revision: ", "model.tokenizer: "]),
        (["model=llama-3.2-1b-instruct", "model.finetune.lr=1e-3"], ["model.finetune.lr: "]),
        (["model=llama-3.2-1b-instruct", "data.source=embedded", "model.finetune.lr=1e-3"], []),
        (["model=llama-3.2-1b-instruct", "model.reference=train", "model.finetune.lr=1e-3"], []),
        (["data.hub_id=me/tofu"], ["data.hub_id: has no effect, because data.source=embedded"]),
        (["suite.generate=false", "suite.max_new_tokens=9"], ["suite.max_new_tokens: "]),
        (["suite=none", "suite.token_budget=9"], ["suite.token_budget: "]),
        (["logger=none"], []),
        (["logger=none", "logger.project=p"], ["logger.project: has no effect, because logger=none"]),
        (["method=none"], []),
        (["method=none", "optimizer.lr=1"], ["optimizer.lr: has no effect, because method/forget and method/retain"]),
        (["method=none", "scheduler=cosine", "trainer.epochs=2"], ["scheduler: ", "trainer.epochs: "]),
        (["method=finetune", "trainer.stop=holdout"], ["trainer.stop: has no effect, because method/forget=none"]),
        (["optimizer.lr=1e-3", "model.lr=1e-3"], ["model.lr: has no effect, because optimizer.lr is set too"]),
        (["method=ga", "method/retain=nll"], []),
        (["method=ga", "method/combine=ngdiff"], ["method.combine=ngdiff: has one gradient only (method/retain=none)"]),
        (["method=finetune", "method/combine=lossnorm"], ["method.combine=lossnorm: has one gradient only"]),
        (["trainer.precision=bf16", "optimizer.lr=1e-5"], ["trainer.precision=bf16: at optimizer.lr=1e-05 most"]),
        (["trainer.precision=bf16_mixed", "optimizer.lr=1e-5"], []),
        (["trainer.precision=bf16", "optimizer.lr=1e-5", "model/adapter=lora"], []),
    ],
)
def test_settings_without_effect_warn(texts: list[str], expected: list[str]) -> None:
    lines = warnings(*texts)
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)


def test_what_an_experiment_sets_counts_as_set_by_the_user(tmp_path: Path) -> None:
    write(tmp_path, "experiment/e", "# @package _global_\nmodel: {path: gpt2, tiny: {layers: 2}}\n")
    checked = check(["experiment=e"], config_dir=str(tmp_path))
    assert {"model.path", "model.tiny.layers"} <= checked.touched
    assert no_effect(checked.jobs[0], checked.touched)[0].startswith("model.tiny.layers: ")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], (True, True)),
        (["model=llama-3.2-1b-instruct"], (False, False)),
        (["model=llama-3.2-1b-instruct", "model.target=train"], (True, True)),
        (["model=gpt2-xl", "model.target=self"], (False, False)),
        (["model.path=gpt2", "model.target=/some/folder", "model.reference=train"], (False, True)),
    ],
)
def test_which_models_are_trained_here(texts: list[str], expected: tuple[bool, bool]) -> None:
    target, reference = choose(config(*texts), "retain90")
    assert (target == TRAIN, reference == TRAIN) == expected


def test_folders_that_cannot_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert folder_fault("output_dir", str(tmp_path / "new" / "deep")) is None
    assert folder_fault("output_dir", str(file / "x")) == f"output_dir: needs a folder; {file} is a file"
    assert list(tmp_path.iterdir()) == [file]
