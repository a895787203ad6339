"""The processes that train one draft together. Data parallel: same weights everywhere, gradients summed each step.

Losses are divided by counts of the whole optimiser step (`ttt_loss.TttObjective`), so gradients of ranks are *summed*,
never averaged, and the same global batch gives the same curve on any number of ranks, but for the order of sums.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
# A rank may wait while the first one writes a checkpoint or loads from a slow disk; the launcher, not this, notices a
# dead rank.
_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The rank of a process, as its launcher tells it, before the process group is up.

    Attributes:
        rank, size: of all processes.
        local_rank: on this machine: the number of its GPU.
        meet_at: torch's init method: "env://" under torchrun, "file://..." under `--gpus`.
    """

    rank: int
    size: int
    local_rank: int
    meet_at: str


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process and its peers.

    Attributes:
        rank: 0 … size - 1; only rank 0 talks and writes.
        size: number of ranks; with 1 there is no process group.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this rank talks and writes."""
        return self.rank == 0

    def sum_in_place(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks. All ranks give the same shapes in the same order."""
        if self.size == 1:
            return
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()

    def gather(self, item: T) -> list[T]:
        """Every rank's item, in order of rank, on every rank. Small things only: they are pickled."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def share(self, lengths: Sequence[int]) -> list[int]:
        """Which of the rows of these lengths are this rank's: longest first, each to the rank with the least tokens.

        Every row is exactly one rank's; the order of `lengths` is kept.
        """
        if self.size == 1:
            return list(range(len(lengths)))
        loads, owner = [0] * self.size, [0] * len(lengths)
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            owner[i] = min(range(self.size), key=lambda rank: loads[rank])
            loads[owner[i]] += lengths[i]
        return [i for i, rank in enumerate(owner) if rank == self.rank]


SOLO = Ranks()


@contextmanager
def joined(place: RankPlace | None, device: torch.device) -> Iterator[Ranks]:
    """The process group while the block runs; `SOLO` without a place.

    Args:
        place: None, or a size of 1, for a single process.
        device: where this rank computes: NCCL on GPUs, gloo on a CPU.
    """
    if place is None or place.size == 1:
        yield SOLO
        return
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        init_method=place.meet_at,
        rank=place.rank,
        world_size=place.size,
        timeout=_TIMEOUT,
        device_id=device if is_cuda else None,
    )
    try:
        yield Ranks(place.rank, place.size)
    except BaseException:
        # Peers may hang in a collective: destroying the group would wait for them.
        raise
    else:
        dist.destroy_process_group()
