"""LoRA and QLoRA through peft: the weights stay as they are, two thin matrices beside each linear layer are trained.

Switched off, an adapter leaves exactly the start model: the reference pass needs no second model. Nothing here imports
torch or peft before a model is at hand.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from unlearn.errors import UserError
from unlearn.setting import setting

MARK = ".lora_"
"""What the names of an adapter's parameters have and no others."""


@dataclass
class Adapter:
    """Base of all adapters.

    quantized  whether the weights below the adapter are loaded in 4 bits
    """

    name: str = "none"

    quantized: ClassVar[bool] = False

    @property
    def saved_apart(self) -> bool:
        """Whether the adapter alone is written, to be loaded on top of the weights that the run began with."""
        return False

    def check(self) -> None:
        """Raises UserError where a package that the adapter needs is not installed."""


@dataclass
class NoAdapter(Adapter):
    """Train the model's own weights."""


@dataclass
class LoRA(Adapter):
    """Low-rank adapters beside the linear layers: W + (alpha / r) B A, where B is 0 at the start (2106.09685)."""

    name: str = "lora"
    r: int = setting(16, "rank of each adapter", minimum=1, maximum=1024)
    alpha: int = setting(32, "the adapter's output is multiplied by alpha / r", minimum=1)
    dropout: float = setting(0.0, "dropout on the adapter's input", minimum=0, below=1)
    target_modules: list[str] = setting(
        [], "names of the linear layers that get one, as in [q_proj,v_proj]; []: all but the output layer"
    )
    save: str = setting(
        "merged", "merged into the weights, or separate: the adapter alone", choices=("merged", "separate")
    )

    @property
    def saved_apart(self) -> bool:
        return self.save == "separate"


@dataclass
class QLoRA(LoRA):
    """Low-rank adapters over weights that are held in 4 bits: NF4 with quantised constants (2305.14314)."""

    name: str = "qlora"
    save: str = setting(
        "separate", "separate: the adapter alone, or merged into weights unpacked again", choices=("merged", "separate")
    )

    quantized: ClassVar[bool] = True

    def check(self) -> None:
        if find_spec("bitsandbytes") is None:
            raise UserError(
                "model/adapter: qlora needs bitsandbytes, found none; pip install 'unlearn-run[quantization]'"
            )


ADAPTERS: dict[str, type[Adapter]] = {"none": NoAdapter, "lora": LoRA, "qlora": QLoRA}


def check_quantization(adapter: Adapter, device: Any) -> None:
    """Pack a few numbers where the model is going to live. Raises UserError before anything is loaded."""
    if not adapter.quantized:
        return
    import torch

    try:
        from bitsandbytes.functional import quantize_4bit

        quantize_4bit(torch.ones(1, 64, device=device), quant_type="nf4")
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"model/adapter: qlora needs 4-bit kernels of bitsandbytes for {device}, found none ({reason[:200]}); "
            "use model/adapter=lora or another trainer.device"
        ) from error


def quantization(dtype: Any) -> Any:
    """How transformers is told to load linear layers in NF4 and to compute with them in `dtype`."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def attach(model: Any, adapter: Adapter, seed: int = 0) -> Any:
    """The model with new adapters, which alone require gradients; the model itself where there is no adapter.

    The random matrices depend on the seed alone. A model on the meta device gets meta adapters. Raises UserError where
    `target_modules` names no layer that can have one.
    """
    if not isinstance(adapter, LoRA):
        return model
    import torch
    from peft import LoraConfig, get_peft_model

    _check_targets(model, adapter.target_modules)
    settings = LoraConfig(
        r=adapter.r,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=adapter.target_modules or "all-linear",
        task_type="CAUSAL_LM",
    )
    on_meta = next(model.parameters()).is_meta
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # of names that transformers changes, and of GPT-2's transposed layers
        torch.manual_seed(seed)
        attached = get_peft_model(model, settings, low_cpu_mem_usage=on_meta)
    return attached.train(model.training)


def linear_layers(model: Any) -> dict[str, Any]:
    """All linear layers but the output layer, by name: those that get an adapter, or are packed, by default."""
    import torch
    from transformers.pytorch_utils import Conv1D

    output = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not output
    }


def _check_targets(model: Any, targets: list[str]) -> None:
    """Every name must be that of a linear layer: peft is content with one.

    An adapter on an output layer that shares its weights with the embedding would change both when it is merged.
    """
    layers = linear_layers(model)
    missing = [target for target in targets if not any(f".{name}".endswith(f".{target}") for name in layers)]
    if missing:
        there = dict.fromkeys(name.rpartition(".")[2] for name in layers)
        raise UserError(
            f"model.adapter.target_modules: needs names among {', '.join(there)}; found {', '.join(missing)}"
        )


def has_adapter(model: Any) -> bool:
    return any(MARK in name for name, _ in model.named_parameters())


def negated(name: str) -> bool:
    """Whether a parameter turns when a task vector is negated: of an adapter's product B A only B, else all do."""
    return f"{MARK}A" not in name


@contextmanager
def disabled(model: Any) -> Iterator[None]:
    """Within the block the model computes what it did before the adapter was attached, to the bit."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    assert layers, "there is no adapter to switch off"
    # peft makes all of an adapter's parameters trainable when it switches it on again, whatever was selected before.
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def checkpointing(model: Any, on: bool) -> None:
    """Switch gradient checkpointing, in the kind that lets gradients through layers whose input requires none.

    transformers 5.24 gave the switch the name that it keeps in 6.
    """
    what = "enable" if on else "disable"
    switch = getattr(model, f"activation_checkpointing_{what}", None)
    switch = switch or getattr(model, f"gradient_checkpointing_{what}")
    switch({"use_reentrant": False}) if on else switch()


def merged(model: Any) -> Any:
    """The plain model that computes what the model with its adapter does; the adapter is used up.

    Weights that were held in 4 bits are unpacked first: merging in 4 bits would round the adapter away.
    """
    base = model.get_base_model()
    if getattr(base, "hf_quantizer", None) is not None:
        for name, layer in list(base.named_modules()):
            if _is_packed(getattr(layer, "base_layer", layer)) and not name.endswith(".base_layer"):
                parent, _, last = name.rpartition(".")
                setattr(base.get_submodule(parent), last, _unpacked(layer))
        base.hf_quantizer.remove_quantization_config(base)
    return model.merge_and_unload()


def _is_packed(layer: Any) -> bool:
    return hasattr(getattr(layer, "weight", None), "quant_state")


def _unpacked(layer: Any) -> Any:
    """A linear layer with the weights of a 4-bit one, and with its adapter's product where it has one."""
    import torch
    from bitsandbytes.functional import dequantize_4bit

    packed = getattr(layer, "base_layer", layer)
    with torch.no_grad():
        weight = dequantize_4bit(packed.weight.data, packed.weight.quant_state)
        for name in getattr(layer, "active_adapters", ()):
            weight = weight + layer.get_delta_weight(name).to(weight.dtype)
        outputs, inputs = weight.shape
        linear = torch.nn.Linear(inputs, outputs, device="meta")
        linear.weight = torch.nn.Parameter(weight, requires_grad=False)
        linear.bias = packed.bias
    return linear


def save(model: Any, adapter: Adapter, tokenizer: Any, folder: Path) -> None:
    """Write weights and tokenizer: the whole model, or the adapter alone where it is `saved_apart`.

    A merged model has no adapter any more. Raises OSError where the disk does not take them.
    """
    from unlearn.models import load

    if has_adapter(model) and adapter.saved_apart:
        # Otherwise peft asks the hub whether the vocabulary has grown.
        load.save(model, tokenizer, folder, save_embedding_layers=False)
    else:
        load.save(merged(model) if has_adapter(model) else model, tokenizer, folder)
