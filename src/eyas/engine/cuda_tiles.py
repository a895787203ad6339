"""Block sizes of the matrix kernels by what they multiply; figures behind the choices: docs/engine-gpu.md."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Kind = Literal["qkv", "linear", "gate_up", "head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One program's part of a product.

    Attributes:
        block_out: weight rows, a power of two, at least 2 where rows come in pairs.
        block_in: weight columns per step, a power of two; at least the matrix's width means one step.
        num_warps: of one program.
        stages: 0 for the vector units; else the depth of the matrix units' pipeline.
    """

    block_out: int
    block_in: int
    num_warps: int = 4
    stages: int = 0

    def padded(self, num_rows: int) -> int:
        """Rows of x in the tile: a power of two, at least 8 for the matrix units."""
        power = 1 << (num_rows - 1).bit_length()
        return max(8, power) if self.stages else power


@dataclass(frozen=True, slots=True, kw_only=True)
class TileChoice:
    """Which tile a product gets.

    Attributes:
        fixed: (kind, weight rows, weight columns, rows of x) -> tile, asked before the rule: measured choices.
        attention_block: positions per program of the attention kernel; a power of two.
        attention_warps: of one such program.
    """

    fixed: Mapping[tuple[str, int, int, int], Tile] = field(default_factory=dict)
    attention_block: int = 128
    attention_warps: int = 4

    def pick(self, kind: Kind, weight: Tensor, num_rows: int) -> Tile:
        """The tile for `num_rows` rows of x times this weight."""
        num_out, num_in = weight.shape
        return self.fixed.get((kind, num_out, num_in, num_rows)) or rule(kind, num_out, num_in, num_rows)


def rule(kind: Kind, num_out: int, num_in: int, num_rows: int) -> Tile:
    """Small matrices: all columns in one step, about one program per multiprocessor. Large ones: a loop."""
    if num_in <= 2048:
        block_in = max(256, 1 << (num_in - 1).bit_length())
        if kind == "head":
            return Tile(block_out=16, block_in=block_in)
        most = {"qkv": 8, "linear": 4, "gate_up": 16}[kind]
        return Tile(block_out=most if num_rows <= 4 else min(most, 8), block_in=block_in)
    return Tile(block_out=8 if num_rows <= 4 else 4, block_in=1024)
