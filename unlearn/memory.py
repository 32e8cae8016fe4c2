"""How large a model is, and what a training step of it takes on the device: known from its shape, without weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unlearn.config import RunConfig
from unlearn.data.encode import longest
from unlearn.errors import UserError
from unlearn.gradients.combine import RuleState
from unlearn.models.sources import TRAIN, Sources
from unlearn.schedulers.autolr import AutoLR

if TYPE_CHECKING:
    from unlearn.plan import Prepared

ADAPTER_BYTES = 4
"""Of one parameter of an adapter: peft keeps them in fp32, whatever the precision of the model."""

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Of one parameter packed to 4 bits, with an 8-bit constant per 64 and an fp32 one per 64 * 256 of them."""


@dataclass(frozen=True)
class ModelSize:
    """The model in numbers, known from its config.

    parameters  of the model itself
    layers      decoder layers
    width       of a hidden state
    trainable   parameters that are trained: some or all of the model's, or of its adapter
    adapter     parameters that an adapter adds
    linear      parameters that can be packed to 4 bits
    """

    parameters: int
    layers: int
    width: int
    trainable: int
    adapter: int = 0
    linear: int = 0


def measure(cfg: RunConfig, sources: Sources, tokenizer: Any) -> ModelSize:
    """The model's size, from its shape alone.

    Raises UserError where rows may exceed its window, or where it does not have the layers and parameters that are to
    be trained.
    """
    from unlearn.models.adapter import attach, linear_layers
    from unlearn.models.trainable import check_selection

    model = _shape(cfg, sources, tokenizer)
    depth, width = model.config.num_hidden_layers, model.config.hidden_size
    parameters = sum(parameter.numel() for parameter in model.parameters())
    linear = sum(layer.weight.numel() for layer in linear_layers(model).values())
    if not cfg.method.sides:
        return ModelSize(parameters, depth, width, 0, linear=linear)
    sizes = {name: tensor.numel() for name, tensor in attach(model, cfg.model.adapter).named_parameters()}
    trainable = sum(sizes[name] for name in check_selection(cfg, list(sizes), depth))
    return ModelSize(parameters, depth, width, trainable, sum(sizes.values()) - parameters, linear)


def _shape(cfg: RunConfig, sources: Sources, tokenizer: Any) -> Any:
    """The model without its weights, or the tiny model with random ones."""
    import torch
    from transformers import AutoModelForCausalLM

    from unlearn.models import load

    path = cfg.model.path if sources.target == TRAIN else sources.target
    if path is None:
        return load.tiny_model(cfg.model.tiny, tokenizer, cfg.model.max_length, cfg.seed)
    shape = load.load_shape(cfg.model, path)
    window = getattr(shape, "max_position_embeddings", None)
    if window is not None and cfg.model.max_length > window:
        raise UserError(f"model.max_length: needs at most the model's window of {window}; found {cfg.model.max_length}")
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(shape, trust_remote_code=cfg.model.trust_remote_code)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"model.path: '{path}' is no causal language model: {reason[:200]}") from error


def weight_bytes(cfg: RunConfig) -> int:
    """Bytes of one parameter of the model; an adapter's are always in fp32."""
    return 2 if cfg.trainer.precision == "bf16" else 4


def memory_parts(prepared: Prepared) -> dict[str, int]:
    """Estimated device memory of the training steps by part, in bytes; more where a reinforced copy takes more before.

    The stages that train target and reference are not in it, nor is evaluation.
    """
    cfg, size = prepared.cfg, prepared.size
    method = cfg.method
    needs = method.forget.needs | method.retain.needs
    adapted = size.adapter > 0
    model = size.parameters * weight_bytes(cfg)
    if cfg.model.adapter.quantized:
        model -= round(size.linear * (weight_bytes(cfg) - NF4_BYTES))
    trained = size.trainable * (ADAPTER_BYTES if adapted else weight_bytes(cfg))
    two_gradients = method.combine.ahead(RuleState()) is None or method.separate_states
    asks_start = needs & {"reference_logits", "reference_hidden"}
    frozen = asks_start and not adapted and not cfg.trainer.start_model_on_host
    reinforced = "reinforced_logits" in needs
    models = {
        "weights": model,
        "adapter": size.adapter * ADAPTER_BYTES,
        "copy of the start model": model if frozen else 0,
        "reinforced model": model + size.adapter * ADAPTER_BYTES if reinforced else 0,
    }
    steps = {
        "gradient": trained,
        "second gradient": trained if two_gradients else 0,
        "optimizer state": round(trained * cfg.optimizer.states) * (2 if method.separate_states else 1),
        "lr probe copies": 2 * trained if isinstance(cfg.scheduler, AutoLR) else 0,
        "copy for sharpness": trained if method.sam_rho is not None else 0,
        "saliency mask and copy": trained + size.trainable if method.saliency_std is not None else 0,
    }
    # The copy is trained before the first step: its gradient and the two states of AdamW are gone by then.
    before = max(0, 3 * trained - sum(steps.values())) if reinforced else 0
    parts = {**models, **steps, "training of the reinforced model": before, **_batch_parts(prepared)}
    return {name: count for name, count in parts.items() if count}


def _batch_parts(prepared: Prepared) -> dict[str, int]:
    """What grows with the micro-batch."""
    cfg, rows = prepared.cfg, prepared.rows
    micro = cfg.trainer.micro_batch_size or cfg.trainer.batch_size
    tokens = micro * max(longest(rows["forget"]), longest(rows["retain"]))
    answers = micro * max(longest(those, lambda row: row.n_answer) for those in rows.values())
    # Two answers to one question are in memory at once, unless the true one is only measured.
    objectives = (cfg.method.forget, cfg.method.retain)
    both = any("alternates" in each.needs and each.unit != "alternate_token" for each in objectives)
    answers_at_once = 2 if both else 1
    return {
        "logits": answers_at_once * 3 * 4 * answers * len(prepared.tokenizer),
        "activations": answers_at_once * tokens * _activation_bytes_per_token(prepared),
    }


def _activation_bytes_per_token(prepared: Prepared) -> int:
    """About 34 bytes per token, layer and unit of width in 16 bits (Korthikanti et al., 2205.05198), 68 in fp32.

    With checkpointing the inputs of the layers stay, and one layer at a time is computed again.
    """
    layers, width = prepared.size.layers, prepared.size.width
    per_layer = width * (68 if prepared.cfg.trainer.precision == "fp32" else 34)
    return layers * width * 4 + per_layer if prepared.cfg.trainer.gradient_checkpointing else layers * per_layer
