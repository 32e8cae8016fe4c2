"""Adapters: exactly they are trained, switched off they leave the start model; they are merged or saved apart."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import SHARED, needs_shared
from tests.helpers import compose_run, tiny_model, tiny_setup
from unlearn.data.batches import Batch, collate
from unlearn.errors import UserError
from unlearn.memory import NF4_BYTES
from unlearn.models import adapter, load
from unlearn.models.adapter import ADAPTERS, MARK, LoRA, NoAdapter, QLoRA, attach, disabled, has_adapter, merged
from unlearn.objectives.logprobs import AnswerModel, check_output_layer

needs_bitsandbytes = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")


@pytest.fixture
def eager() -> Iterator[None]:
    """bitsandbytes would compile its CPU kernels, which takes longer than all tests here."""
    with torch.compiler.set_stance("force_eager"):
        yield


def llama() -> Any:
    return tiny_model()


def gpt2() -> Any:
    """Its linear layers are Conv1D: weights stand transposed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return of_shape(GPT2LMHeadModel, GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=512, **special()))


def phi() -> Any:
    from transformers import PhiConfig, PhiForCausalLM

    shape = PhiConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, resid_pdrop=0.0, **special()
    )
    return of_shape(PhiForCausalLM, shape)


def stories() -> Any:
    """A Llama that was really trained; its vocabulary of 512 holds the ids of the setup's rows."""
    return load.load_model(tiny_setup()[0].model, str(SHARED / "models" / "stories260K"))


def special() -> dict[str, int]:
    tokenizer = tiny_setup()[2]
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def of_shape(kind: Any, shape: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(shape).eval()


def batch() -> Batch:
    _, benchmark, _, encoder = tiny_setup()
    return collate(encoder.answers(benchmark.sets["forget"])[:4], encoder.pad_id)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return AnswerModel(model)(batch()).logits_NV


def backward(model: Any) -> None:
    model.zero_grad()
    (-AnswerModel(model)(batch()).logp_N.mean()).backward()


def trained(model: Any, steps: int = 3) -> Any:
    """The model after a few steps of AdamW on what requires gradients."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    model.train()
    for _ in range(steps):
        backward(model)
        optimizer.step()
    return model.eval()


def base_weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters() if MARK not in name}


MODELS = pytest.mark.parametrize(
    ("build", "layers"),
    [
        (llama, 2 * 7),  # q k v o gate up down
        (gpt2, 2 * 4),  # c_attn c_proj c_fc c_proj
        (phi, 2 * 6),  # q k v dense fc1 fc2
        pytest.param(stories, 5 * 7, marks=needs_shared),
    ],
)
"""A model and the number of its linear layers, blocks times layers in each."""


@MODELS
def test_exactly_the_adapter_gets_gradients_and_every_layer_has_one_after_a_step(
    build: Callable[[], Any], layers: int
) -> None:
    model = attach(build(), LoRA(r=4))
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(names) == 2 * layers
    assert all(MARK in name for name in names)
    output = model.get_output_embeddings()
    assert not any(MARK in f".{name}" for name, _ in output.named_parameters())
    before = base_weights(model)
    backward(model)
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert set(grads) == names
    # B = 0 stops the gradient of A in the first step, and only there.
    assert all(bool(grad.any()) == ("lora_B" in name) for name, grad in grads.items())
    trained(model, steps=1)
    backward(model)
    assert all(parameter.grad.any() for name, parameter in model.named_parameters() if name in names)
    trained(model)
    after = base_weights(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


@MODELS
def test_gradients_are_the_same_under_gradient_checkpointing(build: Callable[[], Any], layers: int) -> None:
    model = trained(attach(build(), LoRA(r=4)), steps=1).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    backward(model)
    plain = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    adapter.checkpointing(model, True)
    backward(model)
    recomputed = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(recomputed) == 2 * layers
    for name, grad in plain.items():
        assert grad.any()
        torch.testing.assert_close(recomputed[name], grad)
    adapter.checkpointing(model, False)


@MODELS
def test_switched_off_it_is_the_start_model_to_the_bit(build: Callable[[], Any], layers: int) -> None:
    start = logits(build())
    model = attach(build(), LoRA(r=4))
    assert torch.equal(logits(model), start)  # B = 0
    trained(model)
    assert not torch.allclose(logits(model), start, atol=1e-3)
    with disabled(model):
        assert torch.equal(logits(model), start)
    assert not torch.allclose(logits(model), start, atol=1e-3)


def test_a_reference_pass_leaves_the_selection_and_the_gradients_of_a_step_alone() -> None:
    model = trained(attach(tiny_model(), LoRA(r=4)), steps=1)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1." in name and MARK in name)
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    backward(model)
    alone = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    loss = -AnswerModel(model)(batch()).logp_N.mean()
    with disabled(model):
        logits(model)
    loss.backward()
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (alone[name] is None)
        assert parameter.grad is None or torch.equal(parameter.grad, alone[name])


def test_it_is_switched_on_again_after_an_error_and_cannot_be_switched_off_where_there_is_none() -> None:
    model = trained(attach(tiny_model(), LoRA(r=4)))
    on = logits(model)
    with pytest.raises(RuntimeError, match="inside"), disabled(model):
        raise RuntimeError("inside")
    assert torch.equal(logits(model), on)
    with pytest.raises(AssertionError, match="no adapter"), disabled(tiny_model()):
        pass


@MODELS
def test_merged_it_computes_the_same(build: Callable[[], Any], layers: int) -> None:
    model = trained(attach(build(), LoRA(r=4, alpha=8)))
    expected = logits(model)
    names = {name for name, _ in build().named_parameters()}
    plain = merged(model)
    assert not has_adapter(plain)
    assert {name for name, _ in plain.named_parameters()} == names
    torch.testing.assert_close(logits(plain), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("apart", ["merged", "separate"])
def test_what_is_saved_can_be_loaded_again(apart: str, tmp_path: Path) -> None:
    cfg, _, tokenizer, _ = tiny_setup()
    start = tmp_path / "start"
    load.save(tiny_model(), tokenizer, start)
    settings = LoRA(r=4, save=apart)
    model = trained(attach(load.load_model(cfg.model, str(start)), settings))
    expected = logits(model)
    adapter.save(model, settings, tokenizer, tmp_path / "model")
    assert load.load_tokenizer(cfg.model, str(tmp_path / "model")).vocab_size == tokenizer.vocab_size
    if apart == "merged":
        again = load.load_model(cfg.model, str(tmp_path / "model"))
    else:
        from peft import PeftModel

        described = json.loads((tmp_path / "model" / "adapter_config.json").read_text())
        assert described["base_model_name_or_path"] == str(start)
        assert (tmp_path / "model" / "adapter_model.safetensors").stat().st_size < (
            start / "model.safetensors"
        ).stat().st_size / 2
        again = PeftModel.from_pretrained(load.load_model(cfg.model, str(start)), tmp_path / "model")
    torch.testing.assert_close(logits(again), expected, rtol=1e-5, atol=1e-5)


def test_generation_scoring_and_copies_work_as_on_the_plain_model() -> None:
    from transformers import GenerationConfig

    plain, model = tiny_model(), attach(tiny_model(), LoRA(r=4))
    check_output_layer(model, batch())
    assert model.config.num_hidden_layers == plain.config.num_hidden_layers
    rows = batch()
    texts = []
    for each in (plain, model, copy.deepcopy(model)):
        each.generation_config = GenerationConfig()
        settings = GenerationConfig(do_sample=False, max_new_tokens=4, pad_token_id=0, eos_token_id=2)
        out = each.generate(
            input_ids=rows.input_ids_BT, attention_mask=rows.attention_mask_BT, generation_config=settings
        )
        texts.append(out.tolist())
    assert texts[0] == texts[1] == texts[2]


def test_a_negated_adapter_subtracts_what_it_added() -> None:
    """B starts at 0: with B turned and A as it is, the product B A turns; with both turned it would not."""
    model = trained(attach(tiny_model(), LoRA(r=4)))
    layers = [module for module in model.modules() if hasattr(module, "get_delta_weight")]
    added = [layer.get_delta_weight("default").clone() for layer in layers]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if MARK in name and adapter.negated(name):
                parameter.neg_()
    for layer, before in zip(layers, added, strict=True):
        assert before.any()
        assert torch.equal(layer.get_delta_weight("default"), -before)
    assert all(adapter.negated(name) for name, _ in tiny_model().named_parameters())


def test_the_adapter_depends_on_its_seed_alone() -> None:
    def matrices(seed: int) -> list[torch.Tensor]:
        model = attach(tiny_model(), LoRA(r=4), seed)
        return [parameter for name, parameter in model.named_parameters() if "lora_A" in name]

    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first = matrices(0)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(6)
    assert all(map(torch.equal, first, matrices(0)))
    assert not any(map(torch.equal, first, matrices(1)))


def test_mode_precision_and_targets() -> None:
    model = attach(tiny_model().to(torch.bfloat16), LoRA(r=4, dropout=0.5, target_modules=["q_proj", "mlp.down_proj"]))
    assert not any(module.training for module in model.modules())
    adapters = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad}
    assert set(adapters.values()) == {torch.float32}
    assert {name.split(MARK)[0].rpartition(".")[2] for name in adapters} == {"q_proj", "down_proj"}
    model = tiny_model()
    assert attach(model, NoAdapter()) is model
    assert not has_adapter(model)


def test_targets_that_are_not_there_are_one_line() -> None:
    linear = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
    with pytest.raises(UserError) as error:
        attach(tiny_model(), LoRA(target_modules=["q_proj", "c_attn"]))
    assert str(error.value) == f"model.adapter.target_modules: needs names among {linear}; found c_attn"
    for other in ("input_layernorm", "lm_head", "embed_tokens"):  # no linear layer, or one that may share its weights
        with pytest.raises(UserError, match=f"^model.adapter.target_modules: needs names among .*; found {other}$"):
            attach(tiny_model(), LoRA(target_modules=[other]))


def test_options_are_groups_below_the_model() -> None:
    for name, node in ADAPTERS.items():
        assert type(compose_run(f"model/adapter={name}", "model=gpt2-xl").model.adapter) is node
    assert compose_run().model.adapter == NoAdapter()
    assert compose_run("model/adapter=lora", "model.adapter.target_modules=[q_proj]").model.adapter == LoRA(
        target_modules=["q_proj"]
    )
    assert not LoRA().saved_apart
    assert QLoRA().saved_apart


def test_qlora_without_bitsandbytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    for other in (NoAdapter(), LoRA()):
        other.check()
        adapter.check_quantization(other, torch.device("cpu"))
    with pytest.raises(UserError, match=r"^model/adapter: qlora needs .*; pip install 'unlearn-run\[quantization\]'$"):
        QLoRA().check()


@needs_bitsandbytes
def test_qlora_where_the_device_cannot_do_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from bitsandbytes import functional

    def missing(*args: Any, **options: Any) -> None:
        raise NotImplementedError("no kernel\nfor this device")

    monkeypatch.setattr(functional, "quantize_4bit", missing)
    with pytest.raises(UserError) as error:
        adapter.check_quantization(QLoRA(), torch.device("cpu"))
    assert str(error.value) == (
        "model/adapter: qlora needs 4-bit kernels of bitsandbytes for cpu, found none (no kernel for this device); "
        "use model/adapter=lora or another trainer.device"
    )


@needs_bitsandbytes
@pytest.mark.parametrize("targets", [[], ["q_proj"]])
@pytest.mark.parametrize("apart", ["merged", "separate"])
def test_qlora_trains_over_packed_weights_and_keeps_them(
    apart: str, targets: list[str], tmp_path: Path, eager: None
) -> None:
    from bitsandbytes.nn import Linear4bit

    cfg, _, tokenizer, _ = tiny_setup()
    start = tmp_path / "start"
    load.save(tiny_model(), tokenizer, start)
    base = load.load_model(cfg.model, str(start), in_4_bits_on=torch.device("cpu"))
    packed = [module for module in base.modules() if isinstance(module, Linear4bit)]
    assert len(packed) == 14
    assert not base.training
    quantized = logits(base)
    assert not torch.allclose(quantized, logits(tiny_model()), atol=1e-4)
    adapter.check_quantization(QLoRA(), torch.device("cpu"))
    settings = QLoRA(r=4, target_modules=targets, save=apart)
    model = attach(base, settings)
    assert torch.equal(logits(model), quantized)
    backward(model)
    grads = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert len(grads) == (4 if targets else 28)
    assert all(MARK in name for name in grads)
    before = base_weights(model)
    trained(model)
    backward(model)
    assert all(parameter.grad.any() for parameter in model.parameters() if parameter.requires_grad)
    after = base_weights(model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    expected = logits(model)
    with disabled(model):
        assert torch.equal(logits(model), quantized)
    adapter.save(model, settings, tokenizer, tmp_path / "model")
    if apart == "merged":
        assert "quantization_config" not in json.loads((tmp_path / "model" / "config.json").read_text())
        again = load.load_model(cfg.model, str(tmp_path / "model"))
        assert {p.dtype for p in again.parameters()} == {torch.float32}
    else:
        from peft import PeftModel

        again = PeftModel.from_pretrained(
            load.load_model(cfg.model, str(start), in_4_bits_on=torch.device("cpu")), tmp_path / "model"
        )
    torch.testing.assert_close(logits(again), expected, rtol=1e-4, atol=1e-5)


@needs_bitsandbytes
def test_bytes_of_a_packed_parameter() -> None:
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(torch.randn(512, 256), quant_type="nf4", compress_statistics=True)
    # 131,072 weights at half a byte, 2,048 blocks of 64 at one, 8 groups of 256 blocks at four: 65,536 + 2,048 + 32.
    tensors = (packed, state.absmax, state.state2.absmax)
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == 67616 == NF4_BYTES * 512 * 256
