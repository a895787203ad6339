# mypy: ignore-errors
"""One token per row of logits by the row's own settings: greedy, temperature, top-k, top-p, min-p, in one launch.

The same rule as `decode.sampling` (`token_probs`, `draw`), which sorts the vocabulary; here the last weight that top-k
and top-p keep is found by bisection over the bits of the weights, each step one pass over a row that lies in the cache.
A weight is exp((logit - highest) / temperature): not normalised, at most 1, and ordered as its bits are.
Shapes: V vocabulary; BV ids at once.
"""

import triton
import triton.language as tl

_BITS_OF_ONE = tl.constexpr(0x3F800000)


@triton.jit
def _weights(logits_ptr, start, peak, inverse, V, BV: tl.constexpr):
    """Ids, weights and their bits; ids beyond the vocabulary weigh 0."""
    ids = start + tl.arange(0, BV)
    x = tl.load(logits_ptr + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    weights = tl.exp((x - peak) * inverse)
    return ids, weights, weights.to(tl.int32, bitcast=True)


@triton.jit
def _count_above(logits_ptr, bits_limit, peak, inverse, V, BV: tl.constexpr):
    acc = tl.zeros([BV], tl.int32)
    for start in range(0, V, BV):
        ids, _, bits = _weights(logits_ptr, start, peak, inverse, V, BV)
        acc += ((bits > bits_limit) & (ids < V)).to(tl.int32)
    return tl.sum(acc, axis=0)


@triton.jit
def _mass_above(logits_ptr, bits_limit, least, peak, inverse, V, BV: tl.constexpr):
    """Sum of the weights above a limit and at least `least`."""
    acc = tl.zeros([BV], tl.float32)
    for start in range(0, V, BV):
        _, weights, bits = _weights(logits_ptr, start, peak, inverse, V, BV)
        acc += tl.where((bits > bits_limit) & (weights >= least), weights, 0.0)
    return tl.sum(acc, axis=0)


@triton.jit
def _highest(logits_ptr, V, BV: tl.constexpr):
    """The highest logit, and the lowest id that has it."""
    highest = tl.full([BV], float("-inf"), tl.float32)
    at = tl.zeros([BV], tl.int32)
    for start in range(0, V, BV):
        ids = start + tl.arange(0, BV)
        x = tl.load(logits_ptr + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
        at = tl.where(x > highest, ids, at)
        highest = tl.maximum(x, highest)
    peak = tl.max(highest, axis=0)
    return peak, tl.min(tl.where(highest == peak, at, V), axis=0)


@triton.jit
def _draw(logits_ptr, cut, num_ties, least, uniform, peak, inverse, best, V, BV: tl.constexpr):
    """The first id whose running mass passes `uniform` of the whole.

    Kept are weights above `cut` bits, and the first `num_ties` ids of exactly that weight, if at least `least`.
    """
    tie_weight = cut.to(tl.float32, bitcast=True)
    mass = _mass_above(logits_ptr, cut, least, peak, inverse, V, BV)
    mass += tl.where((num_ties > 0) & (tie_weight >= least), num_ties.to(tl.float32) * tie_weight, 0.0)
    threshold = uniform * mass
    running = 0.0
    ties_before = 0
    chosen = V
    last = best
    for start in range(0, V, BV):
        ids, weights, bits = _weights(logits_ptr, start, peak, inverse, V, BV)
        is_tie = (bits == cut) & (ids < V)
        rank = ties_before + tl.cumsum(is_tie.to(tl.int32), axis=0)
        is_kept = ((bits > cut) | (is_tie & (rank <= num_ties))) & (weights >= least) & (weights > 0)
        kept = tl.where(is_kept, weights, 0.0)
        reached = running + tl.cumsum(kept, axis=0)
        chosen = tl.minimum(chosen, tl.min(tl.where(is_kept & (reached > threshold), ids, V), axis=0))
        last = tl.maximum(last, tl.max(tl.where(is_kept, ids, -1), axis=0))
        running += tl.sum(kept, axis=0)
        ties_before += tl.sum(is_tie.to(tl.int32), axis=0)
    # Rounding can leave the running mass just below the threshold: then the last kept id.
    return tl.where(chosen < V, chosen, last)


@triton.jit
def draw_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, uniform_ptr, out_ptr, V, BV: tl.constexpr
):  # fmt: skip
    """One program per row; temperature 0 takes the highest logit."""
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * V
    temperature = tl.load(temperature_ptr + row)
    peak, best = _highest(logits_ptr, V, BV)
    chosen = best
    if temperature > 0:
        inverse = 1.0 / temperature
        top_k = tl.load(top_k_ptr + row).to(tl.int32)
        top_p = tl.load(top_p_ptr + row)
        least = tl.load(min_p_ptr + row)
        uniform = tl.load(uniform_ptr + row).to(tl.float32)
        cut = tl.full([], -1, tl.int32)
        num_ties = tl.zeros([], tl.int32)
        if (top_k > 0) & (top_k < V):
            high = tl.full([], _BITS_OF_ONE, tl.int32)
            low = tl.zeros([], tl.int32)
            while low < high:
                middle = (low + high) // 2
                if _count_above(logits_ptr, middle, peak, inverse, V, BV) < top_k:
                    high = middle
                else:
                    low = middle + 1
            cut = low
            num_ties = top_k - _count_above(logits_ptr, cut, peak, inverse, V, BV)
        if top_p < 1:
            floor = tl.maximum(cut, 0)
            kept = _mass_above(logits_ptr, cut, 0.0, peak, inverse, V, BV)
            kept += num_ties.to(tl.float32) * floor.to(tl.float32, bitcast=True)
            wanted = top_p * kept
            low = floor
            high = tl.full([], _BITS_OF_ONE, tl.int32)
            while low < high:
                middle = (low + high) // 2
                if _mass_above(logits_ptr, middle, 0.0, peak, inverse, V, BV) < wanted:
                    high = middle
                else:
                    low = middle + 1
            above = _mass_above(logits_ptr, low, 0.0, peak, inverse, V, BV)
            weight = low.to(tl.float32, bitcast=True)
            # The tie that crosses top_p is kept.
            ties = tl.where(weight > 0, tl.ceil((wanted - above) / tl.maximum(weight, 1e-38)), 0.0)
            ties = tl.minimum(ties, 1e9).to(tl.int32)
            num_ties = tl.where((low == cut) & (cut >= 0), tl.minimum(num_ties, ties), ties)
            cut = low
        chosen = _draw(logits_ptr, cut, num_ties, least, uniform, peak, inverse, best, V, BV)
    tl.store(out_ptr + row, chosen.to(tl.int64))
