"""Ways to get a run wrong: each one line on stderr, exit code 2, before a model is loaded, and nothing left behind.

What can be told from the words alone (keys, types, options, ranges) is in tests/cli; here are the files, folders,
models, and the hub.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny_model, tiny_setup
from unlearn.cli.main import main
from unlearn.data import embedded
from unlearn.models import load


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    load.save(tiny_model(), tiny_setup()[2], folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in embedded.FILES:
        (folder / f"{name}.json").write_text("\n".join(json.dumps(row) for row in embedded.tofu(name)))
    return folder


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Run the command line; returns its error lines after checking what all refusals have in common."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "transformers.AutoModelForCausalLM.from_pretrained", lambda *a, **o: pytest.fail("model loaded")
    )

    def run(*words: str) -> list[str]:
        before = sorted(path for path in tmp_path.rglob("*") if "outputs" not in path.parts)
        code = main(["logger=none", f"cache_dir={tmp_path / 'cache'}", *words])
        lines = capsys.readouterr().err.strip().splitlines()
        assert code == 2, lines
        assert all(line.startswith("error: ") for line in lines), lines
        assert sorted(path for path in tmp_path.rglob("*") if "outputs" not in path.parts) == before
        assert not list(tmp_path.glob("outputs/*")), "no run folder that a later run would trust"
        return lines

    return run


@pytest.mark.parametrize("words", [(), ("dry_run=true",)], ids=["run", "dry run"])
def test_a_dry_run_fails_on_what_the_run_fails_on(refused: Callable[..., list[str]], words: tuple[str, ...]) -> None:
    (line,) = refused("data.source=./nowhere", *words)
    assert line == (
        "error: data.source: needs embedded, hub or a folder with the published files; found './nowhere', which is no "
        "folder"
    )


def spoil(data: Path, name: str, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    rows = embedded.tofu(name)
    change(rows)
    (data / f"{name}.json").write_text("\n".join(json.dumps(row) for row in rows))


DATA_FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing file": (lambda data: (data / "retain90.json").unlink(), "needs the file retain90.json, found none in"),
    "corrupt line": (
        lambda data: (data / "holdout10.json").write_text('{"question": "Who?"\n'),
        "holdout10.json line 1 is not valid JSON",
    ),
    "binary file": (lambda data: (data / "retain90.json").write_bytes(b"\xff\xfe\x00"), "cannot read"),
    "empty set": (lambda data: (data / "forget10.json").write_text(""), "the set forget10 is empty"),
    "forget inside retain": (
        lambda data: (data / "retain90.json").write_text((data / "full.json").read_text()),
        "40 rows of the forget set are in the retain set too",
    ),
    "forget is the holdout": (
        lambda data: (data / "holdout10.json").write_text((data / "forget10.json").read_text()),
        "40 rows of the forget set are in the holdout set too",
    ),
    "no answer": (
        lambda data: spoil(data, "forget10", lambda rows: rows[2].pop("answer")),
        "forget10/2 needs a text",
    ),
    "variants of another split": (
        lambda data: (data / "forget10_perturbed.json").write_text((data / "retain_perturbed.json").read_text()),
        "is not in the forget set of this split",
    ),
}


@pytest.mark.parametrize("fault", DATA_FAULTS)
def test_faults_of_a_data_folder(refused: Callable[..., list[str]], data: Path, fault: str) -> None:
    spoiled, fragment = DATA_FAULTS[fault]
    spoiled(data)
    (line,) = refused(f"data.source={data}")
    assert fragment in line


def test_models_that_are_not_there(refused: Callable[..., list[str]], model: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text("{}")
    (pickled / "pytorch_model.bin").write_text("")
    cases = {
        "./nowhere": "model.path: needs a folder that exists or a hub id; found './nowhere'",
        f"{bare}": "model.path: needs *.safetensors in",
        f"{pickled}": "found pytorch_model.bin (pickled weights are never loaded)",
        f"{tmp_path}": "model.path: needs a model folder with config.json",
        "'a b'": "model.path: needs a folder that exists or a hub id; found 'a b'",
    }
    for path, fragment in cases.items():
        (line,) = refused(f"model.path={path}")
        assert fragment in line


def test_a_model_folder_without_a_tokenizer(refused: Callable[..., list[str]], model: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(model, tmp_path / "mute", ignore=shutil.ignore_patterns("tokenizer*"))
    (line,) = refused(f"model.path={tmp_path / 'mute'}")
    assert line.startswith("error: model.tokenizer: needs a folder with a tokenizer")


def test_rows_longer_than_the_models_window(refused: Callable[..., list[str]], model: Path) -> None:
    (line,) = refused(f"model.path={model}", "model.max_length=4096")
    assert "model.max_length: needs at most the model's window of 512; found 4096" in line


def test_references_that_are_not_there(refused: Callable[..., list[str]], model: Path, tmp_path: Path) -> None:
    (line,) = refused(f"model.path={model}", "model.target=self")
    assert "model.reference=train" in line
    assert "suite.allow_missing_reference=true" in line
    (tmp_path / "log.json").write_text('{"something": 1}')
    (line,) = refused(f"model.reference={tmp_path / 'log.json'}")
    assert line.startswith(f"error: model.reference: {tmp_path / 'log.json'}")
    (line,) = refused("model.reference=./nowhere")
    assert "model.reference: needs a folder that exists or a hub id" in line


def test_the_hub_gated_missing_and_out_of_reach(
    refused: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    from tests.models.test_hub import raising, response

    monkeypatch.setattr(HfApi, "repo_info", raising(GatedRepoError("gated", response=response(403))))
    for line in refused("model=llama-3.2-1b-instruct", "data.source=embedded"):
        assert "is gated: accept its terms on its page and log in" in line
    monkeypatch.setattr(HfApi, "repo_info", raising(RepositoryNotFoundError("none", response=response(404))))
    (line,) = refused("model.path=nobody/nothing")
    assert "'nobody/nothing' on the hub does not exist, or is private" in line
    monkeypatch.setattr(HfApi, "repo_info", raising(OSError("no route to host")))
    lines = refused("model=llama-3.2-1b-instruct")
    assert all("the dataset 'locuslab/TOFU' on the hub cannot be reached" in line for line in lines)


TRAINING_FAULTS = {
    "no file of alternates": (
        ["method=dpo", "method.alternates=./others.json"],
        "method.alternates: needs refusals, shuffled, retained, perturbed_answer or a JSON-lines file; found "
        "'./others.json', which is no file",
    ),
    "no file of retain rows": (
        ["data.retain_rows=./rows.json"],
        "data.retain_rows: needs retain, general or a JSON-lines file; found './rows.json', which is no file",
    ),
    "a layer beyond the last": (
        ["trainer.layers=1-9"],
        "trainer.layers: needs layers from 0 to 1, in rising order; found '1-9'",
    ),
    "no parameter of that name": (
        ["trainer.params=c_attn"],
        "trainer.params: needs to match one of 20 parameters (model.embed_tokens.weight, "
        "model.layers.0.self_attn.q_proj.weight, ...); found 'c_attn', which matches none",
    ),
    "an adapter without the layers of the method": (
        ["method=rmu", "model/adapter=lora", "model.adapter.target_modules=[q_proj]"],
        "method.forget: trains ",
    ),
    "objectives at two layers": (
        ["method=rmu", "method.forget.layer=1", "method.retain.layer=0"],
        "method.retain.layer: needs 1, the layer that method/forget=rmu reads; found 0",
    ),
    "more requests than rows": (
        ["data.requests=41"],
        "data.requests: needs at most one request per row of the forget set (40); found 41",
    ),
    "a request of one row has no other": (
        ["method=ssu", "data.requests=40"],
        "method.alternates: needs another answer among the rows of its request (shuffled) for every row; 1 of 1 have "
        "none (first: forget10/0)",
    ),
}


@pytest.mark.parametrize("fault", TRAINING_FAULTS)
def test_faults_of_what_is_trained_on_which_rows(refused: Callable[..., list[str]], fault: str) -> None:
    words, start = TRAINING_FAULTS[fault]
    (line,) = refused(*words)
    assert line.startswith(f"error: {start}")


def test_4_bits_without_the_package(refused: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unlearn.models.adapter.find_spec", lambda name: None)
    lines = refused("model/adapter=qlora", "trainer.epochs=0")
    assert (
        "error: model/adapter: qlora needs bitsandbytes, found none; pip install 'unlearn-run[quantization]'" in lines
    )
    assert len(lines) == 2, "with all other faults of the words"


def test_a_device_that_is_not_there(refused: Callable[..., list[str]]) -> None:
    import torch

    absent = "mps" if torch.cuda.is_available() else "cuda"
    (line,) = refused(f"trainer.device={absent}")
    assert f"trainer.device: needs a {absent} device, found none" in line


def test_folders_that_cannot_be_written(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (line,) = refused(f"cache_dir={tmp_path / 'file' / 'cache'}")
    assert line.startswith("error: cache_dir: ")
    (line,) = refused(f"output_dir={tmp_path / 'file' / 'out'}")
    assert line.startswith("error: output_dir: ")
    (line,) = refused("cache_dir=/proc/unlearn")
    assert line.startswith("error: cache_dir: needs a folder that can be written")


def test_a_disk_that_is_full(refused: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unlearn.plan.free_bytes", lambda folder: 1_100_000)
    (line,) = refused()
    assert line.startswith("error: cache_dir: needs ")
    assert "target model" in line


def test_many_faults_of_the_words_come_at_once(refused: Callable[..., list[str]]) -> None:
    lines = refused(
        "scheduler=autlr", "seed=1.5", "trainer.epochs=0", "trainer.lerning_rate=1", "method.forget.beta=high"
    )
    assert len(lines) == 5
