"""What every test shares: one thread, and the place of the published data."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Before torch is imported anywhere: two busy processes with two threads each on two cores wait for one another.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SHARED = Path(__file__).parents[2] / "shared" / "data"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the published data is not at {SHARED}")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Hold torch to one thread where a test module has imported it; importing it here would slow every other run."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
