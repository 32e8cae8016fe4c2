"""The processes that share one run, one for each device: which one this is, and what they tell one another.

Every process goes through the same flow. What only one may do (writing, logging) the main one does, and what all must
do alike (whether a result is in the cache) it decides for all. The rows of a step and of an evaluation are dealt to the
processes; counts, losses and gradients are summed over them, so that all take the same step to the bit. With one
process all of this is nothing, and torch is imported only where there are several.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearn.errors import ProcessLost, UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from unlearn.config import RunConfig

BUCKET = 2**24
"""Entries of all gradients that cross in one message: 64 MiB in fp32, whatever the size of the model."""

FOREVER = timedelta(days=3650)


@dataclass
class _Group:
    """This process's place among the others, and the file through which it can wait for them without a limit."""

    world: int = 1
    rank: int = 0
    timeout_s: float = 0.0
    store: Any = None
    told: int = 0


_group = _Group()


def world() -> int:
    """How many processes there are."""
    return _group.world


def rank() -> int:
    """The number of this one, from 0."""
    return _group.rank


def is_main() -> bool:
    return rank() == 0


def check_device(device: torch.device, devices: int) -> None:
    """Raises UserError where there are fewer devices than processes; any number of them share the CPU."""
    import torch

    there = {"cuda": torch.cuda.device_count(), "mps": 1}.get(device.type, devices)
    if there < devices:
        raise UserError(
            f"trainer.devices: needs a {device.type} device for each process, found {there} for {devices}; use "
            f"trainer.devices={max(there, 1)} or trainer.device=cpu"
        )


def ranks_faults(cfg: RunConfig) -> list[str]:
    """Settings that one process can have and several cannot, one line each."""
    devices, found = cfg.trainer.devices, []
    if devices == 1:
        return []
    if cfg.trainer.device == "mps":
        found.append("trainer.device: needs cuda or cpu, because there is one mps device only; found mps")
    if cfg.model.adapter.quantized:
        found.append(f"model/adapter: needs none or lora, because weights in 4 bits are not shared out; found "
                     f"{cfg.model.adapter.name}")  # fmt: skip
    if cfg.trainer.start_model_on_host:
        found.append(f"trainer.start_model_on_host: needs false, because each of {devices} processes would keep a copy "
                     "in the same host memory; found true")  # fmt: skip
    return [f"{line}; or use trainer.devices=1" for line in found]


def setup(number: int, devices: int, folder: Path, device: torch.device, timeout_s: float) -> None:
    """Join the other processes; the first of them to be ready waits for the last, however long that takes.

    number     of this process, from 0; on a GPU also the number of its device
    folder     empty, the same for all: they find each other through a file there, so that no port can be taken
    timeout_s  how long any process waits for another from then on
    """
    import torch
    import torch.distributed as dist

    if device.type == "cuda":
        torch.cuda.set_device(number)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // devices))
    # All processes are on this machine: what its name resolves to, and whether it is reachable, must not matter.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = dist.FileStore(str(folder / "store"), devices)  # type: ignore[attr-defined]
    store.set(f"ready {number}", "")
    store.wait([f"ready {each}" for each in range(devices)], FOREVER)
    _group.__init__(devices, number, timeout_s, store)  # type: ignore[misc]
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with _waiting():
        dist.init_process_group(
            backend, store=store, rank=number, world_size=devices, timeout=timedelta(seconds=timeout_s)
        )


def teardown() -> None:
    """Leave the other processes, once the main one has written everything."""
    import torch.distributed as dist

    from_main()
    dist.destroy_process_group()
    _group.__init__()  # type: ignore[misc]


def gather(part: Any) -> list[Any]:
    """The objects that all processes give, in the order of their numbers, in every process."""
    if world() == 1:
        return [part]
    import torch.distributed as dist

    parts: list[Any] = [None] * world()
    with _waiting():
        dist.all_gather_object(parts, part)
    return parts


def agree(value: Any) -> Any:
    """The main process's value, in every process."""
    if world() == 1:
        return value
    import torch.distributed as dist

    values = [value]
    with _waiting():
        dist.broadcast_object_list(values, src=0)
    return values[0]


def from_main(value: Any = None) -> Any:
    """The main process's value, in every process, which wait for it however long it takes.

    For what the main process does alone, as training a target or waiting for another run that trains it. If it fails,
    whoever started the processes ends those that wait.
    """
    if world() == 1:
        return value
    _group.told += 1
    key = f"told {_group.told}"
    if is_main():
        _group.store.set(key, pickle.dumps(value))
        return value
    _group.store.wait([key], FOREVER)
    return pickle.loads(_group.store.get(key))


def total(values: Sequence[float]) -> list[float]:
    """Sums over all processes, in fp64 and in the order of their numbers: the same to the bit in all of them."""
    if world() == 1:
        return list(values)
    import torch
    import torch.distributed as dist

    own = torch.tensor(values, dtype=torch.float64)
    parts = [torch.empty_like(own) for _ in range(world())]
    with _waiting():
        dist.all_gather(parts, own)
    return [sum(column) for column in zip(*(part.tolist() for part in parts), strict=True)]


def reduce_grads(parameters: Sequence[Tensor]) -> None:
    """Sum `.grad` over all processes, in fp32, once it is complete and before anything is read off it.

    A parameter that has a gradient in some processes only counts as zero in the others, one that has it in none keeps
    None in all.
    """
    if world() == 1:
        return
    import torch
    import torch.distributed as dist

    here = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
    with _waiting():
        # Between CPUs also where the gradients are on GPUs: a process that does not answer is noticed here.
        dist.all_reduce(here, dist.ReduceOp.MAX)
    anywhere = [parameter for parameter, there in zip(parameters, here.tolist(), strict=True) if there]
    for parameter in anywhere:
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.contiguous()
    for pieces in _buckets(parameter.grad for parameter in anywhere if parameter.grad is not None):
        flat = torch.cat([piece.float() for piece in pieces])
        with _waiting():
            dist.all_reduce(flat)
        for piece, summed in zip(pieces, flat.split([piece.numel() for piece in pieces]), strict=True):
            piece.copy_(summed)


def _buckets(grads: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """The entries of all gradients, in order, as flat views that fill one message after the other."""
    pieces: list[Tensor] = []
    free = BUCKET
    for grad in grads:
        rest = grad.detach().view(-1)
        while rest.numel():
            pieces.append(rest[:free])
            rest, free = rest[free:], free - pieces[-1].numel()
            if not free:
                yield pieces
                pieces, free = [], BUCKET
    if pieces:
        yield pieces


@contextmanager
def _waiting() -> Iterator[None]:
    """What torch says when the others do not answer, in words that a user can act on."""
    try:
        yield
    except RuntimeError as error:
        who, reason = f"process {rank() + 1} of {world()}", " ".join(str(error).split())
        if "timed out" in reason.lower() or "timeout" in reason.lower():
            raise ProcessLost(
                f"{who} waited longer than trainer.timeout_s={_group.timeout_s:g} for the others: one hangs, or needs "
                "more time"
            ) from error
        raise ProcessLost(f"{who} lost another one: {reason[:200]}") from error
