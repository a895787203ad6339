"""Decoder blocks with their key/value cache: the interface, and its form by torch operators.

Shapes: R rows (new positions), H hidden, N query heads, M key/value heads, d head width, C capacity in positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.decode.tree_rows import TreeRows
from eyas.engine.llama.llama_weights import BlockWeights, LlamaShape
from eyas.errors import ExitCode, EyasError


class CacheTooLarge(EyasError):
    """Prompt and longest answer do not fit the memory."""

    code = "cache-too-large"
    exit_code = ExitCode.ENVIRONMENT


class BlockStack(Protocol):
    """Runs blocks over new positions and keeps their keys and values."""

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions; the cache loses its contents if it has to grow.

        Raises:
            CacheTooLarge: the memory is not enough.
        """

    def run(
        self,
        blocks: range,
        residual: Tensor,
        start: int,
        attention_input: Tensor | None = None,
        tree: TreeRows | None = None,
    ) -> Tensor:
        """Consecutive blocks over R rows at positions start … start + R - 1.

        Args:
            blocks: indices, ascending by one.
            residual: [R, H]; may be updated in place.
            attention_input: [R, in_width], for a first block without an input norm of its own.
            tree: the rows are nodes of a tree: `start` is only where the cache has room for them.

        Returns:
            The new residual [R, H].
        """

    def keep(self, slots: Sequence[int], start: int) -> None:
        """Move the entries of these cache slots, ascending, to start, start + 1, …"""

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
        """See `BlockStack.reserve`."""
        if capacity <= self.capacity:
            return
        wanted = -(-capacity // 256) * 256
        # The old caches go first, since both may not fit; the capacity is 0 until the new ones are there.
        self.capacity, self.keys, self.values = 0, [], []
        like = self.blocks[0].post_norm  # plain also where the matrices are quantised
        sizes = [(s.num_kv_heads, wanted, s.head_dim) for s in self.shapes]
        try:
            angles = torch.arange(wanted)[:, None].float() * self._frequencies
            self.cos = (angles.cos() * self._rope_scale).to(like)
            self.sin = (angles.sin() * self._rope_scale).to(like)
            self.keys = [like.new_zeros(size) for size in sizes]
            self.values = [like.new_zeros(size) for size in sizes]
        except (MemoryError, RuntimeError) as error:
            raise CacheTooLarge(
                f"there is not enough memory for a cache of {wanted} positions",
                str(like.device),
                str(error).splitlines()[0],
                "ask for a shorter answer (max_new_tokens), or give a shorter prompt",
            ) from error
        self.capacity = wanted

    def run(
        self,
        blocks: range,
        residual: Tensor,
        start: int,
        attention_input: Tensor | None = None,
        tree: TreeRows | None = None,
    ) -> Tensor:
        """See `BlockStack.run`."""
        place = _place(start, residual, tree, {self.shapes[i].window for i in blocks})
        for index in blocks:
            residual = self._block(index, residual, place, attention_input)
        return residual

    def keep(self, slots: Sequence[int], start: int) -> None:
        """See `BlockStack.keep`."""
        if list(slots) == list(range(start, start + len(slots))):
            return
        chosen = torch.tensor(slots, device=self.keys[0].device)
        for cache in (*self.keys, *self.values):
            cache[:, start : start + len(slots)] = cache.index_select(1, chosen)

    def _block(self, index: int, residual: Tensor, place: "_Place", attention_input: Tensor | None) -> Tensor:
        s, w = self.shapes[index], self.blocks[index]
        x = attention_input
        if w.input_norm is not None:
            x = torch.rms_norm(residual, (s.hidden,), w.input_norm, s.eps)
        assert x is not None, "a block without an input norm is given its attention's input"
        residual = residual + F.linear(self._attention(index, x, place), w.o)
        x = torch.rms_norm(residual, (s.hidden,), w.post_norm, s.eps)
        gate, up = F.linear(x, w.gate_up).chunk(2, -1)
        return residual + F.linear(F.silu(gate) * up, w.down)

    def linear(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """See `BlockStack.linear`."""
        return F.linear(x, weight)

    def _attention(self, index: int, x: Tensor, place: "_Place") -> Tensor:
        s, w, rows, start, end = self.shapes[index], self.blocks[index], x.shape[0], place.start, place.end
        fused = F.linear(x, w.qkv, w.qkv_bias).view(rows, -1, s.head_dim).transpose(0, 1)
        q, k, v = torch.split(fused, [s.num_heads, s.num_kv_heads, s.num_kv_heads])
        if w.q_norm is not None and w.k_norm is not None:
            q = torch.rms_norm(q, (s.head_dim,), w.q_norm, s.eps)
            k = torch.rms_norm(k, (s.head_dim,), w.k_norm, s.eps)
        cos, sin = self.cos[place.positions], self.sin[place.positions]
        self.keys[index][:, start:end] = rotate(k, cos, sin)
        self.values[index][:, start:end] = v
        out = F.scaled_dot_product_attention(
            rotate(q, cos, sin)[None],
            self.keys[index][None, :, :end],
            self.values[index][None, :, :end],
            attn_mask=place.masks[s.window],
            is_causal=place.masks[s.window] is None and start == 0 and rows > 1,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1).reshape(rows, -1)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where R new rows go and what they see.

    Attributes:
        start, end: their slots in the cache, end excluded.
        positions: a slice, or [R] in a tree.
        masks: window -> [R, end] bool; None if no mask is needed or `is_causal` replaces it.
    """

    start: int
    end: int
    positions: slice | Tensor
    masks: dict[int | None, Tensor | None]


def _place(start: int, residual: Tensor, tree: TreeRows | None, windows: set[int | None]) -> _Place:
    rows, device = residual.shape[0], residual.device
    if tree is None:
        masks = {window: visible(start, rows, window, device) for window in windows}
        return _Place(start, start + rows, slice(start, start + rows), masks)
    tree_masks: dict[int | None, Tensor | None] = {window: tree.mask(window, device) for window in windows}
    return _Place(start, start + rows, torch.tensor(tree.positions, device=device), tree_masks)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in the half-split pairing over the first 2 * cos.shape[-1] entries of [..., R, d]; cos, sin: [R, d' / 2]."""
    half = cos.shape[-1]
    a, b, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def visible(start: int, rows: int, window: int | None, device: torch.device) -> Tensor | None:
    """[R, start + R] bool mask of what each row sees; None if no mask is needed or `is_causal` replaces it."""
    within = window is None or start + rows <= window
    if within and (rows == 1 or start == 0):
        return None
    query = torch.arange(start, start + rows, device=device)[:, None]
    key = torch.arange(start + rows, device=device)
    mask = key <= query
    return mask if window is None else mask & (key > query - window)
