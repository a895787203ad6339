"""Block sizes of the matrix kernels by what they multiply; the measurements are in docs/engine-gpu.md."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["qkv", "linear", "gate_up", "head"]


class Way(IntEnum):
    """How a product is computed: `kernels.rows`."""

    FMA = 0
    MMA = 1
    PIPE = 2
    WALK = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One program's part of a product.

    Attributes:
        way: see `Way`.
        block_out: weight rows, a power of two, at least 2 where rows come in pairs.
        num_warps: of one program.
        block_in: weight columns per step, a power of two (FMA, PIPE); 0 means all of them at once.
        stages: depth of the pipeline (PIPE).
        programs: programs per multiprocessor (WALK).
    """

    way: Way
    block_out: int
    num_warps: int = 4
    block_in: int = 0
    stages: int = 0
    programs: int = 0

    def padded(self, num_rows: int) -> int:
        """Rows of x in the tile: what the matrix units take, else a power of two."""
        power = 1 << (num_rows - 1).bit_length()
        return {Way.MMA: 16, Way.PIPE: max(8, power)}.get(self.way, power)

    def columns(self, num_in: int) -> tuple[int, int]:
        """Columns of the first step, and of the second where the ways at once take two."""
        whole = max(256, 1 << (num_in - 1).bit_length())
        if self.way == Way.MMA:
            first = 1 << (num_in.bit_length() - 1)
            rest = num_in - first
            return first, max(16 * self.num_warps, 1 << (rest - 1).bit_length()) if rest else 0
        return (self.block_in or whole), 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TileChoice:
    """Which tile a product gets.

    Attributes:
        fixed: (kind, weight rows, weight columns, rows of x) -> tile, asked before the rule: measured choices.
        attention_block: positions per program of the attention kernel; a power of two.
        attention_warps: of one such program; 0: by what it multiplies.
    """

    fixed: Mapping[tuple[str, int, int, int], Tile] = field(default_factory=dict)
    attention_block: int = 64
    attention_warps: int = 0

    def warps_of_attention(self, head_width: int, num_rows: int) -> int:
        """Warps of one attention program; measured: K = 3 of the 8B shape 4.945 ms with two, 5.006 ms with one.

        One row, and narrow heads, have too little work for what two warps must tell each other: SmolLM2 plain 418 µs
        with one, 451 µs with two.
        """
        return self.attention_warps or (2 if head_width > 64 and num_rows > 1 else 1)

    def pick(self, kind: Kind, weight: Tensor, num_rows: int) -> Tile:
        """The tile for `num_rows` rows of x times this weight."""
        num_out, num_in = weight.shape
        fixed = self.fixed.get((kind, num_out, num_in, num_rows))
        if fixed is not None:
            return fixed
        if weight.dtype == torch.float32:
            return Tile(way=Way.FMA, block_out=8, block_in=min(1024, max(256, 1 << (num_in - 1).bit_length())))
        return rule(kind, num_out, num_in, num_rows)


def rule(kind: Kind, num_out: int, num_in: int, num_rows: int) -> Tile:
    """Half precision; the measured best of SmolLM2-135M (narrow) and of the 8B shape (wide) on an H200."""
    if num_in <= 2048:
        return _narrow(kind, num_out, num_in, num_rows)
    if num_rows == 1:
        if num_in <= 8192:
            return Tile(way=Way.WALK, block_out=2, num_warps=4, programs=4)
        if kind == "linear":
            return Tile(way=Way.WALK, block_out=1, num_warps=8, programs=2)
        return Tile(way=Way.WALK, block_out=2, num_warps=16, programs=1)
    return {
        "qkv": Tile(way=Way.PIPE, block_out=32, num_warps=4, block_in=256, stages=4),
        "linear": Tile(way=Way.PIPE, block_out=16, num_warps=2, block_in=256, stages=5),
        "gate_up": Tile(way=Way.PIPE, block_out=128, num_warps=8, block_in=128, stages=3),
        "head": Tile(way=Way.PIPE, block_out=64, num_warps=4, block_in=256, stages=3),
    }[kind]


def _narrow(kind: Kind, num_out: int, num_in: int, num_rows: int) -> Tile:
    if kind == "head":
        if num_out < 16384:
            return Tile(way=Way.PIPE, block_out=64, block_in=128, stages=4)
        return Tile(way=Way.PIPE, block_out=128, block_in=64, stages=3)
    if num_rows == 1:
        return {
            "qkv": Tile(way=Way.FMA, block_out=8, num_warps=4 if num_in <= 1024 else 2),
            "linear": Tile(way=Way.FMA, block_out=4, num_warps=8),
            "gate_up": Tile(way=Way.FMA, block_out=8),
        }[kind]
    return {
        "qkv": Tile(way=Way.MMA, block_out=8),
        "linear": Tile(way=Way.MMA, block_out=8, num_warps=2 if num_in <= 1024 else 4),
        "gate_up": Tile(way=Way.MMA, block_out=16, num_warps=2),
    }[kind]
