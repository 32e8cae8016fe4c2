"""lm-evaluation-harness on a live model: its numbers under our names, and nothing left changed."""

from __future__ import annotations

import copy
import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import tiny_model, tiny_setup
from unlearn.config import SuiteConfig
from unlearn.errors import UserError
from unlearn.evaluation import harness

torch = pytest.importorskip("torch")

needs_lm_eval = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed: pip install 'unlearn-run[lm-eval]'"
)

CHOICE = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""

UNTIL = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 4, do_sample: true, temperature: 1.0}}
metric_list: [{{metric: exact_match}}, {{metric: bleu}}]
"""

GROUP = """
group: own_group
task: [own_choice, own_choice_2]
aggregate_metric_list: [{metric: acc, weight_by_size: true}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tasks of the user's own: questions of the embedded data with four names to choose from."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    _, benchmark, _, _ = tiny_setup()
    rows = [
        {"question": e.question, "choices": [e.answer, *e.perturbed_answers[:3]], "answer": 0}
        for e in benchmark.sets["forget"]
    ]
    for name, part in (("own_choice", rows), ("own_choice_2", rows[:3]), ("own_until", rows)):
        file = tmp_path / f"{name}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in part))
        (tmp_path / f"{name}.yaml").write_text((UNTIL if "until" in name else CHOICE).format(name=name, file=file))
    (tmp_path / "own_group.yaml").write_text(GROUP)
    return tmp_path


def suite(folder: Path | None, *tasks: str, **settings: Any) -> SuiteConfig:
    place = None if folder is None else str(folder)
    return SuiteConfig(name="lm_eval", benchmark=False, tasks=list(tasks), task_folder=place, **settings)


def likeliest(model: Any, encoder: Any, examples: Any) -> list[bool]:
    """Whether the right answer has the highest total log-probability of the four, behind the bare question."""
    chosen = []
    for e in examples:
        sums = []
        for answer in (e.answer, *e.perturbed_answers[:3]):
            head = encoder.tokenizer(e.question)["input_ids"]
            ids = torch.tensor([encoder.tokenizer(f"{e.question} {answer}")["input_ids"]])
            with torch.no_grad():
                logp = model(ids).logits[0, :-1].log_softmax(-1)
            sums.append(float(logp[torch.arange(len(head) - 1, ids.shape[1] - 1), ids[0, len(head) :]].sum()))
        chosen.append(sums[0] == max(sums))
    return chosen


@needs_lm_eval
def test_a_multiple_choice_task_gives_the_share_of_likeliest_answers(folder: Path) -> None:
    _, benchmark, tokenizer, encoder = tiny_setup()
    model = tiny_model()
    values = harness.run(model, tokenizer, suite(folder, "own_choice"))
    chosen = likeliest(model, encoder, benchmark.sets["forget"])
    value = values["lm_eval.own_choice.acc"]
    share = sum(chosen) / 8
    assert (value["value"], value["n"]) == (share, 8)
    # The standard error of a mean: sqrt(p (1 - p) / (n - 1)).
    half = 1.959964 * (share * (1 - share) / 7) ** 0.5
    assert 0 < share < 1
    assert value["interval"] == pytest.approx([share - half, share + half], abs=1e-9)
    assert list(values) == ["lm_eval.own_choice.acc"]


@needs_lm_eval
def test_groups_limits_and_answers_that_are_generated(folder: Path) -> None:
    _, _, tokenizer, _ = tiny_setup()
    values = harness.run(tiny_model(), tokenizer, suite(folder, "own_group", "own_until", task_limit=4))
    assert {name: value["n"] for name, value in values.items()} == {
        "lm_eval.own_choice.acc": 4,
        "lm_eval.own_choice_2.acc": 3,
        "lm_eval.own_group.acc": 7,
        "lm_eval.own_until.exact_match": 4,
        "lm_eval.own_until.bleu": 4,
    }
    parts = [values[f"lm_eval.own_choice{k}.acc"] for k in ("", "_2")]
    assert values["lm_eval.own_group.acc"]["value"] == pytest.approx(
        sum(part["value"] * part["n"] for part in parts) / 7
    )


@needs_lm_eval
def test_nothing_is_left_changed_and_nothing_is_printed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, _, tokenizer, _ = tiny_setup()
    tokenizer, model = copy.deepcopy(tokenizer), tiny_model()
    tokenizer.padding_side = "right"
    model.train()
    model.model.layers[0].eval()
    pad, modes = tokenizer.pad_token, [module.training for module in model.modules()]
    weights = {name: (weight.data_ptr(), weight.clone()) for name, weight in model.named_parameters()}
    generation, config = copy.deepcopy(model.generation_config), copy.deepcopy(model.config.to_dict())
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    capfd.readouterr()
    harness.run(model, tokenizer, suite(folder, "own_choice", "own_until"))
    assert capfd.readouterr() == ("", "")
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected
    assert [module.training for module in model.modules()] == modes
    assert (tokenizer.padding_side, tokenizer.pad_token) == ("right", pad)
    assert model.generation_config.to_dict() == generation.to_dict()
    assert model.config.to_dict() == config
    for name, weight in model.named_parameters():
        assert weight.data_ptr() == weights[name][0]
        assert torch.equal(weight, weights[name][1])
        assert weight.requires_grad
        assert weight.grad is None


@needs_lm_eval
def test_the_same_again_and_the_same_as_simple_evaluate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval import evaluator
    from lm_eval.models.huggingface import HFLM

    _, _, tokenizer, _ = tiny_setup()
    model = tiny_model()
    asked = suite(folder, "own_until", "own_choice")
    first = harness.run(model, tokenizer, asked)
    random.seed(6), torch.manual_seed(6)
    assert harness.run(model, tokenizer, asked) == first
    # It asks pip, git and the hub for versions.
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    lm = HFLM(pretrained=model, tokenizer=copy.deepcopy(tokenizer), batch_size=16)
    found = evaluator.simple_evaluate(
        lm,
        tasks=asked.tasks,
        bootstrap_iters=1000,
        log_samples=False,
        task_manager=harness._manager(str(folder), False),
    )
    assert harness.values_of(found["results"]) == first


@needs_lm_eval
def test_a_task_of_ones_own_is_found_without_the_published_ones(folder: Path) -> None:
    harness.check(suite(folder, "own_group", "own_until"))
    assert harness._manager(str(folder), False).all_tasks == ["own_choice", "own_choice_2", "own_group", "own_until"]


@needs_lm_eval
def test_faults_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = harness._manager
    # Reading the harness's own 14,000 tasks takes 20 s.
    monkeypatch.setattr(harness, "_manager", lambda folder, published: manager(folder, False))
    with pytest.raises(UserError) as refused:
        harness.check(suite(folder, "own_choise", "own_until", "zzz"))
    assert refused.value.messages == [
        "suite.tasks: lm-evaluation-harness has no task 'own_choise'; the nearest are own_choice, own_choice_2",
        "suite.tasks: lm-evaluation-harness has no task 'zzz'",
    ]
    (folder / "own_until.json").unlink()
    with pytest.raises(UserError, match=r"^suite\.tasks: cannot load 'own_until': FileNotFound.*own_until\.json"):
        harness.check(suite(folder, "own_until"))
    with pytest.raises(UserError, match=r"^suite\.tasks: Duplicate task 'own_choice'"):
        harness.check(suite(folder, "own_group", "own_choice"))


@needs_lm_eval
def test_a_dataset_out_of_reach_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def require(path: str, key: str, kind: str) -> None:
        asked.append((path, key, kind))
        raise UserError(f"{key}: the {kind} '{path}' on the hub cannot be reached")

    monkeypatch.setattr(harness.hub, "require", require)
    text = CHOICE.replace("dataset_path: json", "dataset_path: nobody/nothing").format(name="far", file="x")
    (folder / "far.yaml").write_text(text)
    (folder / "far_group.yaml").write_text(GROUP.replace("own_choice_2", "far").replace("own_group", "far_group"))
    with pytest.raises(UserError) as refused:
        harness.check(suite(folder, "far_group", "far"))
    assert refused.value.messages == ["suite.tasks: the dataset 'nobody/nothing' on the hub cannot be reached"]
    assert asked == [("nobody/nothing", "suite.tasks", "dataset")]


@needs_lm_eval
def test_an_answer_longer_than_the_window_is_one_line(folder: Path) -> None:
    _, _, tokenizer, _ = tiny_setup()
    file = folder / "own_until.yaml"
    file.write_text(file.read_text().replace("max_gen_toks: 4", "max_gen_toks: 100000"))
    with pytest.raises(UserError, match=r"^suite\.tasks: lm-evaluation-harness cannot run them: .*max tokens"):
        harness.run(tiny_model(), tokenizer, suite(folder, "own_until"))


@needs_lm_eval
def test_values_are_told_apart_by_the_files_of_the_folder(folder: Path) -> None:
    before = harness.fingerprint(suite(folder, "own_until"))
    assert harness.fingerprint(suite(folder, "own_choice")) == before != harness.fingerprint(suite(None, "arc_easy"))
    with (folder / "own_until.json").open("a") as file:
        file.write("\n")
    assert harness.fingerprint(suite(folder, "own_until")) != before


def test_names_counts_and_intervals_of_results() -> None:
    results = {
        "gsm8k": {
            "name": "gsm8k",
            "alias": "gsm8k",
            "sample_len": 100,
            "exact_match,strict-match": 0.25,
            "exact_match_stderr,strict-match": 0.1,
            "exact_match,none": np.float64(0.5),
            "exact_match_stderr,none": "N/A",
            "f1,none": 0.0,
            "f1_stderr,none": 0.0,
            "perplexity,none": float("inf"),
            "pieces,none": [1, 2],
        },
        "mmlu": {"acc,none": 0.5, "acc_stderr,none": 0.01, "sample_len": 7, "sample_count": {"acc,none": 14042}},
    }
    # 0.25 -+ 1.959964 * 0.1; 0.5 -+ 1.959964 * 0.01
    assert harness.values_of(results) == {
        "lm_eval.gsm8k.exact_match.strict-match": {
            "value": 0.25,
            "n": 100,
            "interval": pytest.approx([0.0540036, 0.4459964]),
        },
        "lm_eval.gsm8k.exact_match": {"value": 0.5, "n": 100},
        "lm_eval.gsm8k.f1": {"value": 0.0, "n": 100},
        "lm_eval.gsm8k.perplexity": {"value": None, "n": 100, "reason": "lm-evaluation-harness gives inf"},
        "lm_eval.mmlu.acc": {"value": 0.5, "n": 14042, "interval": pytest.approx([0.48040036, 0.51959964])},
    }
