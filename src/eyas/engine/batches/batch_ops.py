"""The operations that a batched pass is made of, besides matrix products, and their reference in PyTorch.

`ReferenceBatchOps` runs on a CPU and reads every prompt; `batches.triton_batch_ops` has the same operations as CUDA
kernels. Tests compare the two. Nothing waits for the device but `ReferenceBatchOps.place` of a step.

Shapes: B sequences, M new rows of each, R = B * M rows, E hidden, N query heads, G key/value heads, D head width,
S slots, C capacity of a slot in positions, V vocabulary.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.decode.sampling import SamplingBatch, draw, token_probs
from eyas.engine.llama.block_stack import rotate
from eyas.engine.llama.llama_weights import BlockWeights, LlamaShape

# Eager attention reads up to the longest live length, rounded up: few different shapes keep allocations reusable.
_LENGTH_STEP = 64

if TYPE_CHECKING:
    from eyas.engine.batches.triton_batch_ops import TritonBatchOps


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlace:
    """Where the new rows of a pass stand; made by `ReferenceBatchOps.place`, the same for all layers.

    Attributes:
        lengths: [B] positions cached before the pass; row m of sequence b goes to position lengths[b] + m.
        num_new: M.
        cos, sin: [C, D / 2].
        slots: [B] where the sequences' caches are; None = sequence b in slot b.
        positions: [B, M]; mask: [B, 1, M, live] of what a row sees, or None for prompts from position 0. Eager only.
    """

    lengths: Tensor
    num_new: int
    cos: Tensor
    sin: Tensor
    slots: Tensor | None = None
    positions: Tensor | None = None
    mask: Tensor | None = None


class ReferenceBatchOps:
    """By torch operators: any device, any dtype."""

    def place(
        self, lengths: Tensor, num_new: int, rope: tuple[Tensor, Tensor], slots: Tensor | None = None
    ) -> CachePlace:
        """For M new rows after `lengths` [B]; rope: cosines and sines [C, D / 2].

        A slot may occur several times in `slots` [B], for pieces of one prompt: what a pass writes, its rows see.
        """
        capacity, device = rope[0].shape[0], lengths.device
        positions = (lengths[:, None] + torch.arange(num_new, device=device)).clamp(max=capacity - 1)
        longest = int(lengths.max()) + num_new
        live = min(capacity, -(-longest // _LENGTH_STEP) * _LENGTH_STEP)
        mask = torch.arange(live, device=device) <= positions[..., None]
        return CachePlace(
            lengths=lengths,
            num_new=num_new,
            cos=rope[0],
            sin=rope[1],
            positions=positions,
            slots=slots,
            mask=mask[:, None],
        )

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root mean square norm of [R, E]."""
        return torch.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`residual` [R, E] += x, in place; its norm."""
        residual += x
        return torch.rms_norm(residual, (x.shape[-1],), weight, eps)

    def turn(self, qkv: Tensor, shape: LlamaShape, block: BlockWeights, cache: Tensor, place: CachePlace) -> Tensor:
        """Turned queries [R, N * D]; turned keys, and values, into `cache` [2, S, G, C, D] at the rows' positions.

        Args:
            qkv: [R, (N + 2G) * D].
            shape: of the block.
            block: gives the norms of q and k, if any.
            cache: one layer's.
            place: of the rows; a position beyond the capacity is written to the last one.
        """
        assert place.positions is not None, "eager rows know their positions"
        num_turned = shape.num_heads + shape.num_kv_heads
        heads = qkv.view(*place.positions.shape, -1, shape.head_dim)
        turned, values = heads[:, :, :num_turned], heads[:, :, num_turned:]
        if block.q_norm is not None and block.k_norm is not None:
            q = torch.rms_norm(turned[:, :, : shape.num_heads], (shape.head_dim,), block.q_norm, shape.eps)
            k = torch.rms_norm(turned[:, :, shape.num_heads :], (shape.head_dim,), block.k_norm, shape.eps)
            turned = torch.cat((q, k), 2)
        cos, sin = place.cos[place.positions][:, :, None], place.sin[place.positions][:, :, None]
        turned = rotate(turned, cos, sin)
        slots = torch.arange(len(place.lengths), device=qkv.device) if place.slots is None else place.slots
        slots = slots[:, None]
        cache[0][slots, :, place.positions] = turned[:, :, shape.num_heads :]
        cache[1][slots, :, place.positions] = values
        return turned[:, :, : shape.num_heads].reshape(qkv.shape[0], -1)

    def attend(self, query: Tensor, shape: LlamaShape, cache: Tensor, place: CachePlace) -> Tensor:
        """[R, N * D]; row m of a sequence sees positions 0 … its length + m."""
        num, rows = len(place.lengths), place.num_new
        heads = query.view(num, rows, shape.num_kv_heads, -1, shape.head_dim).transpose(1, 2)
        if place.mask is None:
            out = _attend_prompts(heads, cache, place)
        else:
            # The query heads of a group stand as rows of one head: keys are not repeated in memory.
            group, live = heads.shape[3], place.mask.shape[-1]
            keys, values = (cache[:, :num] if place.slots is None else cache[:, place.slots])[:, :, :, :live]
            mask = place.mask if group == 1 else place.mask.repeat_interleave(group, 2)
            out = F.scaled_dot_product_attention(heads.flatten(2, 3), keys, values, attn_mask=mask).view(heads.shape)
        return out.transpose(1, 2).reshape(query.shape)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """[R, I] = silu(gate) * up of [R, 2I]."""
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up

    def draw(self, logits: Tensor, settings: SamplingBatch, uniform: Tensor) -> Tensor:
        """[R] a token per row of [R, V], by the row's settings and number in [0, 1)."""
        if settings.num_greedy == len(logits):
            return logits.argmax(-1)
        return draw(token_probs(logits, settings), uniform)


def place_prompts(slots: Tensor, longest: int, rope: tuple[Tensor, Tensor]) -> CachePlace:
    """For prompts [B, longest], padded on the right, that go to empty slots; eager operations only."""
    positions = torch.arange(longest, device=slots.device).expand(len(slots), -1)
    return CachePlace(
        lengths=torch.zeros_like(slots), num_new=longest, cos=rope[0], sin=rope[1], positions=positions, slots=slots
    )


def _attend_prompts(heads: Tensor, cache: Tensor, place: CachePlace) -> Tensor:
    """[B, G, M, N / G, D] of queries of the same shape, causal from position 0."""
    assert place.slots is not None, "prompts know their slots"
    num, num_kv, rows, group, width = heads.shape
    keys, values = (part[place.slots, :, : place.num_new] for part in cache)
    query = heads.transpose(2, 3).reshape(num, num_kv * group, rows, width)
    out = F.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    return out.view(num, num_kv, group, rows, width).transpose(2, 3)


# Both do the same: tests hold the kernels against the reference.
BatchOps = Union["ReferenceBatchOps", "TritonBatchOps"]  # imported for types only: it needs Triton
