"""Peak memory of training steps, method against method, as ratios within one run.

    .venv/bin/python bench/memory.py            # all cases, each in a process of its own
    .venv/bin/python bench/memory.py CASE       # one case: prints bytes

Same model (random weights), same batch, three steps each. On a GPU the allocator's peak is read; on a CPU the peak of
the resident set above what it was before the model was built.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

CASES = {
    "gdiff": ["method=gdiff"],
    "npo": ["method=npo"],
    "ngdiff": ["method=ngdiff"],
    "kl": ["method=kl"],
    "gdiff lora": ["method=gdiff", "model/adapter=lora"],
    "kl lora": ["method=kl", "model/adapter=lora"],
}

SHAPE = ["model.tiny.hidden_size=768", "model.tiny.layers=12", "model.tiny.heads=12", "model.tiny.vocab_size=1024"]
STEPS = ["scheduler=constant", "trainer.max_steps=3", "trainer.batch_size=4", "trainer.stop=none", "logger=none"]


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(case: str) -> int:
    """Peak bytes of one case, above those before its model was built."""
    import torch
    from hydra import compose, initialize_config_dir

    from unlearn import config
    from unlearn.data import tofu
    from unlearn.data.encode import Encoder
    from unlearn.models import adapter, load
    from unlearn.models.trainable import select
    from unlearn.training.loop import Unlearning

    config.register()
    with initialize_config_dir(str(config.conf_dir()), version_base="1.3"):
        cfg = config.to_config(compose("run", overrides=[*CASES[case], *SHAPE, *STEPS, "output_dir=none"]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    benchmark = tofu.load(cfg.data)
    tokenizer = load.tiny_tokenizer(cfg.model.tiny, benchmark)
    encoder = Encoder(tokenizer, cfg.model.format, cfg.model.max_length)
    rows = {name: encoder.answers(benchmark.sets[name]) for name in ("forget", "retain", "holdout")}
    before = resident()
    model = load.tiny_model(cfg.model.tiny, tokenizer, cfg.model.max_length, cfg.seed).to(device)
    model = adapter.attach(model, cfg.model.adapter)
    select(model, cfg.method.forget)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    Unlearning(cfg, model, rows, {}, encoder, device, lambda line: None).train()
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    print(f"{case}: weights {size / 2**20:.0f} MiB", file=sys.stderr)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def main() -> None:
    if len(sys.argv) > 1:
        print(measure(sys.argv[1]))
        return
    # Large tensors straight from and back to the system: what the heap keeps for later is no use of memory.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    peaks: dict[str, int] = {}
    for case in CASES:
        ran = subprocess.run(
            [sys.executable, __file__, case], env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        peaks[case] = int(ran.stdout.split()[-1])
        print(f"{case:<12} {peaks[case] / 2**20:8.0f} MiB  {peaks[case] / peaks['gdiff']:.2f} x gdiff", flush=True)


if __name__ == "__main__":
    main()
