"""Models and tokenizers from a folder, the hub, or made here: safetensors only, no code from elsewhere by default."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from unlearn.config import ModelConfig, TinyConfig
from unlearn.data.benchmark import Benchmark
from unlearn.data.example import Example
from unlearn.errors import UserError
from unlearn.models import hub
from unlearn.models.adapter import quantization

TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")


def check_source(path: str, key: str, revision: str | None = None) -> None:
    """A folder with a config and readable safetensors weights, or a hub repository that has some. Raises UserError."""
    from safetensors import SafetensorError, safe_open

    if not hub.looks_like_folder(path):
        hub.require(path, key, revision)
        return
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"{key}: needs a folder that exists or a hub id; found '{path}'")
    if not (folder / "config.json").is_file():
        raise UserError(f"{key}: needs a model folder with config.json; found none in '{path}'")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        others = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
        found = f"{others[0]} (pickled weights are never loaded)" if others else "no weights"
        raise UserError(f"{key}: needs *.safetensors in '{path}', found {found}")
    for file in weights:
        try:
            with safe_open(file, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            raise UserError(f"{key}: cannot read {file}: {_first_line(error)}") from None


def tokenizer_hash(tokenizer: Any) -> str:
    """Hash of everything that decides how text becomes tokens: vocabulary, merges, special tokens, chat template."""
    parts = (tokenizer.backend_tokenizer.to_str(), str(tokenizer.chat_template), str(tokenizer.special_tokens_map))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def fingerprint(path: str, revision: str | None = None) -> str:
    """Hash of a folder's config and weights, or the commit of a hub repository."""
    if not hub.looks_like_folder(path):
        return hub.require(path, "model.path", revision)
    folder = Path(path).expanduser()
    files = sorted([folder / "config.json", *folder.glob("*.safetensors")])
    return _files_hash(tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files))


@lru_cache
def _files_hash(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Size and time are only there so that a file that has changed is read again."""
    digest = hashlib.sha256()
    for file, _, _ in files:
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def revision_of(config: ModelConfig, path: str, kind_key: str = "model.path") -> str | None:
    """The commit of a hub repository, asked for once per process, so that config, tokenizer and weights agree.

    None for a folder.
    """
    if hub.looks_like_folder(path):
        return None
    return hub.require(path, kind_key, config.revision if path == config.path else None)


def expanded(path: str) -> str:
    """A folder with its `~` resolved; a hub id as it is."""
    return str(Path(path).expanduser()) if hub.looks_like_folder(path) else path


def load_shape(config: ModelConfig, path: str) -> Any:
    """The architecture's config, without weights. Raises UserError."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(
            expanded(path), revision=revision_of(config, path), trust_remote_code=config.trust_remote_code
        )
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"model.path: cannot read the config of '{path}': {_first_line(error)}") from error


def load_tokenizer(config: ModelConfig, path: str) -> Any:
    """The tokenizer beside the weights, or the one that model.tokenizer names. Raises UserError."""
    where = config.tokenizer or path
    if hub.looks_like_folder(where) and not hub.is_folder(where):
        raise UserError(f"model.tokenizer: needs a folder that exists or a hub id; found '{where}'")
    if hub.is_folder(where) and not any(list(Path(expanded(where)).glob(name)) for name in TOKENIZER_FILES):
        raise UserError(f"model.tokenizer: needs a folder with a tokenizer; found none of its files in '{where}'")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            expanded(where),
            revision=revision_of(config, where, "model.tokenizer"),
            trust_remote_code=config.trust_remote_code,
        )
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"model.tokenizer: cannot load a tokenizer from '{where}': {_first_line(error)}") from error


def load_model(config: ModelConfig, path: str, dtype: str = "float32", in_4_bits_on: Any = None) -> Any:
    """A causal language model in eval mode on the CPU, its weights really in `dtype`. Raises UserError.

    With `in_4_bits_on` it is on that device, and its linear layers are packed as they are read.
    """
    import torch
    from transformers import AutoModelForCausalLM

    _quiet()
    packing: dict[str, Any] = {}
    if in_4_bits_on is not None:
        packing = {"quantization_config": quantization(getattr(torch, dtype)), "device_map": {"": in_4_bits_on}}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            expanded(path),
            revision=revision_of(config, path),
            dtype=getattr(torch, dtype),
            attn_implementation=config.attention,
            use_safetensors=True,
            trust_remote_code=config.trust_remote_code,
            **packing,
        )
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"model.path: cannot load '{path}': {_first_line(error)}") from error
    if in_4_bits_on is not None:
        _same_kernels_everywhere(model)
    return model.eval()


def _same_kernels_everywhere(model: Any) -> None:
    """On CPUs with AVX512-BF16 bitsandbytes packs its weights anew outside training: it then computes in bf16 whatever
    the run's precision is, and fails where a width is no multiple of 64.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def _quiet() -> None:
    """Bars and notes of the library would stand between ours; its errors still come through."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def tiny_tokenizer(config: TinyConfig, benchmark: Benchmark) -> Any:
    """A byte-level BPE tokenizer built from the benchmark's own texts: it can spell anything, so nothing is unknown."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sets = {name: scored.examples for name, scored in benchmark.evaluated.items()} | benchmark.sets
    tokenizer.train_from_iterator([_whole(example) for examples in sets.values() for example in examples], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side="right"
    )


def _whole(example: Example) -> str:
    """An example as one text."""
    if example.prompt is not None:
        return example.prompt + example.answer
    return f"Question: {example.question}\nAnswer: {example.answer}"


def tiny_model(config: TinyConfig, tokenizer: Any, max_length: int, seed: int) -> Any:
    """A small Llama with random weights that depend on the seed alone; the global random state is left as it was."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=8 * config.hidden_size // 3,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(shape).eval()


def save(model: Any, tokenizer: Any, folder: Path, **options: Any) -> None:
    """Weights (safetensors), tokenizer with its chat template, and generation config, in one folder.

    `options` go to the model's own way of saving. Raises OSError where the disk does not take them.
    """
    from safetensors import SafetensorError

    _quiet()
    settings = model.generation_config
    if settings is not None and not settings.do_sample:
        # Some published configs name a temperature for greedy decoding, which the library refuses to write again.
        settings.temperature = settings.top_p = settings.top_k = None
    try:
        model.save_pretrained(folder, **options)
    except SafetensorError as error:
        raise OSError(_first_line(error)) from error
    tokenizer.save_pretrained(folder)
