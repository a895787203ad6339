"""Decoder blocks with their key/value cache: one interface, torch's kernels or our own.

Shapes: R rows (new positions), H hidden, N query heads, M key/value heads, d head width, C capacity in positions.
"""

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.engine.llama_weights import BlockWeights, LlamaShape
from eyas.engine.native import MAX_ROWS, LayerStruct, NativeKernels, ScratchStruct, ShapeStruct


class BlockStack(Protocol):
    """Runs blocks over new positions and keeps their keys and values."""

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions; what was cached is lost if the cache has to grow."""

    def run(self, index: int, residual: Tensor, start: int, attention_input: Tensor | None = None) -> Tensor:
        """Block `index` over R rows at positions start … start + R - 1.

        Args:
            residual: [R, H]; may be updated in place.
            attention_input: [R, in_width], for a block without an input norm of its own.

        Returns:
            The new residual [R, H].
        """

    def linear(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """[R, K] · weight[N, K]ᵀ by the same kernels; `out` [≥ R, N] may be used for the result."""


class TorchStack:
    """Blocks by torch operators: any device, any dtype, any number of rows.

    Args:
        shapes: one per block.
        blocks: their weights.
        inverse_frequencies: [rotary_dim / 2] fp32.
        rope_scale: factor on cosines and sines.
    """

    def __init__(
        self,
        shapes: Sequence[LlamaShape],
        blocks: Sequence[BlockWeights],
        inverse_frequencies: Tensor,
        rope_scale: float,
    ) -> None:
        self.shapes, self.blocks = tuple(shapes), tuple(blocks)
        self._frequencies, self._rope_scale = inverse_frequencies, rope_scale
        self.capacity = 0
        self.cos = self.sin = torch.empty(0)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions; what was cached is lost if the cache has to grow."""
        if capacity <= self.capacity:
            return
        self.capacity = -(-capacity // 256) * 256
        like = self.blocks[0].qkv
        angles = torch.arange(self.capacity)[:, None].float() * self._frequencies
        self.cos = (angles.cos() * self._rope_scale).to(like)
        self.sin = (angles.sin() * self._rope_scale).to(like)
        sizes = [(s.num_kv_heads, self.capacity, s.head_dim) for s in self.shapes]
        self.keys = [like.new_zeros(size) for size in sizes]
        self.values = [like.new_zeros(size) for size in sizes]

    def run(self, index: int, residual: Tensor, start: int, attention_input: Tensor | None = None) -> Tensor:
        """See `BlockStack.run`."""
        s, w = self.shapes[index], self.blocks[index]
        x = attention_input
        if w.input_norm is not None:
            x = torch.rms_norm(residual, (s.hidden,), w.input_norm, s.eps)
        assert x is not None, "a block without an input norm is given its attention's input"
        residual = residual + F.linear(self._attention(index, x, start), w.o)
        x = torch.rms_norm(residual, (s.hidden,), w.post_norm, s.eps)
        gate, up = F.linear(x, w.gate_up).chunk(2, -1)
        return residual + F.linear(F.silu(gate) * up, w.down)

    def linear(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """See `BlockStack.linear`."""
        return F.linear(x, weight)

    def _attention(self, index: int, x: Tensor, start: int) -> Tensor:
        s, w, rows, end = self.shapes[index], self.blocks[index], x.shape[0], start + x.shape[0]
        fused = F.linear(x, w.qkv, w.qkv_bias).view(rows, -1, s.head_dim).transpose(0, 1)
        q, k, v = torch.split(fused, [s.num_heads, s.num_kv_heads, s.num_kv_heads])
        if w.q_norm is not None and w.k_norm is not None:
            q = torch.rms_norm(q, (s.head_dim,), w.q_norm, s.eps)
            k = torch.rms_norm(k, (s.head_dim,), w.k_norm, s.eps)
        cos, sin = self.cos[start:end], self.sin[start:end]
        self.keys[index][:, start:end] = rotate(k, cos, sin)
        self.values[index][:, start:end] = v
        out = F.scaled_dot_product_attention(
            rotate(q, cos, sin)[None],
            self.keys[index][None, :, :end],
            self.values[index][None, :, :end],
            attn_mask=visible(start, rows, s.window, x.device),
            is_causal=start == 0 and rows > 1 and (s.window is None or rows <= s.window),
            enable_gqa=True,
        )
        return out[0].transpose(0, 1).reshape(rows, -1)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in the half-split pairing over the first 2 * cos.shape[-1] entries of [..., R, d]; cos, sin: [R, d' / 2]."""
    half = cos.shape[-1]
    a, b, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def visible(start: int, rows: int, window: int | None, device: torch.device) -> Tensor | None:
    """[R, start + R] bool mask of what each row sees; None where none is needed or `is_causal` says it."""
    within = window is None or start + rows <= window
    if within and (rows == 1 or start == 0):
        return None
    query = torch.arange(start, start + rows, device=device)[:, None]
    key = torch.arange(start + rows, device=device)
    mask = key <= query
    return mask if window is None else mask & (key > query - window)


class NativeStack:
    """Blocks by `cpu_kernels.c` for up to 8 rows (fp32, CPU); more rows go through torch into the same cache."""

    def __init__(self, stack: TorchStack, kernels: NativeKernels, num_threads: int) -> None:
        assert stack.blocks[0].qkv.dtype == torch.float32, "cpu_kernels.c computes in fp32"
        assert stack.blocks[0].qkv.device.type == "cpu", "cpu_kernels.c runs on the CPU"
        self._torch, self._kernels, self._threads = stack, kernels, num_threads
        self._addresses: list[tuple[int, int]] = []
        self._linear, self._block = kernels.linear, kernels.block

    def reserve(self, capacity: int) -> None:
        """See `BlockStack.reserve`."""
        if capacity > self._torch.capacity:
            self._torch.reserve(capacity)
            self._bind()

    def run(self, index: int, residual: Tensor, start: int, attention_input: Tensor | None = None) -> Tensor:
        """See `BlockStack.run`; up to 8 rows the residual is updated in place."""
        rows = residual.shape[0]
        if rows > MAX_ROWS:
            return self._torch.run(index, residual, start, attention_input)
        if attention_input is not None:
            self._normed[: attention_input.numel()] = attention_input.view(-1)
        shape, layer = self._addresses[index]
        self._block(shape, layer, self._scratch_address, residual.data_ptr(), rows, start, self._threads)
        return residual

    def linear(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """See `BlockStack.linear`."""
        rows, (n, k) = x.shape[0], weight.shape
        if rows > MAX_ROWS:
            return F.linear(x, weight)
        assert x.is_contiguous(), "cpu_kernels.c reads contiguous rows"
        assert weight.is_contiguous(), "cpu_kernels.c reads contiguous weights"
        # A fresh buffer of 49 152 logits would cost its page faults on every pass.
        out = torch.empty(rows, n) if out is None else out[:rows]
        self._linear(weight.data_ptr(), x.data_ptr(), out.data_ptr(), n, k, rows, self._threads)
        return out

    def _bind(self) -> None:
        """Write the addresses of weights, cache and scratch memory into C structures."""
        stack, shapes = self._torch, self._torch.shapes
        widest = max(max(s.in_width, s.hidden) for s in shapes)
        self._normed = torch.empty(MAX_ROWS * widest)
        buffers = {
            "normed": self._normed,
            "qkv": torch.empty(MAX_ROWS * max(s.qkv_width for s in shapes)),
            "attention": torch.empty(MAX_ROWS * max(s.num_heads * s.head_dim for s in shapes)),
            "gate_up": torch.empty(MAX_ROWS * 2 * max(s.intermediate for s in shapes)),
            "mlp": torch.empty(MAX_ROWS * max(s.intermediate for s in shapes)),
            "scores": torch.empty(self._threads * (stack.capacity + 8)),
            "cos": stack.cos,
            "sin": stack.sin,
        }
        self._scratch = ScratchStruct(**{name: tensor.data_ptr() for name, tensor in buffers.items()})
        self._shapes = [self._shape_struct(s) for s in shapes]
        self._layers = [self._layer_struct(i) for i in range(len(shapes))]
        self._scratch_address = ctypes.addressof(self._scratch)
        self._addresses = [
            (ctypes.addressof(s), ctypes.addressof(w)) for s, w in zip(self._shapes, self._layers, strict=True)
        ]
        self._alive = buffers  # C holds only addresses

    def _shape_struct(self, s: LlamaShape) -> ShapeStruct:
        return ShapeStruct(
            s.hidden, s.in_width, s.num_heads, s.num_kv_heads, s.head_dim, s.rotary_dim, s.intermediate,
            self._torch.capacity, s.window or 0, s.eps,
        )  # fmt: skip

    def _layer_struct(self, index: int) -> LayerStruct:
        w = self._torch.blocks[index]
        weights = (w.input_norm, w.qkv, w.qkv_bias, w.q_norm, w.k_norm, w.o, w.post_norm, w.gate_up, w.down)
        cache = (self._torch.keys[index], self._torch.values[index])
        for tensor in (*weights, *cache):
            assert tensor is None or tensor.is_contiguous(), "cpu_kernels.c reads contiguous weights"
        return LayerStruct(*(None if tensor is None else tensor.data_ptr() for tensor in (*weights, *cache)))


def fits_native(shape: LlamaShape) -> bool:
    """cpu_kernels.c works in vectors of 8 within a head and within the intermediate width."""
    return shape.head_dim % 8 == 0 and shape.intermediate % 8 == 0


def stack_for(stack: TorchStack, kernels: NativeKernels | None, num_threads: int) -> BlockStack:
    """Our own kernels where there are some and they fit, else torch's."""
    weight = stack.blocks[0].qkv
    fits = all(fits_native(s) for s in stack.shapes) and weight.dtype == torch.float32 and weight.device.type == "cpu"
    return NativeStack(stack, kernels, num_threads) if kernels is not None and fits else stack
