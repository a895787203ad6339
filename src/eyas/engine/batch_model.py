"""A Llama-family target with many sequences in its cache, each with its own length. Plain decoding only.

Active sequences always fill the first slots of the cache, so that a step works on one dense block of it.

Shapes: B sequences, T positions, H hidden, N query heads, M key/value heads, d head width, S slots, C capacity of a
slot in positions, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.engine.block_stack import rotate
from eyas.engine.llama_weights import BlockWeights, LlamaWeights

# A step attends to the longest live length, rounded up: few different shapes keep kernels and allocations reusable.
_LENGTH_STEP = 64


def bytes_per_position(weights: LlamaWeights) -> int:
    """Cache bytes of one position of one sequence."""
    shape = weights.shape
    return 2 * len(weights.blocks) * shape.num_kv_heads * shape.head_dim * weights.head.element_size()


class BatchLlama:
    """Fused weights with a slotted cache.

    Args:
        weights: device and dtype are theirs.
        num_slots: S, most sequences at a time.
        capacity: C.
    """

    def __init__(self, weights: LlamaWeights, num_slots: int, capacity: int) -> None:
        assert weights.shape.window is None or weights.shape.window >= capacity, "batches have no sliding window"
        self.weights, self.num_slots = weights, num_slots
        self.capacity = -(-capacity // _LENGTH_STEP) * _LENGTH_STEP
        shape, head = weights.shape, weights.head
        size = (len(weights.blocks), num_slots, shape.num_kv_heads, self.capacity, shape.head_dim)
        self._keys, self._values = head.new_zeros(size), head.new_zeros(size)
        angles = torch.arange(self.capacity)[:, None].float() * weights.inverse_frequencies
        self._cos = (angles.cos() * weights.rope_scale).to(head)
        self._sin = (angles.sin() * weights.rope_scale).to(head)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.weights.head.device

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]], first_slot: int) -> Tensor:
        """Read prompts into slots first_slot, first_slot + 1 …; [B, V] logits after each."""
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        longest = max(map(len, prompts))
        padded = [[*p, *[0] * (longest - len(p))] for p in prompts]  # never seen: attention is causal
        slots = slice(first_slot, first_slot + len(prompts))
        residual = F.embedding(torch.tensor(padded, device=self.device), self.weights.embedding)
        cos, sin = self._cos[:longest], self._sin[:longest]
        for index, block in enumerate(self.weights.blocks):
            q, k, v = self._project(block, residual, cos, sin)
            self._keys[index, slots, :, :longest] = k
            self._values[index, slots, :, :longest] = v
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            residual = self._finish(block, residual, out)
        last = residual[torch.arange(len(prompts), device=self.device), lengths - 1]
        return self._head(last)

    @torch.inference_mode()
    def step(self, ids: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Read one id more in each of the first B slots.

        Args:
            ids: [B].
            lengths: [B] positions cached so far; the id goes to that position.
            longest: max of `lengths`, known to the caller without asking the device.

        Returns:
            [B, V] logits.
        """
        num, shape = ids.shape[0], self.weights.shape
        live = min(self.capacity, -(-(longest + 1) // _LENGTH_STEP) * _LENGTH_STEP)
        rows = torch.arange(num, device=self.device)
        mask = (torch.arange(live, device=self.device) <= lengths[:, None])[:, None, None]
        cos, sin = self._cos[lengths][:, None, None], self._sin[lengths][:, None, None]
        residual = F.embedding(ids, self.weights.embedding)[:, None]
        group = shape.num_heads // shape.num_kv_heads
        for index, block in enumerate(self.weights.blocks):
            q, k, v = self._project(block, residual, cos, sin)
            keys, values = self._keys[index], self._values[index]
            keys[rows, :, lengths] = k[:, :, 0]
            values[rows, :, lengths] = v[:, :, 0]
            # The query heads of a group stand as rows of one head: keys are not repeated in memory.
            grouped = q.reshape(num, shape.num_kv_heads, group, shape.head_dim)
            out = F.scaled_dot_product_attention(grouped, keys[:num, :, :live], values[:num, :, :live], attn_mask=mask)
            residual = self._finish(block, residual, out.reshape(num, shape.num_heads, 1, shape.head_dim))
        return self._head(residual[:, 0])

    def move(self, source: int, to: int, length: int) -> None:
        """Copy a sequence of `length` positions into another slot."""
        self._keys[:, to, :, :length] = self._keys[:, source, :, :length]
        self._values[:, to, :, :length] = self._values[:, source, :, :length]

    def _project(self, w: BlockWeights, residual: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q [B, N, T, d], rotated k and v [B, M, T, d]."""
        s = self.weights.shape
        assert w.input_norm is not None, "a target's blocks have an input norm"
        x = torch.rms_norm(residual, (s.hidden,), w.input_norm, s.eps)
        fused = F.linear(x, w.qkv, w.qkv_bias).view(*x.shape[:2], -1, s.head_dim).transpose(1, 2)
        qk, v = torch.split(fused, [s.num_heads + s.num_kv_heads, s.num_kv_heads], dim=1)
        if w.q_norm is not None and w.k_norm is not None:
            q = torch.rms_norm(qk[:, : s.num_heads], (s.head_dim,), w.q_norm, s.eps)
            k = torch.rms_norm(qk[:, s.num_heads :], (s.head_dim,), w.k_norm, s.eps)
            qk = torch.cat((q, k), 1)
        qk = rotate(qk, cos, sin)  # both at once: on a GPU a step is bound by the number of kernels
        return qk[:, : s.num_heads], qk[:, s.num_heads :], v

    def _finish(self, w: BlockWeights, residual: Tensor, attended: Tensor) -> Tensor:
        """[B, T, H] after the block, from attention's output [B, N, T, d]."""
        s = self.weights.shape
        residual = residual + F.linear(attended.transpose(1, 2).flatten(2), w.o)
        x = torch.rms_norm(residual, (s.hidden,), w.post_norm, s.eps)
        gate, up = F.linear(x, w.gate_up).chunk(2, -1)
        return residual + F.linear(F.silu(gate) * up, w.down)

    def _head(self, residual: Tensor) -> Tensor:
        s = self.weights.shape
        return F.linear(torch.rms_norm(residual, (s.hidden,), self.weights.norm, s.eps), self.weights.head)
