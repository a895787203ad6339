"""Decoder blocks by `cpu_kernels.c`: fp32 on a CPU, 8 rows at a time; prompts go through torch.

Shapes: R rows (new positions), H hidden.
"""

import ctypes
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.decode.tree_rows import TreeRows
from eyas.engine.llama.block_stack import BlockStack, TorchStack
from eyas.engine.llama.llama_weights import LlamaShape
from eyas.engine.llama.native import MAX_ROWS, LayerStruct, NativeKernels, ScratchStruct, ShapeStruct, TreeStruct

# More rows than this are a prompt: a library's matrix product, which reads weights once for all of them, is faster.
_MOST_ROWS = 2 * MAX_ROWS


class NativeStack:
    """A `BlockStack` whose cache is that of a `TorchStack`: either may write it, the other reads on.

    Args:
        stack: weights and cache.
        kernels: the compiled library.
        num_threads: of the kernels; more than idle cores makes them wait for each other.
    """

    def __init__(self, stack: TorchStack, kernels: NativeKernels, num_threads: int) -> None:
        assert stack.blocks[0].qkv.dtype == torch.float32, "cpu_kernels.c computes in fp32"
        assert stack.blocks[0].qkv.device.type == "cpu", "cpu_kernels.c runs on the CPU"
        self._torch, self._linear, self._blocks = stack, kernels.linear, kernels.blocks
        self.num_threads = num_threads

    def reserve(self, capacity: int) -> None:
        """See `BlockStack.reserve`."""
        if capacity > self._torch.capacity:
            self._torch.reserve(capacity)
            self._bind()

    def run(
        self,
        blocks: range,
        residual: Tensor,
        start: int,
        attention_input: Tensor | None = None,
        tree: TreeRows | None = None,
    ) -> Tensor:
        """See `BlockStack.run`; short runs of rows go 8 at a time, and the residual is updated in place."""
        rows = residual.shape[0]
        if rows > _MOST_ROWS:
            return self._torch.run(blocks, residual, start, attention_input, tree)
        assert residual.is_contiguous(), "cpu_kernels.c reads contiguous rows"
        for first in range(0, rows, MAX_ROWS):
            some = slice(first, first + MAX_ROWS)
            given = None if attention_input is None else attention_input[some]
            self._run(blocks, residual[some], start + first, given, _TreeTables(tree, some) if tree else None)
        return residual

    def keep(self, slots: Sequence[int], start: int) -> None:
        """See `BlockStack.keep`."""
        self._torch.keep(slots, start)

    def _run(
        self,
        blocks: range,
        residual: Tensor,
        start: int,
        attention_input: Tensor | None,
        tree: "_TreeTables | None",
    ) -> None:
        end, capacity = start + residual.shape[0], self._torch.capacity
        assert end <= capacity, f"the cache holds {capacity} positions, not {end}: C would write beyond it"
        at = blocks.start * ctypes.sizeof(ctypes.c_void_p)
        self._blocks(
            self._shapes_address + at,
            self._layers_address + at,
            len(blocks),
            self._scratch_address,
            None if attention_input is None else attention_input.data_ptr(),
            residual.data_ptr(),
            residual.shape[0],
            start,
            None if tree is None else tree.address,
            self.num_threads,
        )

    def linear(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """See `BlockStack.linear`."""
        rows, (n, k) = x.shape[0], weight.shape
        if rows > _MOST_ROWS:
            return F.linear(x, weight)
        assert x.shape[1] == k, f"cpu_kernels.c reads {k} numbers of a row, but the row has {x.shape[1]}"
        assert x.is_contiguous(), "cpu_kernels.c reads contiguous rows"
        assert weight.is_contiguous(), "cpu_kernels.c reads contiguous weights"
        # A fresh buffer of 49 152 logits would cost its page faults on every pass.
        out = torch.empty(rows, n) if out is None or rows > out.shape[0] else out[:rows]
        for first in range(0, rows, MAX_ROWS):
            few, result = x[first : first + MAX_ROWS], out[first : first + MAX_ROWS]
            self._linear(weight.data_ptr(), few.data_ptr(), result.data_ptr(), n, k, len(few), self.num_threads)
        return out

    def _bind(self) -> None:
        """Write the addresses of weights, cache and scratch memory into C structures."""
        stack, shapes = self._torch, self._torch.shapes
        normed_stride = MAX_ROWS * max(s.hidden for s in shapes)
        buffers = {
            "normed": torch.empty(self.num_threads * normed_stride),
            "qkv": torch.empty(MAX_ROWS * max(s.qkv_width for s in shapes)),
            "attention": torch.empty(MAX_ROWS * max(s.num_heads * s.head_dim for s in shapes)),
            "gate_up": torch.empty(MAX_ROWS * 2 * max(s.intermediate for s in shapes)),
            "mlp": torch.empty(MAX_ROWS * max(s.intermediate for s in shapes)),
            "scores": torch.empty(self.num_threads * (stack.capacity + 8)),
            "cos": stack.cos,
            "sin": stack.sin,
        }
        addresses = {name: tensor.data_ptr() for name, tensor in buffers.items()}
        scratch = ScratchStruct(**addresses, normed_stride=normed_stride)
        structs = [self._shape_struct(s) for s in shapes], [self._layer_struct(i) for i in range(len(shapes))]
        tables = [(ctypes.c_void_p * len(shapes))(*map(ctypes.addressof, column)) for column in structs]
        self._shapes_address, self._layers_address = map(ctypes.addressof, tables)
        self._scratch_address = ctypes.addressof(scratch)
        self._alive = (buffers, scratch, structs, tables)  # C holds only addresses

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


class _TreeTables:
    """Some rows of a tree as cpu_kernels.c reads them; they hold as long as this object lives."""

    def __init__(self, tree: TreeRows, some: slice) -> None:
        paths = tree.paths[some]
        stride = max(map(len, paths))
        depth = (ctypes.c_long * len(paths))(*map(len, paths))
        slots = (ctypes.c_long * (len(paths) * stride))()
        for row, path in enumerate(paths):
            slots[row * stride : row * stride + len(path)] = list(path)
        struct = TreeStruct(tree.base, stride, ctypes.addressof(depth), ctypes.addressof(slots))
        self.address = ctypes.addressof(struct)
        self._alive = (depth, slots, struct)


def fits_native(shape: LlamaShape) -> bool:
    """cpu_kernels.c works in vectors of 8 within a head and within the intermediate width."""
    return shape.head_dim % 8 == 0 and shape.intermediate % 8 == 0


def stack_for(stack: TorchStack, kernels: NativeKernels | None, num_threads: int) -> BlockStack:
    """Our own kernels where there are some and they fit, else torch's."""
    weight = stack.blocks[0].qkv
    fits = all(fits_native(s) for s in stack.shapes) and weight.dtype == torch.float32 and weight.device.type == "cpu"
    return NativeStack(stack, kernels, num_threads) if kernels is not None and fits else stack
