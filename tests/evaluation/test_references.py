"""What may stand in for a reference model, and what is refused because it is of other data or of another model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import SHARED, needs_shared
from unlearn.config import ModelConfig
from unlearn.data.encode import Row
from unlearn.evaluation import records
from unlearn.evaluation.references import fits, is_evaluation, other_model, read_reference, unknown_model

CONFIG = """\
model: {name: tiny, path: null, target: auto, tiny: {hidden_size: 96, layers: 2, heads: 4, vocab_size: 1024}}
data: {name: tofu, subset: null, split: forget05}
"""
N = 4


def record(name: str, k: int, kind: str = "answer", answer: str = "") -> records.Record:
    logp_T = np.full(3, -0.5, dtype=np.float32)
    return records.Record(
        f"{name}/{k}", kind, f"Question: {k}?", answer or f"The {k}.", logp_T, logp_T > -1, logp_T, logp_T, 2
    )


def write_records(folder: Path, n: int = N, **names: str) -> Path:
    for name in ("forget", "holdout", "real_authors"):
        source = names.get(name, name)
        rows = [record(source, k) for k in range(n)]
        records.write([*rows, *(replace(row, kind="perturbed_0") for row in rows)], folder / f"{name}.parquet")
    return folder


def make_run(folder: Path, *columns: str, config: str = CONFIG) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"status": "done"}')
    (folder / "results.json").write_text("{}")
    (folder / "config.yaml").write_text(config)
    for column in columns:
        write_records(folder / "records" / column)
    return folder


def rows(n: int = N, **names: str) -> dict[str, list[Row]]:
    """What the present run scores."""
    scored = {}
    for name in ("forget", "holdout", "real_authors"):
        found = [record(names.get(name, name), k) for k in range(n)]
        found += [replace(each, kind="perturbed_0") for each in found]
        scored[name] = [Row(each.id, each.kind, each.prompt, each.answer, (1, 2, 3), 1, 2) for each in found]
    return scored


def write_log(folder: Path, n: int = N, texts: bool = True, muse: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    scores = {str(k): {"prob": 0.5, "avg_loss": 0.7} for k in range(n)}
    said = {str(k): {"rougeL_f1": 1.0, "ground_truth": f" The {k}. "} for k in range(n)}
    log: dict[str, Any] = {"forget_knowmem_ROUGE" if muse else "forget_Q_A_Prob": {"value_by_index": scores}}
    if muse:
        log |= {"mia_loss": {"forget": {"value_by_index": {k: {"score": 1.0} for k in scores}}}}
    elif texts:
        log["forget_Q_A_ROUGE"] = {"value_by_index": said}
    path = folder / ("MUSE_EVAL.json" if muse else "TOFU_EVAL.json")
    path.write_text(json.dumps(log))
    return path


def test_a_run_gives_its_reference_else_the_model_after(tmp_path: Path) -> None:
    both = make_run(tmp_path / "both", "after", "reference", "before")
    found = read_reference(both)
    assert found.place == str(both / "records" / "reference")
    assert {name: len(rows) for name, rows in found.sets.items()} == {"forget": N, "holdout": N, "real_authors": N}
    assert not found.is_log
    assert read_reference(make_run(tmp_path / "evaluated", "before", "after")).place.endswith("records/after")
    column = read_reference(both / "records" / "before")
    assert (column.sets, column.config) == (found.sets, found.config)
    assert column.title == f"'{both / 'records' / 'before'}' (tofu forget05)"
    assert read_reference(both / "records").place == found.place
    alone = read_reference(write_records(tmp_path / "alone"))
    assert (alone.run, alone.config) == (None, {})


def test_a_log_is_read_as_file_and_as_folder(tmp_path: Path) -> None:
    file = write_log(tmp_path / "log")
    assert read_reference(file).is_log
    assert read_reference(file).sets == read_reference(tmp_path / "log").sets
    other_name = file.rename(tmp_path / "log" / "retain.json")
    assert read_reference(other_name).sets["forget"]["forget/0"].prob == 0.5


def test_what_is_an_evaluation_and_what_a_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "after")
    assert all(is_evaluation(str(path)) for path in (run, run / "records" / "after", write_log(tmp_path / "log")))
    model = tmp_path / "model"
    model.mkdir()
    assert not is_evaluation(str(model))
    (model / "config.json").write_text("{}")
    assert not is_evaluation(str(model))
    assert not is_evaluation("open-unlearning/tofu_Llama-3.2-1B-Instruct_retain90")


def test_what_is_none_of_these_is_refused_in_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "before")
    with pytest.raises(ValueError, match="found no records of a reference or of the model after"):
        read_reference(run)
    with pytest.raises(ValueError, match="found none of these"):
        read_reference(tmp_path)
    (run / "records" / "before" / "forget.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match=r"forget.parquet: needs the records of a run, found \w+") as caught:
        read_reference(run / "records" / "before")
    assert "\n" not in str(caught.value)
    (run / "config.yaml").write_text("a: [")
    write_records(run / "records" / "after")
    with pytest.raises(ValueError, match=r"config.yaml: cannot be read"):
        read_reference(run)


def test_a_run_of_the_same_rows_fits(tmp_path: Path) -> None:
    reference = read_reference(make_run(tmp_path / "run", "after"))
    assert fits(reference, rows()) is None
    assert fits(reference, {}) is None
    assert fits(reference, {name: each for name, each in rows().items() if name != "holdout"}) is None


@pytest.mark.parametrize(
    ("scored", "fault"),
    [
        (rows(3), "needs the same 3 forget rows as this run; '{}' (tofu forget05) has 4"),
        (rows(forget="forget10"), "'{}' (tofu forget05) has other ones, without forget10/0"),
        (rows(holdout="holdout10"), "needs the same 4 holdout rows as this run; '{}' (tofu forget05) has other ones"),
        (rows() | {"forget": [replace(row, answer="Another.") for row in rows()["forget"]]},
         "has other texts, first in forget/0"),
        (rows() | {"forget": [replace(row, prompt="[INST] Why? [/INST]") for row in rows()["forget"]]},
         "has other texts, first in forget/0"),
        (rows() | {"forget_knowmem": rows()["forget"]},
         "'{}' (tofu forget05) is one on another benchmark, of the sets forget, holdout, real_authors"),
    ],
)  # fmt: skip
def test_a_run_of_other_rows_is_refused(tmp_path: Path, scored: dict[str, list[Row]], fault: str) -> None:
    run = make_run(tmp_path / "run", "after")
    said = fits(read_reference(run), scored)
    assert said is not None
    assert fault.format(run / "records" / "after") in said


def test_a_reference_without_the_forget_set_is_refused(tmp_path: Path) -> None:
    folder = write_records(tmp_path / "alone")
    (folder / "forget.parquet").unlink()
    assert fits(read_reference(folder), rows()) == f"needs scores of the forget set; '{folder}' has none"


def test_a_log_must_have_the_first_rows_and_the_same_benchmark(tmp_path: Path) -> None:
    assert fits(read_reference(write_log(tmp_path / "same")), rows()) is None
    # as many as the authors of TOFU scored: the first ones
    assert fits(read_reference(write_log(tmp_path / "shorter", 3)), rows()) is None
    longer = fits(read_reference(write_log(tmp_path / "longer", 5)), rows())
    assert longer is not None
    assert longer.endswith("has 5")
    without_texts = fits(read_reference(write_log(tmp_path / "numbers", 3, texts=False)), rows())
    assert without_texts is not None
    assert without_texts.endswith("has 3")
    other = [replace(row, answer=f"Other {k}") for k, row in enumerate(rows()["forget"])]
    texts = fits(read_reference(tmp_path / "same"), rows() | {"forget": other})
    assert texts is not None
    assert texts.endswith("has other texts: 0 of its 4 answers are the same")
    muse = fits(read_reference(write_log(tmp_path / "muse", muse=True)), rows())
    assert muse is not None
    assert "is one on another benchmark, of the sets forget_knowmem, forget" in muse


@needs_shared
@pytest.mark.parametrize(
    ("log", "split", "fits_it"),
    [
        ("open_unlearning_eval_logs/tofu_Llama-3.2-1B-Instruct_retain90", "forget10", True),
        ("open_unlearning_eval_logs/tofu_Llama-3.2-1B-Instruct_retain99", "forget01", True),
        ("open_unlearning_eval_logs/tofu_Llama-3.2-1B-Instruct_retain99", "forget10", False),
        ("open_unlearning_eval_logs/tofu_Llama-3.2-1B-Instruct_retain90", "forget05", False),
        ("tofu_eval_logs/locuslab_tofu/ft_epoch5_lr1e-05_llama2-7b_retain90_wd0.01", "forget10", True),
        ("tofu_eval_logs/npo/retain90_phi_wd0.01", "forget10", True),
        ("open_unlearning_eval_logs/muse_Llama-2-7b-hf_News_retrain", "forget10", False),
    ],
)
def test_published_logs_fit_the_split_that_they_are_of(log: str, split: str, fits_it: bool) -> None:
    lines = (SHARED / "tofu" / f"{split}.json").read_text(encoding="utf-8").splitlines()
    examples = [json.loads(line) for line in lines]
    forget = [
        Row(f"{split}/{k}", "answer", each["question"], each["answer"], (1, 2), 1, 1) for k, each in enumerate(examples)
    ]
    assert (fits(read_reference(SHARED / log), {"forget": forget}) is None) == fits_it


def model(name: str = "tiny", path: str | None = None) -> ModelConfig:
    return ModelConfig(name=name, path=path)


def with_shape(folder: Path, **shape: Any) -> str:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(shape))
    return str(folder)


def test_a_reference_of_another_model_is_refused(tmp_path: Path) -> None:
    tiny = read_reference(make_run(tmp_path / "tiny", "reference"))
    assert other_model(tiny, model()) is None
    assert unknown_model(tiny, model()) is None
    fault = other_model(tiny, model("phi-1.5", "microsoft/phi-1_5"))
    assert fault is not None
    assert fault.startswith("needs a reference of the same model, 'phi-1.5'")
    assert fault.endswith("(tofu forget05) is of 'tiny'")
    llama = read_reference(
        make_run(tmp_path / "llama", "after", config="model: {name: llama-2-7b, path: meta-llama/Llama-2-7b-hf}")
    )
    assert other_model(llama, model("llama-2-7b", "./mine")) is None
    assert other_model(llama, model("mine", "meta-llama/Llama-2-7b-hf")) is None
    assert other_model(llama, model("mistral-7b", "mistralai/Mistral-7B-v0.1")) is not None


def test_the_shape_of_a_model_decides_before_its_name(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "after", config="model: {name: retrained, path: gone}")
    with_shape(run / "model", model_type="llama", hidden_size=64, num_hidden_layers=2, vocab_size=512)
    same = with_shape(tmp_path / "same", model_type="llama", hidden_size=64, num_hidden_layers=2, vocab_size=512)
    wider = with_shape(tmp_path / "wider", model_type="llama", hidden_size=128, num_hidden_layers=2, vocab_size=512)
    reference = read_reference(run)
    assert other_model(reference, model("unlearned", same)) is None
    assert unknown_model(reference, model("unlearned", same)) is None
    assert other_model(reference, model("unlearned", wider)) is not None
    assert other_model(reference, model("unlearned", "some/hub-id")) is None
    assert unknown_model(reference, model("unlearned", "some/hub-id")) is not None


def test_the_tiny_model_is_known_by_its_width_and_depth(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "after")
    with_shape(run / "model", model_type="llama", hidden_size=96, num_hidden_layers=2, vocab_size=900)
    reference = read_reference(run)
    assert other_model(reference, model()) is None
    wider = model()
    wider.tiny.hidden_size = 128
    assert other_model(reference, wider) is not None


def test_a_log_does_not_say_what_model_it_is_of(tmp_path: Path) -> None:
    reference = read_reference(write_log(tmp_path / "log"))
    assert other_model(reference, model()) is None
    warning = unknown_model(reference, model())
    assert (
        warning == f"nothing in '{reference.place}' tells whether it is of 'tiny'; of another model it is no reference"
    )
