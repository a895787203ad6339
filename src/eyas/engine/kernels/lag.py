# mypy: ignore-errors
"""What lets a draft fall behind and catch up: the target's states by position, and how far the draft has read.

`state` int32: [length, base, accepted, rounds, drafted, lag]: see `captured.workspace`. `drafted` positions were read
by the draft; `lag` is the row of the last position among those that it has not read.
"""

import triton
import triton.language as tl

from eyas.engine.kernels.rows import let_next_start, wait_for_inputs


@triton.jit
def store_kernel(
    rows_ptr, chosen_ptr, state_ptr, stored_ptr, stored_ids_ptr,
    C: tl.constexpr, BK: tl.constexpr, DRAFTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """stored[base + m] = rows[m] [M, C] and the same with the chosen ids; then `drafted` and `lag`."""
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
