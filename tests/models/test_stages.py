"""Where target and reference come from, and every source that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import SHARED, needs_shared
from tests.helpers import compose_run, data_config, tiny_setup
from unlearn.data import tofu
from unlearn.data.encode import Encoder
from unlearn.errors import UserError
from unlearn.models import load
from unlearn.models.hub import looks_like_folder
from unlearn.models.sources import TRAIN, Sources, resolve
from unlearn.models.stages import Stages


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    from tests.helpers import tiny_model

    load.save(tiny_model(), tiny_setup()[2], tmp_path / "model")
    return tmp_path / "model"


def sources(*overrides: str) -> Sources:
    cfg = compose_run(*overrides)
    return resolve(cfg, tofu.load(cfg.data))


def test_the_embedded_model_trains_both() -> None:
    assert sources() == Sources(TRAIN, TRAIN)


def test_a_folder_without_further_words_is_what_target_and_reference_start_from(model_folder: Path) -> None:
    assert sources(f"model.path={model_folder}") == Sources(TRAIN, TRAIN)


def test_a_model_that_knows_the_data_already_is_its_own_target(model_folder: Path) -> None:
    found = sources(f"model.path={model_folder}", "model.target=self", f"model.reference={model_folder}")
    assert found == Sources(str(model_folder), str(model_folder))


def test_a_missing_reference_names_the_command_that_makes_it(model_folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"model\.reference: .*retain90.*model\.reference=train.*allow_missing_reference"
    ):
        sources(f"model.path={model_folder}", "model.target=self")
    found = sources(f"model.path={model_folder}", "model.target=self", "suite.allow_missing_reference=true")
    assert found.reference is None
    assert "retain90" in found.reason


def test_no_path_cannot_be_its_own_target() -> None:
    with pytest.raises(UserError, match=r"model\.target: self needs weights that know the data"):
        sources("model.target=self")


@pytest.mark.parametrize("key", ["model.path", "model.target", "model.reference"])
def test_a_folder_that_is_not_there(key: str) -> None:
    with pytest.raises(UserError, match=rf"{key}: needs a folder that exists or a hub id; found './nowhere'"):
        sources(f"{key}=./nowhere")


def test_pickled_weights_are_refused(model_folder: Path) -> None:
    (model_folder / "model.safetensors").rename(model_folder / "pytorch_model.bin")
    with pytest.raises(
        UserError, match=r"needs \*\.safetensors .* pytorch_model\.bin \(pickled weights are never loaded"
    ):
        sources(f"model.path={model_folder}")


def test_a_folder_without_a_config(model_folder: Path) -> None:
    (model_folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"needs a model folder with config\.json"):
        sources(f"model.path={model_folder}")


def test_published_models_are_used_for_published_data_only() -> None:
    cfg = compose_run("model=llama-3.2-1b-instruct", "data.source=embedded")
    assert cfg.model.published["tofu"].target == "open-unlearning/tofu_Llama-3.2-1B-Instruct_full"
    with pytest.raises(UserError, match=r"model\.path: the model 'meta-llama/Llama-3\.2-1B-Instruct' on the hub"):
        resolve(cfg, tofu.load(cfg.data))


@needs_shared
def test_a_published_log_can_stand_in_for_the_reference(model_folder: Path) -> None:
    log = SHARED / "open_unlearning_eval_logs" / "tofu_Llama-3.2-1B-Instruct_retain90"
    found = sources(f"model.reference={log}")
    assert found.reference_is_log
    assert not sources(f"model.reference={model_folder}").reference_is_log


@pytest.mark.parametrize(
    ("path", "folder"),
    [("./x", True), ("/x/y", True), ("~/x", True), ("a/b/c", True), ("org/model", False), ("gpt2", False)],
)
def test_what_is_a_folder_and_what_a_hub_id(path: str, folder: bool) -> None:
    assert looks_like_folder(path) is folder


def test_the_tiny_model_depends_on_its_seed_and_on_no_global_state() -> None:
    cfg, _, tokenizer, _ = tiny_setup()

    def first_weight(seed: int) -> torch.Tensor:
        return next(load.tiny_model(cfg.model.tiny, tokenizer, 512, seed).parameters()).detach()

    torch.manual_seed(1)
    first = first_weight(0)
    state = torch.get_rng_state()
    assert torch.equal(first_weight(0), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first_weight(1), first)


def test_weights_come_in_the_precision_that_was_asked_for(model_folder: Path) -> None:
    cfg = compose_run(f"model.path={model_folder}")
    for dtype in ("float32", "bfloat16"):
        model = load.load_model(cfg.model, str(model_folder), dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}
        assert not model.training


def test_the_fingerprint_follows_the_weights(model_folder: Path) -> None:
    before = load.fingerprint(str(model_folder))
    assert load.fingerprint(str(model_folder)) == before
    with (model_folder / "model.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x7f")
    assert load.fingerprint(str(model_folder)) != before


def stages_for(tmp_path: Path, *overrides: str) -> Any:
    words = ("model.tiny.hidden_size=32", "model.tiny.layers=1", "model.tiny.heads=2", "model.tiny.vocab_size=400")
    cfg = compose_run(*words, "model.finetune.epochs=1", f"cache_dir={tmp_path / 'cache'}", *overrides)
    _, benchmark, tokenizer, encoder = tiny_setup()
    return Stages(cfg, benchmark, tokenizer, encoder, torch.device("cpu"))


def test_a_stage_is_trained_once_and_again_when_its_inputs_change(tmp_path: Path) -> None:
    both = Sources(TRAIN, TRAIN)
    target = stages_for(tmp_path).target(both)
    assert not target.cached
    assert stages_for(tmp_path).target(both).cached
    assert (Path(target.path) / "model.safetensors").is_file()
    assert (Path(target.path) / "tokenizer.json").is_file()
    reference = stages_for(tmp_path).reference(both)
    assert not reference.cached
    assert reference.fingerprint != target.fingerprint
    assert not stages_for(tmp_path, "seed=1").target(both).cached
    assert not stages_for(tmp_path, "model.finetune.lr=0.001").target(both).cached


def test_a_stage_belongs_to_the_tokenizer_that_it_was_trained_with() -> None:
    """Shortening a set that is only scored changes the embedded tokenizer, and with it what every token id means."""
    keys = []
    for words in ((), ("data.limit.world_facts=1",)):
        cfg = compose_run(*words)
        benchmark = tofu.load(cfg.data)
        tokenizer = load.tiny_tokenizer(cfg.model.tiny, benchmark)
        encoder = Encoder(tokenizer, cfg.model.format, cfg.model.max_length)
        keys.append(Stages(cfg, benchmark, tokenizer, encoder, torch.device("cpu")).key(benchmark.train))
    assert keys[0]["rows"] == keys[1]["rows"]
    assert keys[0]["tokenizer"] != keys[1]["tokenizer"]


def test_a_reference_cannot_be_trained_from_nothing_for_a_given_target(model_folder: Path) -> None:
    with pytest.raises(UserError, match=r"model\.reference: train needs the weights to begin with"):
        sources(f"model.target={model_folder}", "model.reference=train")


def test_training_again_gives_the_same_weights_to_the_bit(tmp_path: Path) -> None:
    both = Sources(TRAIN, TRAIN)
    first = stages_for(tmp_path / "a").target(both)
    second = stages_for(tmp_path / "b").target(both)
    assert load.fingerprint(first.path) == load.fingerprint(second.path)


def test_data_of_the_reference_does_not_hold_the_forget_set() -> None:
    benchmark = tofu.load(data_config())
    assert not set(benchmark.sets["forget"]) & set(benchmark.reference_train)
