"""What several test modules build: composed configs, and a model small enough to train within a test."""

from __future__ import annotations

from functools import cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from unlearn import config
from unlearn.config import DataConfig, LimitConfig, RunConfig


def compose_run(*overrides: str) -> RunConfig:
    """The typed config that these words on the command line give."""
    config.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config.conf_dir()), version_base="1.3"):
        return config.to_config(compose("run", overrides=["logger=none", *overrides]))


def data_config(source: str = "embedded", split: str = "forget10", **limits: int) -> DataConfig:
    return DataConfig(name="tofu", source=source, hub_id="locuslab/TOFU", split=split, limit=LimitConfig(**limits))


@cache
def tiny_setup() -> Any:
    """Encoder and rows of a few embedded examples, for a two-layer model of width 32."""
    from unlearn.data import tofu
    from unlearn.data.encode import Encoder
    from unlearn.models import load

    cfg = compose_run(
        "model.tiny.hidden_size=32", "model.tiny.layers=2", "model.tiny.heads=2", "model.tiny.vocab_size=400"
    )
    benchmark = tofu.load(data_config(forget=8, retain=16, holdout=8))
    tokenizer = load.tiny_tokenizer(cfg.model.tiny, benchmark)
    encoder = Encoder(tokenizer, cfg.model.format, cfg.model.max_length)
    return cfg, benchmark, tokenizer, encoder


def tiny_model(seed: int = 0) -> Any:
    """A fresh random model on the setup's tokenizer."""
    from unlearn.models import load

    cfg, _, tokenizer, _ = tiny_setup()
    return load.tiny_model(cfg.model.tiny, tokenizer, cfg.model.max_length, seed)
