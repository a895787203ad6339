"""Which positions lose the state that a step feeds to the next one: by arithmetic alone, so that any run repeats it."""

import torch
from torch import Tensor

# Odd numbers with well-mixed bits (SplitMix64's, as signed integers).
_MIX = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
_BITS = 24


class FeedbackDropping:
    """Drops the state fed from one unrolled step to the next at a share of the positions.

    A CUDA graph records it once; the seed, on the device, decides what is dropped at each replay.

    Args:
        share: of the positions, 0 … 1; with 0 nothing is dropped or computed.
    """

    def __init__(self, share: float, device: torch.device) -> None:
        self.share = share
        self._seed = torch.zeros((), dtype=torch.int64, device=device)

    def reseed(self, *numbers: int) -> None:
        """From now on, drop what these numbers say."""
        mixed = 0
        for number in numbers:
            mixed = (mixed ^ number) * 0x100000001B3 % (1 << 62)
        self._seed.fill_(mixed)

    def kept(self, step: int, num_positions: int) -> Tensor:
        """[T, 1] bool: the positions whose state goes from unrolled step `step` to the next one."""
        x = torch.arange(num_positions, device=self._seed.device) * _MIX[0] + self._seed + step * 0x632BE5AB
        for factor in _MIX[1:]:
            x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * factor
        x = (x >> 31) & ((1 << _BITS) - 1)
        return (x >= round(self.share * (1 << _BITS))).unsqueeze(-1)
