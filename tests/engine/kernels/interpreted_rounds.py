"""Rounds of changing depth by the kernels and by their plain twin. Needs TRITON_INTERPRET=1."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from torch import Tensor

from eyas.engine.adaptive import AdaptiveDepth
from eyas.engine.captured.adaptive_rounds import AdaptiveRounds
from eyas.engine.captured.captured_engine import FastSettings
from eyas.engine.captured.captured_weights import fast_draft, fast_target
from eyas.engine.captured.round_ops import ReferenceOps, RoundOps
from eyas.engine.captured.tiles import Kind, Tile, TileChoice, Way
from eyas.engine.captured.triton_round_ops import TritonRoundOps
from eyas.engine.captured.workspace import key_value_cache
from eyas.engine.cost_table import CostTable
from eyas.engine.engine import Limits
from tiny_captured import BOUNDARIES, tiny_module, tiny_weights

LENGTH, MOST = 64, 2
# Four plain steps leave the draft further behind than one block of three rows.
DEPTHS = (2, 0, 0, 0, 0, 2, 1, 2)


class OneProgram(TileChoice):
    """The interpreter's time goes by programs: each matrix in one, by the way of the fewest operations."""

    def pick(self, kind: Kind, weight: Tensor, num_rows: int) -> Tile:
        return Tile(way=Way.PIPE, block_out=128, block_in=256, stages=1)


class Scripted(AdaptiveDepth):
    """Depths as written down."""

    num_asked = 0

    def best_now(self) -> int:
        self.num_asked += 1
        return DEPTHS[(self.num_asked - 1) % len(DEPTHS)]


def played(ops: RoundOps) -> dict[str, list[int]]:
    weights = tiny_weights(seed=5)
    target = fast_target(weights, max_length=LENGTH, aux_boundaries=BOUNDARIES)
    draft = fast_draft(tiny_module(weights, seed=16), target)  # accepted also after it caught up
    caches = key_value_cache(target, len(target.layers), LENGTH), key_value_cache(draft, 1, LENGTH)
    rounds = AdaptiveRounds(
        ops, target, draft, most=MOST, max_length=LENGTH, caches=caches, settings=FastSettings(captures=False)
    )
    adaptive = Scripted(CostTable(round_s=(1.0,) * (MOST + 1)))
    text = rounds.generate([3, 1, 2, 4], Limits(max_new_tokens=12), adaptive)
    return {"ids": text.ids, "accepted": text.accepted, "drafted": text.drafted}


def played_by_both() -> dict[str, dict[str, list[int]]]:
    """By the twin and by the kernels."""
    kernels = TritonRoundOps(tiles=OneProgram(attention_block=64), num_multiprocessors=2)
    return {"reference": played(ReferenceOps()), "kernels": played(kernels)}
