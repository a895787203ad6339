"""Largest difference between each kernel and its plain twin, as one line of JSON. Needs TRITON_INTERPRET=1."""

import json
import sys

import torch

from eyas.engine.captured.ops import EagerOps, Ops
from eyas.engine.captured.tiles import Tile, TileChoice, Way
from eyas.engine.captured.triton_ops import TritonOps
from eyas.engine.captured.weights import HeadExtras, Heads, rope_table

HIDDEN, HEADS, WIDTH, LENGTH, OUT, INNER, VOCAB = 24, Heads(num_query=2, num_kv=1, width=16), 16, 48, 10, 6, 21
TILES = {
    "FMA": Tile(way=Way.FMA, block_out=8, block_in=16),
    "MMA": Tile(way=Way.MMA, block_out=8, num_warps=1),
    "PIPE": Tile(way=Way.PIPE, block_out=16, block_in=16, stages=2),
    "WALK": Tile(way=Way.WALK, block_out=4, programs=1),
}


def outputs(ops: Ops, num_rows: int) -> dict[str, torch.Tensor]:
    """Results of every matrix operation and of attention on the same random inputs; memory is poisoned before."""
    torch.manual_seed(0)
    x, second, residual = torch.randn(num_rows, HIDDEN), torch.randn(num_rows, HIDDEN), torch.randn(num_rows, OUT)
    norm, other_norm = torch.randn(HIDDEN), torch.randn(HIDDEN)
    out, added, inner = (torch.full((num_rows, n), 9.0) for n in (OUT, OUT, INNER))
    weight = torch.randn(OUT, HIDDEN)
    ops.linear(weight, x, out, residual=None)
    ops.linear(weight, x, added, residual=residual)
    ops.gate_up(torch.randn(2 * INNER, HIDDEN), x, norm, 1e-5, inner)
    head = torch.randn(VOCAB, HIDDEN)
    parts = ops.num_parts(head, num_rows)
    best, best_ids = torch.zeros(num_rows, parts), torch.zeros(num_rows, parts, dtype=torch.int32)
    ops.best_tokens(head, x, None, norm, 1e-5, best, best_ids)
    rope, position = rope_table(1 / 100 ** (torch.arange(0, WIDTH, 2) / WIDTH), LENGTH), torch.tensor([20]).int()
    features = (HEADS.num_query + 2 * HEADS.num_kv) * WIDTH
    query, cache = torch.full((num_rows, HEADS.num_query * WIDTH), 9.0), torch.randn(2, 1, LENGTH, WIDTH)
    where = {"eps": 1e-5, "position": position, "rope": rope}
    ops.project_qkv(
        torch.randn(features, HIDDEN), HEADS, x=x, norm=norm, ids=None, second=None, offset=3, query=query,
        cache=cache, **where,
    )  # fmt: skip
    table, ids = torch.randn(7, HIDDEN), torch.randint(0, 7, (num_rows,)).int()
    mixed, mixed_cache = query.clone(), cache.clone()
    ops.project_qkv(
        torch.randn(features, 2 * HIDDEN), HEADS, x=table, norm=norm, ids=ids, second=(second, other_norm), offset=1,
        query=mixed, cache=mixed_cache, **where,
    )  # fmt: skip
    extras = HeadExtras(bias=torch.randn(features), norms=torch.randn(2, WIDTH))
    headed, headed_cache = query.clone(), cache.clone()
    ops.project_qkv(
        torch.randn(features, HIDDEN), HEADS, x=x, norm=norm, ids=None, second=None, offset=2, query=headed,
        cache=headed_cache, extras=extras, **where,
    )  # fmt: skip
    attended = torch.full_like(mixed, 9.0)
    ops.attend(mixed, HEADS, mixed_cache, position, 1, attended)
    tokens = best_ids[torch.arange(num_rows), best.argmax(1)].float()
    return {
        "linear": out,
        "linear + residual": added,
        "gate_up": inner,
        "tokens": tokens,
        "query": query,
        "cache": cache,
        "two inputs": torch.cat((mixed.flatten(), mixed_cache.flatten())),
        "bias and head norms": torch.cat((headed.flatten(), headed_cache.flatten())),
        "attend": attended,
    }


def main() -> None:
    way, num_rows = sys.argv[1], int(sys.argv[2])
    kinds = {"qkv": (64,), "linear": (OUT, 64), "gate_up": (2 * INNER,), "head": (VOCAB,)}
    fixed = {
        (kind, n, c, num_rows): TILES[way] for kind, rows in kinds.items() for n in rows for c in (HIDDEN, 2 * HIDDEN)
    }
    tiles = TileChoice(fixed=fixed, attention_block=16)
    expected = outputs(EagerOps(), num_rows)
    got = outputs(TritonOps(tiles=tiles, num_multiprocessors=2), num_rows)
    print(json.dumps({name: float((expected[name] - got[name]).abs().max()) for name in expected}))


if __name__ == "__main__":
    main()
