# mypy: ignore-errors
"""What moves a captured round's state: embedding rows, acceptance of a chain, the next draft token, unread states.

`state` int32: [length, base, accepted, rounds, drafted, last_unread]: target positions in the cache; the length before
the last verify pass; drafts accepted in it; rounds done; positions that the draft has read; the row of the last
position among those that it has not read. See `captured.workspace`.
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


@triton.jit
def store_kernel(
    rows_ptr, chosen_ptr, state_ptr, stored_ptr, stored_ids_ptr,
    C: tl.constexpr, BK: tl.constexpr, DRAFTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """stored[base + m] = rows[m] [M, C] and the same with the chosen ids; then `drafted` and `last_unread`."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    m = tl.program_id(0)
    part = tl.program_id(1)
    base = tl.load(state_ptr + 1)
    at = (base + m).to(tl.int64)
    k = part * BK + tl.arange(0, BK)
    x = tl.load(rows_ptr + m * C + k, mask=k < C, other=0.0)
    tl.store(stored_ptr + at * C + k, x, mask=k < C)
    if part == 0:
        tl.store(stored_ids_ptr + at, tl.load(chosen_ptr + m))
        if m == 0:
            drafted = base
            if not DRAFTED:
                drafted = tl.load(state_ptr + 4)
            tl.store(state_ptr + 4, drafted)
            tl.store(state_ptr + 5, tl.load(state_ptr) - 1 - drafted)


@triton.jit
def fetch_kernel(
    stored_ptr, stored_ids_ptr, state_ptr, rows_ptr, ids_ptr, length, C: tl.constexpr, BK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """rows[m] = stored[drafted + m] [M, C] and the same with the ids; never beyond `length`."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    m = tl.program_id(0)
    part = tl.program_id(1)
    at = tl.minimum(tl.load(state_ptr + 4) + m, length - 1).to(tl.int64)
    k = part * BK + tl.arange(0, BK)
    x = tl.load(stored_ptr + at * C + k, mask=k < C, other=0.0)
    tl.store(rows_ptr + m * C + k, x, mask=k < C)
    if part == 0:
        tl.store(ids_ptr + m, tl.load(stored_ids_ptr + at))


@triton.jit
def advance_kernel(state_ptr, M: tl.constexpr, PDL: tl.constexpr):
    """The draft has read M positions more, but not the last one."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    last = tl.load(state_ptr) - 1
    drafted = tl.minimum(tl.load(state_ptr + 4) + M, last)
    tl.store(state_ptr + 4, drafted)
    tl.store(state_ptr + 5, last - drafted)
