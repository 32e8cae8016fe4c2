"""The benchmarks by name: what reads them, and the splits that they have."""

from __future__ import annotations

from unlearn.config import DataConfig
from unlearn.data import muse, tofu
from unlearn.data.benchmark import Benchmark

LOADERS = {"tofu": tofu.load, "muse": muse.load}
SPLITS: dict[str, tuple[str, ...]] = {"tofu": tofu.SPLITS, "muse": muse.SPLITS}


def load(config: DataConfig) -> Benchmark:
    """All sets of one split. Raises UserError with every fault of the files at once."""
    return LOADERS[config.name](config)
