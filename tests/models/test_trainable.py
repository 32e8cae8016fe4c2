"""Selection of trained parameters by name and by layer, and what is said of a selection that cannot be."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.helpers import compose_run, tiny_model, tiny_setup
from unlearn.config import TinyConfig
from unlearn.data.batches import collate
from unlearn.errors import UserError
from unlearn.models import load
from unlearn.models.adapter import LoRA, attach
from unlearn.models.trainable import check_selection, layer_of, layer_range, select, selected
from unlearn.objectives.activation import RMU
from unlearn.objectives.forget import NPO
from unlearn.objectives.logprobs import AnswerModel

LLAMA = ["model.embed_tokens.weight", *(f"model.layers.{n}.mlp.{w}.weight" for n in range(12) for w in ("up", "down"))]
GPT2 = ["transformer.wte.weight", *(f"transformer.h.{n}.attn.c_attn.weight" for n in range(12)), "lm_head.weight"]


def four_layers() -> Any:
    _, _, tokenizer, _ = tiny_setup()
    return load.tiny_model(TinyConfig(hidden_size=32, layers=4, heads=2), tokenizer, 256, 0)


def trainable(model: Any) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


@pytest.mark.parametrize(
    ("names", "params", "layers", "expected"),
    [
        (LLAMA, "auto", None, LLAMA),
        (LLAMA, "auto", "5", ["model.layers.5.mlp.up.weight", "model.layers.5.mlp.down.weight"]),
        (LLAMA, "down", "5-6", ["model.layers.5.mlp.down.weight", "model.layers.6.mlp.down.weight"]),
        (LLAMA, "down", "10-", ["model.layers.10.mlp.down.weight", "model.layers.11.mlp.down.weight"]),
        (LLAMA, "^model.embed", None, ["model.embed_tokens.weight"]),
        (LLAMA, r"layers\.(1|3)\.mlp\.up", None, ["model.layers.1.mlp.up.weight", "model.layers.3.mlp.up.weight"]),
        (GPT2, "auto", "0-1", ["transformer.h.0.attn.c_attn.weight", "transformer.h.1.attn.c_attn.weight"]),
        (GPT2, "wte|lm_head", None, ["transformer.wte.weight", "lm_head.weight"]),
    ],
)
def test_names_by_expression_and_layer(names: list[str], params: str, layers: str | None, expected: list[str]) -> None:
    assert selected(names, 12, NPO(), params, layers) == expected


def test_layers_of_names_and_ranges() -> None:
    assert [layer_of(name) for name in ("model.layers.11.mlp.experts.3.w", "transformer.h.2.ln_1.bias", "wte")] == [
        11,
        2,
        None,
    ]
    assert [layer_range(text, 8) for text in ("5", "5-7", "3-", "0-0")] == [
        range(5, 6),
        range(5, 8),
        range(3, 8),
        range(1),
    ]


def test_a_method_names_its_parameters_and_the_user_may_name_others() -> None:
    names = [f"model.layers.{n}.mlp.{w}_proj.weight" for n in range(4) for w in ("up", "down")]
    down = [name for name in names if "down" in name]
    assert selected(names, 4, RMU(layer=3)) == down[1:]
    assert selected(names, 4, RMU(layer=3), layers="0-2") == down[:3]
    assert selected(names, 4, RMU(layer=3), params="up") == [name for name in names if "up" in name]
    assert selected(names, 4, RMU(layer=3), params=".", layers="3") == names[-2:]


def test_tied_weights_are_one_parameter() -> None:
    model = tiny_model()
    names = select(model, NPO())
    assert names == trainable(model)
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_rmu_changes_exactly_the_down_projections_that_it_names() -> None:
    model = four_layers()
    wanted = [f"model.layers.{n}.mlp.down_proj.weight" for n in (1, 2, 3)]
    assert select(model, RMU(layer=3)) == wanted == trainable(model)
    _, benchmark, _, encoder = tiny_setup()
    rows = collate(encoder.answers(benchmark.sets["forget"])[:4], encoder.pad_id)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.1)
    RMU(layer=3).terms(AnswerModel(model)(rows, 3)).mean().backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert list(grads) == wanted
    assert all(grad.any() for grad in grads.values())
    optimizer.step()
    moved = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
    assert moved == wanted


def test_with_an_adapter_its_parameters_alone_are_trained() -> None:
    model = attach(four_layers(), LoRA(r=4))
    everything = trainable(model)
    assert select(model, NPO()) == everything == trainable(model)
    some = select(model, NPO(), params=r"^model.layers.\d.self_attn.q_proj", layers="1-2")
    assert trainable(model) == some
    assert [name.removeprefix("base_model.model.model.layers.") for name in some] == [
        f"{n}.self_attn.q_proj.lora_{w}.default.weight" for n in (1, 2) for w in "AB"
    ]


def test_a_method_names_its_parameters_within_an_adapter_too() -> None:
    """RMU's layer and the two before it, the down projection alone; the user may still name others."""
    model = attach(four_layers(), LoRA(r=4))
    names = [name for name, _ in model.named_parameters()]

    def adapters(layers: tuple[int, ...], *modules: str) -> list[str]:
        tail = [f"{module}.lora_{w}.default.weight" for module in modules for w in "AB"]
        return [f"base_model.model.model.layers.{n}.{each}" for n in layers for each in tail]

    assert select(model, RMU(layer=3)) == adapters((1, 2, 3), "mlp.down_proj") == trainable(model)
    assert selected(names, 4, RMU(layer=3), layers="0") == adapters((0,), "mlp.down_proj")
    others = adapters((0, 1, 2, 3), "self_attn.q_proj")
    assert selected(names, 4, RMU(layer=3), params="q_proj") == others
    with pytest.raises(UserError) as error:
        selected(others, 4, RMU(layer=3))
    assert re.fullmatch(
        r"method\.forget: trains '.*' of rmu, which is none of 8 parameters \(model\.layers\.0\.self_attn\.q_proj\."
        r"lora_A\.default\.weight, .*\); name others with trainer\.params, or have those adapted too with "
        r"model\.adapter\.target_modules",
        str(error.value),
    )


@pytest.mark.parametrize(
    ("layers", "faults"),
    [
        (["forget.layer=2", "retain.layer=2"], []),
        (["retain.layer=2"], []),  # null is 12 * 7 // 32 = 2 of 12 layers
        (["forget.layer=3"], ["method.retain.layer: needs 3, the layer that method/forget=rmu reads; found 2"]),
        (["retain.layer=4"], ["method.retain.layer: needs 2, the layer that method/forget=rmu reads; found 4"]),
        (["retain.layer=12"], ["method.retain.layer: needs a layer from 0 to 11 of this model; found 12"]),
    ],
)
def test_two_objectives_read_the_same_layer(layers: list[str], faults: list[str]) -> None:
    cfg = compose_run("method=rmu", *(f"method.{layer}" for layer in layers))
    names = [f"model.layers.{n}.mlp.down_proj.weight" for n in range(12)]
    if not faults:
        assert check_selection(cfg, names, 12) == names[:3]
        return
    with pytest.raises(UserError) as error:
        check_selection(cfg, names, 12)
    assert error.value.messages == faults


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (["trainer.params='('"], "trainer.params: needs a regular expression; found '(' (missing ), unterminated "),
        (
            ["trainer.params=c_attn"],
            "trainer.params: needs to match one of 25 parameters (model.embed_tokens.weight, "
            "model.layers.0.mlp.up.weight, ...); found 'c_attn', which matches none",
        ),
        (
            ["trainer.params=embed", "trainer.layers=3"],
            "trainer.params: needs to match one of 25 parameters (model.embed_tokens.weight, "
            "model.layers.0.mlp.up.weight, ...); found 'embed' in the layers 3, which matches none",
        ),
        (
            ["trainer.layers=a-b"],
            "trainer.layers: needs a layer or a range of layers, as in 5, 5-7 or 3-; found 'a-b'",
        ),
        (["trainer.layers=10-12"], "trainer.layers: needs layers from 0 to 11, in rising order; found '10-12'"),
        (["trainer.layers=12-"], "trainer.layers: needs layers from 0 to 11, in rising order; found '12-'"),
        (["trainer.layers=7-5"], "trainer.layers: needs layers from 0 to 11, in rising order; found '7-5'"),
        (
            ["method/forget=rmu", "method.forget.layer=12"],
            "method.forget.layer: needs a layer from 0 to 11 of this model; found 12",
        ),
        (
            ["method/forget=rmu"],
            "method.forget: trains 'down_proj' of rmu, which is none of 25 parameters (model.embed_tokens.weight, "
            "model.layers.0.mlp.up.weight, ...); name others with trainer.params",
        ),
    ],
)
def test_a_selection_that_cannot_be_is_one_line(texts: list[str], line: str) -> None:
    with pytest.raises(UserError) as error:
        check_selection(compose_run("method=npo", *texts), LLAMA, 12)
    assert len(error.value.messages) == 1
    assert re.sub(r"'[^']*' of rmu", "'down_proj' of rmu", error.value.messages[0]).startswith(line)
    assert "\n" not in error.value.messages[0]


def test_all_faults_are_told_at_once() -> None:
    cfg = compose_run(
        "method/forget=rmu", "method/retain=activation", "method.forget.layer=9", "method.retain.layer=8",
        "trainer.params=up", "trainer.layers=5-7",
    )  # fmt: skip
    with pytest.raises(UserError) as error:
        check_selection(cfg, LLAMA, 2)
    assert [message.partition(":")[0] for message in error.value.messages] == [
        "method.forget.layer",
        "method.retain.layer",
        "trainer.layers",
    ]
