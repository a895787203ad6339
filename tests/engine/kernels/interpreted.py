"""What the kernels of a captured round do in Triton's interpreter, as one line of JSON. Needs TRITON_INTERPRET=1.

Largest difference between each matrix or attention kernel and its plain twin; and what the scripts beside it find: all
in one process, since importing takes longer than most kernels.
"""

import json

import torch
from interpreted_rounds import played_by_both
from launched import launched

from eyas.engine.captured.captured_weights import HeadDims, HeadExtras, rope_table
from eyas.engine.captured.round_ops import ReferenceOps, RoundOps
from eyas.engine.captured.tiles import Tile, TileChoice, Way
from eyas.engine.captured.triton_round_ops import TritonRoundOps
from triton_interpreter import largest_difference

HIDDEN, HEADS, WIDTH, LENGTH, OUT, INNER, VOCAB = 24, HeadDims(num_query=2, num_kv=1, width=16), 16, 48, 10, 6, 21
FEATURES = (HEADS.num_query + 2 * HEADS.num_kv) * WIDTH
CASES = ((Way.FMA, 1), (Way.FMA, 3), (Way.MMA, 3), (Way.PIPE, 3), (Way.WALK, 1))


def tile(way: Way, num_out: int) -> Tile:
    """Two tiles or three of each matrix, the last one ragged where a matrix allows it: time goes by programs."""
    block = 32 if num_out == FEATURES else 8
    return {
        Way.FMA: Tile(way=way, block_out=block, block_in=16),
        Way.MMA: Tile(way=way, block_out=block, num_warps=1),
        Way.PIPE: Tile(way=way, block_out=max(16, block), block_in=16, stages=2),
        # Two programs: each walks over two tiles or three.
        Way.WALK: Tile(way=way, block_out=block // 2, programs=1),
    }[way]


def outputs(ops: RoundOps, num_rows: int) -> dict[str, torch.Tensor]:
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
    query, cache = torch.full((num_rows, HEADS.num_query * WIDTH), 9.0), torch.randn(2, 1, LENGTH, WIDTH)
    where = {"eps": 1e-5, "position": position, "rope": rope}
    ops.project_qkv(
        torch.randn(FEATURES, HIDDEN), HEADS, x=x, norm=norm, ids=None, second=None, offset=3, query=query,
        cache=cache, **where,
    )  # fmt: skip
    table, ids = torch.randn(7, HIDDEN), torch.randint(0, 7, (num_rows,)).int()
    mixed, mixed_cache = query.clone(), cache.clone()
    ops.project_qkv(
        torch.randn(FEATURES, 2 * HIDDEN), HEADS, x=table, norm=norm, ids=ids, second=(second, other_norm), offset=1,
        query=mixed, cache=mixed_cache, **where,
    )  # fmt: skip
    extras = HeadExtras(bias=torch.randn(FEATURES), norms=torch.randn(2, WIDTH))
    headed, headed_cache = query.clone(), cache.clone()
    ops.project_qkv(
        torch.randn(FEATURES, HIDDEN), HEADS, x=x, norm=norm, ids=None, second=None, offset=2, query=headed,
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


def errors(way: Way, num_rows: int) -> dict[str, float]:
    """Of each result of one way."""
    kinds = {"qkv": (FEATURES,), "linear": (OUT, FEATURES), "gate_up": (2 * INNER,), "head": (VOCAB,)}
    fixed = {
        (kind, num_out, num_in, num_rows): tile(way, num_out)
        for kind, sizes in kinds.items()
        for num_out in sizes
        for num_in in (HIDDEN, 2 * HIDDEN)
    }
    expected = outputs(ReferenceOps(), num_rows)
    got = outputs(TritonRoundOps(tiles=TileChoice(fixed=fixed, attention_block=16), num_multiprocessors=2), num_rows)
    return {name: largest_difference(expected[name], got[name]) for name in expected}


if __name__ == "__main__":
    found = {f"{way.name} {num_rows}": errors(way, num_rows) for way, num_rows in CASES}
    print(json.dumps({"errors": found, "rounds": played_by_both(), "launched": launched()}))
