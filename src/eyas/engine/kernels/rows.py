# mypy: ignore-errors
# Triton compiles these functions from their source: annotations mean Triton types, not Python ones.
"""Products of a weight matrix with 1 … 8 rows, the weights read once; the part that all matrix kernels share.

Shapes: N output features, C input features (contracted), M rows of x (1 … 8), MP = M padded to a power of two.

Two ways to the same [BN, MP] fp32 tile:
`rows_fma`: multiply and add on the vector units. Each thread holds 16-byte pieces of the weights and keeps a partial
    sum per row, so the loop needs no exchange between threads: lowest latency, and bandwidth-bound up to about 4 rows.
`rows_dot`: matrix units, the loop pipelined through shared memory: for more rows of large matrices.
The rmsnorm of x is folded in: W @ (g * x) / rms(x), the division after the sum, so that a norm costs no launch.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Let the next kernel start loading its weights, then wait for the kernel before this one."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def _load_weights(w_ptr, row, row_ok, stride, k, C: tl.constexpr):
    offsets = row.to(tl.int64)[:, None, None] * stride + k
    return tl.load(w_ptr + offsets, mask=row_ok[:, None, None] & (k < C), other=0.0)


@triton.jit
def first_weights(w_ptr, w_stride, row0, N, C: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    """The first step's weights, to be asked for before `wait_for_inputs`: they depend on no other kernel."""
    if STAGES > 0:
        return tl.zeros([1], tl.float32)
    else:
        row = row0 + tl.arange(0, BN)
        k = tl.arange(0, BK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
        return _load_weights(w_ptr, row, row < N, w_stride, k[None, :, :], C)


@triton.jit
def _row_start(x_ptr, index_ptr, x_stride, m: tl.constexpr, INDIRECT: tl.constexpr):
    if INDIRECT:
        return x_ptr + tl.load(index_ptr + m).to(tl.int64) * x_stride
    return x_ptr + m * x_stride


@triton.jit
def _add_row(acc, squares, w, x_ptr, k, g, C: tl.constexpr, NORM: tl.constexpr):
    x = tl.load(x_ptr + k, mask=k < C, other=0.0).to(tl.float32)  # [1, BK/8, 8]
    if NORM:
        squares += tl.sum(x * x, axis=2)
        x = x * g
    return acc + tl.sum(w * x, axis=2), squares


@triton.jit
def _side_by_side(a0, a1, a2, a3, a4, a5, a6, a7, MP: tl.constexpr):
    """Sum of each [R, L] over L, as columns 0 … MP-1 of one [R, MP]: one reduction instead of MP."""
    R: tl.constexpr = a0.shape[0]
    if MP == 1:
        return tl.sum(a0, axis=1)[:, None]
    elif MP == 2:
        return tl.sum(tl.join(a0, a1), axis=1)
    elif MP == 4:
        pairs = tl.join(tl.join(a0, a1), tl.join(a2, a3))
        return tl.reshape(tl.permute(tl.sum(pairs, axis=1), (0, 2, 1)), (R, 4))
    else:
        low = tl.join(tl.join(a0, a1), tl.join(a2, a3))
        high = tl.join(tl.join(a4, a5), tl.join(a6, a7))
        return tl.reshape(tl.permute(tl.sum(tl.join(low, high), axis=1), (0, 3, 2, 1)), (R, 8))


@triton.jit
def rows_fma(
    w_next, w_ptr, w_stride, row0, N, x_ptr, x_stride, index_ptr, g_ptr, eps,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NORM: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """[BN, MP] fp32: rows row0 … row0+BN of W times the (normed) rows of x; w_next holds the first step's weights."""
    row = row0 + tl.arange(0, BN)
    row_ok = row < N
    k = tl.arange(0, BK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    k = k[None, :, :]
    zero = tl.zeros([BN, BK // 8], tl.float32)
    none = tl.zeros([1, BK // 8], tl.float32)
    a0, a1, a2, a3, a4, a5, a6, a7 = zero, zero, zero, zero, zero, zero, zero, zero
    s0, s1, s2, s3, s4, s5, s6, s7 = none, none, none, none, none, none, none, none
    for start in range(0, C, BK):
        w = w_next.to(tl.float32)
        if C > BK:
            w_next = _load_weights(w_ptr, row, row_ok, w_stride, k + (start + BK), C)
        at = k + start
        g = none[:, :, None]
        if NORM:
            g = tl.load(g_ptr + at, mask=at < C, other=0.0).to(tl.float32)
        a0, s0 = _add_row(a0, s0, w, _row_start(x_ptr, index_ptr, x_stride, 0, INDIRECT), at, g, C, NORM)
        if M > 1:
            a1, s1 = _add_row(a1, s1, w, _row_start(x_ptr, index_ptr, x_stride, 1, INDIRECT), at, g, C, NORM)
        if M > 2:
            a2, s2 = _add_row(a2, s2, w, _row_start(x_ptr, index_ptr, x_stride, 2, INDIRECT), at, g, C, NORM)
        if M > 3:
            a3, s3 = _add_row(a3, s3, w, _row_start(x_ptr, index_ptr, x_stride, 3, INDIRECT), at, g, C, NORM)
        if M > 4:
            a4, s4 = _add_row(a4, s4, w, _row_start(x_ptr, index_ptr, x_stride, 4, INDIRECT), at, g, C, NORM)
        if M > 5:
            a5, s5 = _add_row(a5, s5, w, _row_start(x_ptr, index_ptr, x_stride, 5, INDIRECT), at, g, C, NORM)
        if M > 6:
            a6, s6 = _add_row(a6, s6, w, _row_start(x_ptr, index_ptr, x_stride, 6, INDIRECT), at, g, C, NORM)
        if M > 7:
            a7, s7 = _add_row(a7, s7, w, _row_start(x_ptr, index_ptr, x_stride, 7, INDIRECT), at, g, C, NORM)
    out = _side_by_side(a0, a1, a2, a3, a4, a5, a6, a7, MP)
    if NORM:
        squares = _side_by_side(s0, s1, s2, s3, s4, s5, s6, s7, MP)
        out = out * tl.rsqrt(squares / C + eps)
    return out


@triton.jit
def rows_dot(
    w_ptr, w_stride, row0, N, x_ptr, x_stride, index_ptr, g_ptr, eps,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NORM: tl.constexpr, INDIRECT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As `rows_fma`, on the matrix units; MP >= 8."""
    row = row0 + tl.arange(0, BN)
    row = tl.where(row < N, row, 0).to(tl.int64)
    m = tl.arange(0, MP)
    k = tl.arange(0, BK)
    start_of = m.to(tl.int64)
    if INDIRECT:
        start_of = tl.load(index_ptr + m, mask=m < M, other=0).to(tl.int64)
    acc = tl.zeros([BN, MP], tl.float32)
    squares = tl.zeros([MP], tl.float32)
    for start in tl.range(0, C, BK, num_stages=STAGES):
        at = start + k
        w = tl.load(w_ptr + row[:, None] * w_stride + at[None, :], mask=at[None, :] < C, other=0.0)
        ok = (at[:, None] < C) & (m[None, :] < M)
        x = tl.load(x_ptr + start_of[None, :] * x_stride + at[:, None], mask=ok, other=0.0)
        if NORM:
            wide = x.to(tl.float32)
            squares += tl.sum(wide * wide, axis=0)
            g = tl.load(g_ptr + at, mask=at < C, other=0.0).to(tl.float32)
            x = (wide * g[:, None]).to(x.dtype)
        acc = tl.dot(w, x, acc, input_precision="ieee")
    if NORM:
        acc = acc * tl.rsqrt(squares / C + eps)[None, :]
    return acc


@triton.jit
def rows(
    w_first, w_ptr, w_stride, row0, N, x_ptr, x_stride, index_ptr, g_ptr, eps,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NORM: tl.constexpr, INDIRECT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`rows_dot` with STAGES > 0, else `rows_fma`; w_first as `first_weights` gives it."""
    if STAGES > 0:
        return rows_dot(
            w_ptr, w_stride, row0, N, x_ptr, x_stride, index_ptr, g_ptr, eps,
            C, M, MP, BN, BK, NORM, INDIRECT, STAGES,
        )  # fmt: skip
    else:
        return rows_fma(
            w_first, w_ptr, w_stride, row0, N, x_ptr, x_stride, index_ptr, g_ptr, eps,
            C, M, MP, BN, BK, NORM, INDIRECT,
        )  # fmt: skip


@triton.jit
def split_pairs(tile):
    """[2P, MP] with a pair in rows 2i, 2i+1 -> both [P, MP]."""
    P: tl.constexpr = tile.shape[0] // 2
    MP: tl.constexpr = tile.shape[1]
    return tl.split(tl.permute(tl.reshape(tile, (P, 2, MP)), (0, 2, 1)))
