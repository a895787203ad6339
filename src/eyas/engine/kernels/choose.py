# mypy: ignore-errors
"""Token choice on the device: embedding rows, argmax over parts, acceptance of a chain, the next draft token.

`state` int32: [length, base, accepted, rounds, …]: target positions in the cache; the length before the last verify
pass; drafts accepted in it; rounds done. See `captured.workspace`.
"""

import triton
import triton.language as tl

from eyas.engine.kernels.rows import let_next_start, wait_for_inputs


@triton.jit
def embed_kernel(table_ptr, ids_ptr, out_ptr, out_stride, C: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr):
    """out[m] = table[ids[m]]."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    m = tl.program_id(0)
    k = tl.arange(0, BK)
    row = tl.load(ids_ptr + m).to(tl.int64)
    x = tl.load(table_ptr + row * C + k, mask=k < C, other=0.0)
    tl.store(out_ptr + m * out_stride + k, x, mask=k < C)


@triton.jit
def _argmax(best_ptr, best_id_ptr, m, num_parts, BP: tl.constexpr):
    i = tl.arange(0, BP)
    best = tl.load(best_ptr + m * num_parts + i, mask=i < num_parts, other=float("-inf"))
    ids = tl.load(best_id_ptr + m * num_parts + i, mask=i < num_parts, other=2147483647)
    return tl.min(tl.where(best == tl.max(best, axis=0), ids, 2147483647), axis=0)


@triton.jit
def accept_kernel(
    best_ptr, best_id_ptr, num_parts, tokens_ptr, chosen_ptr, state_ptr, record_ptr, record_stride, records,
    simulated_ptr, K: tl.constexpr, BP: tl.constexpr, SIMULATE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Greedy acceptance of tokens[1 … K] against the target's choices; writes the record [accepted, choices …]."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    length = tl.load(state_ptr)
    round_index = tl.load(state_ptr + 3)
    record = record_ptr + (round_index % records) * record_stride
    accepted = 0
    is_on = 1
    if SIMULATE:
        accepted = tl.minimum(tl.load(simulated_ptr + round_index % records), K)
    bonus = 0
    for m in tl.static_range(K + 1):
        choice = _argmax(best_ptr, best_id_ptr, m, num_parts, BP)
        tl.store(chosen_ptr + m, choice)
        tl.store(record + 1 + m, choice)
        if not SIMULATE:
            # `accepted` counts matches before row m; row m is reached only while all of them matched.
            bonus = tl.where(is_on == 1, choice, bonus)
            if m < K:
                is_on = is_on * (tl.load(tokens_ptr + m + 1) == choice).to(tl.int32)
                accepted += is_on
        else:
            bonus = tl.where(accepted == m, choice, bonus)
    tl.store(record, accepted)
    tl.store(tokens_ptr, bonus)
    tl.store(state_ptr, length + accepted + 1)
    tl.store(state_ptr + 1, length)
    tl.store(state_ptr + 2, accepted)
    tl.store(state_ptr + 3, round_index + 1)


@triton.jit
def pick_kernel(
    best_ptr, best_id_ptr, num_parts, offset_ptr, token_ptr, rows_ptr, rows_stride, index_ptr, state_ptr,
    C: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, HAS_MAP: tl.constexpr, COPY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The draft's token in target ids; with COPY also rows[index] -> state, the next step's input."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    choice = _argmax(best_ptr, best_id_ptr, 0, num_parts, BP)
    if HAS_MAP:
        choice += tl.load(offset_ptr + choice).to(tl.int32)
    tl.store(token_ptr, choice)
    if COPY:
        k = tl.arange(0, BK)
        row = tl.load(index_ptr).to(tl.int64)
        x = tl.load(rows_ptr + row * rows_stride + k, mask=k < C, other=0.0)
        tl.store(state_ptr + k, x, mask=k < C)
