"""The plan's numbers: sizes of a model with and without an adapter, memory and disk by part."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.helpers import compose_run, tiny_setup
from unlearn import memory, plan
from unlearn.data.benchmark import even
from unlearn.errors import UserError
from unlearn.memory import ModelSize
from unlearn.models.sources import TRAIN, Sources
from unlearn.plan import Prepared

WHOLE = ModelSize(parameters=1000, layers=2, width=32, trainable=1000, linear=800)
ADAPTED = ModelSize(parameters=1000, layers=2, width=32, trainable=100, adapter=100, linear=800)
PLAIN = ("scheduler=constant", "optimizer=adamw")

BATCH = ("logits", "activations")
"""Parts that grow with the micro-batch."""


def prepared(size: ModelSize, *texts: str) -> Prepared:
    _, benchmark, tokenizer, encoder = tiny_setup()
    rows = {name: encoder.answers(benchmark.sets[name]) for name in ("forget", "retain", "holdout")}
    sources = Sources("somewhere", None)
    cfg, device = compose_run(*texts), torch.device("cpu")
    return Prepared(
        cfg,
        benchmark,
        sources,
        tokenizer,
        encoder,
        rows,
        alternates={},
        requests=benchmark.requests,
        evaluated={},
        scored={},
        device=device,
        size=size,
    )


def parts(size: ModelSize, *texts: str) -> dict[str, int]:
    found = memory.memory_parts(prepared(size, *PLAIN, *texts))
    return {name: count for name, count in found.items() if name not in BATCH}


FULL = {"weights": 4000, "gradient": 4000, "optimizer state": 8000}


@pytest.mark.parametrize(
    ("size", "texts", "expected"),
    [
        (WHOLE, ["method=gdiff"], FULL),
        (WHOLE, ["method=npo"], FULL),  # the start model's log-probabilities are numbers
        (WHOLE, ["method=ngdiff"], {**FULL, "second gradient": 4000}),
        (WHOLE, ["method=ngdiff", "scheduler=autolr"], {**FULL, "second gradient": 4000, "lr probe copies": 8000}),
        (WHOLE, ["method=gdiff", "optimizer=sgd"], {"weights": 4000, "gradient": 4000}),
        (
            WHOLE,
            ["method=gdiff", "method.separate_states=true"],
            {"weights": 4000, "gradient": 4000, "second gradient": 4000, "optimizer state": 16000},
        ),
        (WHOLE, ["method=gdiff", "method.sam_rho=0.01"], {**FULL, "copy for sharpness": 4000}),
        (WHOLE, ["method=gdiff", "method.saliency_std=1.0"], {**FULL, "saliency mask and copy": 5000}),
        (WHOLE, ["method=kl"], {**FULL, "copy of the start model": 4000}),
        (WHOLE, ["method=kl", "trainer.start_model_on_host=true"], FULL),
        (
            WHOLE,
            ["method=gdiff", "method/forget=whp"],
            {**FULL, "copy of the start model": 4000, "reinforced model": 4000},
        ),
        # A gradient and AdamW's two states are in memory while the copy is trained; SGD's own steps need one gradient.
        (
            WHOLE,
            ["method=gdiff", "method/forget=whp", "optimizer=sgd"],
            {
                "weights": 4000,
                "gradient": 4000,
                "copy of the start model": 4000,
                "reinforced model": 4000,
                "training of the reinforced model": 8000,
            },
        ),
        (
            WHOLE,
            ["method=gdiff", "trainer.precision=bf16"],
            {"weights": 2000, "gradient": 2000, "optimizer state": 4000},
        ),
        # 25 of 1,000 parameters selected.
        (
            ModelSize(1000, 2, 32, trainable=25),
            ["method=ngdiff"],
            {"weights": 4000, "gradient": 100, "second gradient": 100, "optimizer state": 200},
        ),
        # The start model is the policy with its adapter switched off.
        (
            ADAPTED,
            ["method=kl", "model/adapter=lora"],
            {"weights": 4000, "adapter": 400, "gradient": 400, "optimizer state": 800},
        ),
        # 200 parameters in bf16 and 800 in NF4: 400 + 800 (1/2 + 1/64 + 1/4096) = 812.7; the adapter is in fp32.
        (
            ADAPTED,
            ["method=gdiff", "model/adapter=qlora", "trainer.precision=bf16"],
            {"weights": 813, "adapter": 400, "gradient": 400, "optimizer state": 800},
        ),
    ],
)
def test_memory_by_part(size: ModelSize, texts: list[str], expected: dict[str, int]) -> None:
    assert parts(size, *texts) == expected


def test_two_answers_at_once_double_what_a_batch_takes() -> None:
    def batch(*texts: str) -> list[int]:
        found = memory.memory_parts(prepared(WHOLE, *PLAIN, *texts))
        return [found[name] for name in BATCH]

    one = batch("method=npo")
    assert batch("method=npo", "method/forget=dpo", "method.alternates=refusals") == [2 * count for count in one]
    assert batch("method=npo", "method/forget=idk", "method.alternates=refusals") == one
    assert batch("method=npo", "trainer.micro_batch_size=16") == [count // 2 for count in one]


@pytest.mark.parametrize(
    ("size", "texts", "expected"),
    [
        (WHOLE, [], {"final model": ("output_dir", 4000)}),
        (WHOLE, ["trainer.precision=bf16"], {"final model": ("output_dir", 2000)}),
        (WHOLE, ["trainer.save_model=false"], {}),
        (ADAPTED, ["model/adapter=lora"], {"final model": ("output_dir", 4000)}),
        (ADAPTED, ["model/adapter=lora", "model.adapter.save=separate"], {"adapter": ("output_dir", 400)}),
        (ADAPTED, ["model/adapter=qlora"], {"adapter": ("output_dir", 400)}),
    ],
)
def test_disk_by_part(size: ModelSize, texts: list[str], expected: dict[str, Any]) -> None:
    assert plan.disk_parts(prepared(size, *texts)) == expected


@pytest.mark.parametrize("requests", [1, 3])
def test_shuffled_answers_stay_within_their_removal_request(requests: int) -> None:
    """8 rows to forget: in parts of 2, 3 and 3, or all together."""
    _, benchmark, _, encoder = tiny_setup()
    cfg = compose_run("method=ssu", "method.alternates=shuffled", f"data.requests={requests}")
    sets = {"forget": benchmark.sets["forget"], "retain": benchmark.sets["retain"]}
    found = plan.load_alternates(cfg, sets, even(8, requests), encoder)
    answers = {tuple(row.input_ids[row.n_prompt :]): row.id for row in encoder.answers(sets["forget"])}
    parts = [range(8)] if requests == 1 else [range(2), range(2, 5), range(5, 8)]
    for part in parts:
        ids = {sets["forget"][place].id for place in part}
        for id in ids:
            others = {answers[tuple(row.input_ids[row.n_prompt :])] for row in found[id]}
            assert others <= ids - {id}
            assert len(others) == min(5, len(ids) - 1)


def test_retained_answers_are_those_of_the_rows_to_keep() -> None:
    _, benchmark, _, encoder = tiny_setup()
    sets = {"forget": benchmark.sets["forget"], "retain": benchmark.sets["retain"]}
    answers = {tuple(row.input_ids[row.n_prompt :]) for row in encoder.answers(sets["retain"])}
    for words in (["method=llmu"], ["method=llmu", "data.requests=2"], ["method=idk_ap"]):
        cfg = compose_run(*words, "method.alternates=retained")
        found = plan.load_alternates(cfg, sets, even(8, cfg.data.requests), encoder)
        assert all(tuple(row.input_ids[row.n_prompt :]) in answers for rows in found.values() for row in rows)
        assert {example.id for example in sets["forget"]} <= found.keys()


def measured(*texts: str) -> ModelSize:
    _, _, tokenizer, _ = tiny_setup()
    shape = ["hidden_size=32", "layers=2", "heads=2", "vocab_size=400"]
    cfg = compose_run(*(f"model.tiny.{text}" for text in shape), *texts)
    return memory.measure(cfg, Sources(TRAIN, TRAIN), tokenizer)


def test_the_model_in_numbers() -> None:
    # Per block: four 32 x 32 attention projections, three of 32 x 85 in the MLP; two norms of 32, and one at the end.
    linear = 2 * (4 * 32 * 32 + 3 * 32 * 85)
    whole = linear + 5 * 32 + len(tiny_setup()[2]) * 32
    assert measured() == ModelSize(whole, 2, 32, trainable=whole, linear=linear)
    assert measured("trainer.params=down_proj", "trainer.layers=1").trainable == 85 * 32
    assert measured("method=none").trainable == 0
    # Rank 4: 4 (in + out) for each linear layer.
    adapter = 2 * (4 * 4 * 64 + 3 * 4 * 117)
    lora = measured("model/adapter=lora", "model.adapter.r=4")
    assert lora == ModelSize(whole, 2, 32, trainable=adapter, adapter=adapter, linear=linear)
    assert measured("model/adapter=lora", "model.adapter.r=4", "trainer.layers=0").trainable == adapter // 2


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (["trainer.layers=2"], "trainer.layers: needs layers from 0 to 1, in rising order; found '2'"),
        (["method/forget=rmu", "method.forget.layer=7"], "method.forget.layer: needs a layer from 0 to 1 "),
        (["model/adapter=lora", "model.adapter.target_modules=[c_attn]"], "model.adapter.target_modules: needs names"),
    ],
)
def test_what_the_model_does_not_have_is_known_from_its_shape(texts: list[str], line: str) -> None:
    with pytest.raises(UserError) as error:
        measured(*texts)
    assert str(error.value).startswith(line)
