# mypy: ignore-errors
# Triton compiles these functions from their source: annotations mean Triton types, not Python ones.
"""Products of a weight matrix with 1 … 8 rows, the weights read once; the part that all matrix kernels share.

Shapes: C input features (contracted), M rows of x (1 … 8), MP = M padded, [BN, MP] a program's fp32 result.

Ways to the same tile (`WAY`; figures: docs/engine-gpu.md):
0 `rows_fma`: vector units. Each thread holds 16-byte pieces of the weights and a partial sum per row, so nothing is
    exchanged before the end: lowest latency for one row.
1 `rows_mma`: matrix units in one step, the columns split over the warps: lowest latency for 2 … 8 rows.
2 `rows_pipe`: matrix units, a pipelined loop over the columns: bandwidth, for 2 … 8 rows of large matrices. No norm:
    in the loop it stalls the pipeline.
3 `row_prepared`, `row_product`: vector units, one row kept in registers while the program walks over many tiles:
    bandwidth, for one row of large matrices.
An rmsnorm of x is folded in: W @ (g * x) / rms(x), the division after the sum, so that a norm costs no launch.

Ordering. With programmatic dependent launch a kernel may start when all programs of the one before it have passed
`wait_for_inputs`; then every kernel but that one has finished. So weights, norms, positions and old cache rows may be
read before the wait, and what the kernel just before writes may not.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Wait for the kernel before this one; read nothing that it writes any earlier."""
    if PDL:
        gdc_wait()


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """Let the next kernel take free room. Early in small kernels; at the end of large ones, whose programs would else
    be packed onto the few multiprocessors with room left."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def _load_weights(w_ptr, row, row_ok, stride, k, C: tl.constexpr):
    offsets = row.to(tl.int64)[:, None, None] * stride + k
    return tl.load(w_ptr + offsets, mask=row_ok[:, None, None] & (k < C), other=0.0)


@triton.jit
def _columns(BK: tl.constexpr):
    k = tl.arange(0, BK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    return k[None, :, :]


@triton.jit
def _slices(start: tl.constexpr, BK: tl.constexpr, S: tl.constexpr):
    """[S, BK/S] columns start … start + BK, a slice per warp."""
    return start + tl.arange(0, S)[:, None] * (BK // S) + tl.arange(0, BK // S)[None, :]


@triton.jit
def first_weights(
    w_ptr, w_stride, row0, N,
    C: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BK2: tl.constexpr, S: tl.constexpr, WAY: tl.constexpr,
):  # fmt: skip
    """The first step's weights, to be asked for before `wait_for_inputs`: they depend on no other kernel."""
    row = row0 + tl.arange(0, BN)
    if WAY == 2:
        return tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
    elif WAY == 1:
        k = _slices(0, BK, S)[:, None, :]
        at = row.to(tl.int64)[None, :, None] * w_stride
        ok = (row < N)[None, :, None]
        w = tl.load(w_ptr + at + k, mask=ok & (k < C), other=0.0)
        if BK2 > 0:
            k = _slices(BK, BK2, S)[:, None, :]
            rest = tl.load(w_ptr + at + k, mask=ok & (k < C), other=0.0)
            return w, rest
        else:
            return w, tl.zeros([1], tl.float32)
    else:
        return _load_weights(w_ptr, row, row < N, w_stride, _columns(BK), C), tl.zeros([1], tl.float32)


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
    """[BN, MP]: rows row0 … row0+BN of W times the (normed) rows of x; w_next holds the first step's weights."""
    row = row0 + tl.arange(0, BN)
    row_ok = row < N
    k = _columns(BK)
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
def _mma_part(w, k, starts, g_ptr, C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, NORM: tl.constexpr):
    """[S, MP, BN] of slices k [S, KS], and each row's sum of squares [S, MP]."""
    m = tl.arange(0, MP)
    ok = (k < C)[:, None, :] & (m < M)[None, :, None]
    x = tl.load(starts[None, :, None] + k[:, None, :], mask=ok, other=0.0)
    squares = tl.zeros([k.shape[0], MP], tl.float32)
    if NORM:
        wide = x.to(tl.float32)
        squares = tl.sum(wide * wide, axis=2)
        g = tl.load(g_ptr + k, mask=k < C, other=0.0).to(tl.float32)
        x = (wide * g[:, None, :]).to(x.dtype)
    return tl.dot(x, tl.permute(w, (0, 2, 1)), input_precision="ieee"), squares


@triton.jit
def rows_mma(
    w, w_rest, x_ptr, x_stride, index_ptr, g_ptr, eps,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BK: tl.constexpr, BK2: tl.constexpr, S: tl.constexpr,
    NORM: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """As `rows_fma` on the matrix units, all columns at once: MP = 16."""
    m = tl.arange(0, MP)
    start_of = m.to(tl.int64)
    if INDIRECT:
        start_of = tl.load(index_ptr + m, mask=m < M, other=0).to(tl.int64)
    starts = x_ptr + start_of * x_stride
    acc, squares = _mma_part(w, _slices(0, BK, S), starts, g_ptr, C, M, MP, NORM)
    if BK2 > 0:
        acc2, squares2 = _mma_part(w_rest, _slices(BK, BK2, S), starts, g_ptr, C, M, MP, NORM)
        acc += acc2
        squares += squares2
    out = tl.trans(tl.sum(acc, axis=0))
    if NORM:
        out = out * tl.rsqrt(tl.sum(squares, axis=0) / C + eps)[None, :]
    return out


@triton.jit
def rows_pipe(
    w_ptr, w_stride, row0, N, x_ptr, x_stride, index_ptr,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    INDIRECT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As `rows_fma` without a norm, on the matrix units in a pipelined loop: MP >= 8."""
    row = row0 + tl.arange(0, BN)
    row = tl.where(row < N, row, 0).to(tl.int64)
    m = tl.arange(0, MP)
    k = tl.arange(0, BK)
    start_of = m.to(tl.int64)
    if INDIRECT:
        start_of = tl.load(index_ptr + m, mask=m < M, other=0).to(tl.int64)
    acc = tl.zeros([BN, MP], tl.float32)
    for start in tl.range(0, C, BK, num_stages=STAGES):
        at = start + k
        w = tl.load(w_ptr + row[:, None] * w_stride + at[None, :], mask=at[None, :] < C, other=0.0)
        ok = (at[:, None] < C) & (m[None, :] < M)
        x = tl.load(x_ptr + start_of[None, :] * x_stride + at[:, None], mask=ok, other=0.0)
        acc = tl.dot(w, x, acc, input_precision="ieee")
    return acc


@triton.jit
def rows(
    w, w_rest, w_ptr, w_stride, row0, N, x_ptr, x_stride, index_ptr, g_ptr, eps,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BK2: tl.constexpr,
    S: tl.constexpr, NORM: tl.constexpr, INDIRECT: tl.constexpr, WAY: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """[BN, MP] by way 0, 1 or 2; w and w_rest as `first_weights` gives them."""
    if WAY == 2:
        return rows_pipe(
            w_ptr, w_stride, row0, N, x_ptr, x_stride, index_ptr, C, M, MP, BN, BK, INDIRECT, STAGES
        )  # fmt: skip
    elif WAY == 1:
        return rows_mma(
            w, w_rest, x_ptr, x_stride, index_ptr, g_ptr, eps, C, M, MP, BK, BK2, S, NORM, INDIRECT
        )  # fmt: skip
    else:
        return rows_fma(
            w, w_ptr, w_stride, row0, N, x_ptr, x_stride, index_ptr, g_ptr, eps, C, M, MP, BN, BK, NORM, INDIRECT
        )  # fmt: skip


@triton.jit
def row_prepared(
    x_ptr, x_stride, index_ptr, g_ptr, eps, C: tl.constexpr, BK: tl.constexpr, NORM: tl.constexpr,
    INDIRECT: tl.constexpr,
):  # fmt: skip
    """Way 3: the (scaled) row [1, BK/8, 8] in its own dtype, and what its products are multiplied with."""
    k = _columns(BK)
    x = tl.load(_row_start(x_ptr, index_ptr, x_stride, 0, INDIRECT) + k, mask=k < C, other=0.0)
    scale = 1.0
    if NORM:
        wide = x.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide) / C + eps)
        x = (wide * tl.load(g_ptr + k, mask=k < C, other=0.0).to(tl.float32)).to(x.dtype)
    return x, scale


@triton.jit
def row_product(w, x, scale):
    """Way 3: [BN, 1] of weights [BN, BK/8, 8] and a prepared row."""
    products = tl.sum(w.to(tl.float32) * x.to(tl.float32), axis=2)
    return (tl.sum(products, axis=1) * scale)[:, None]


@triton.jit
def next_weights(w_ptr, w_stride, row0, N, C: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Way 3: weights of a later tile; nothing is read beyond the last row."""
    row = row0 + tl.arange(0, BN)
    return _load_weights(w_ptr, row, row < N, w_stride, _columns(BK), C)


@triton.jit
def split_pairs(tile):
    """[2P, MP] with a pair in rows 2i, 2i+1 -> both [P, MP]."""
    P: tl.constexpr = tile.shape[0] // 2
    MP: tl.constexpr = tile.shape[1]
    return tl.split(tl.permute(tl.reshape(tile, (P, 2, MP)), (0, 2, 1)))


@triton.jit
def norm_kernel(
    x_ptr, x_stride, index_ptr, g_ptr, eps, out_ptr, out_stride,
    C: tl.constexpr, BK: tl.constexpr, INDIRECT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[m] = rmsnorm(x[m]) * g, for way 2."""
    m = tl.program_id(0)
    k = tl.arange(0, BK)
    g = tl.load(g_ptr + k, mask=k < C, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    row = m.to(tl.int64)
    if INDIRECT:
        row = tl.load(index_ptr + m).to(tl.int64)
    x = tl.load(x_ptr + row * x_stride + k, mask=k < C, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x) / C + eps) * g
    tl.store(out_ptr + m * out_stride + k, y.to(out_ptr.dtype.element_ty), mask=k < C)
