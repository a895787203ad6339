"""A Llama-family target with many sequences in its cache, each with its own length: one pass, in reading order.

A pass reads M new rows of each of the first B slots (M = 1 for a step of plain decoding, K + 1 to verify K drafts), or
prompts into any slots.

Shapes: B sequences, M new rows of each, R = B * M rows, H hidden, S slots, C capacity of a slot in positions,
V vocabulary, A aux states.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.engine.batches.batch_ops import BatchOps, CachePlace, ReferenceBatchOps, place_prompts
from eyas.engine.llama.llama_weights import LlamaWeights

_CAPACITY_STEP = 64


def bytes_per_position(weights: LlamaWeights) -> int:
    """Cache bytes of one position of one sequence."""
    shape = weights.shape
    return 2 * len(weights.blocks) * shape.num_kv_heads * shape.head_dim * weights.head.element_size()


def rounded_capacity(positions: int) -> int:
    """Slot capacity, rounded up."""
    return -(-positions // _CAPACITY_STEP) * _CAPACITY_STEP


def upload(values: Sequence[object], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """A tensor on the device, without waiting for what the device is doing."""
    tensor = torch.tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """B pieces of prompts, M tokens each, in any number of slots.

    Attributes:
        tokens: [B, M]; what lies after a prompt's end is written to its slot and never read.
        slots: [B]; starts: [B] position of a piece's first token. Earlier pieces of a prompt come first.
    """

    tokens: Tensor
    slots: Tensor
    starts: Tensor


class BatchLlama:
    """Fused weights with a slotted cache.

    Args:
        weights: device and dtype are theirs.
        num_slots: S, most sequences at a time.
        capacity: C, rounded up.
        ops: of a pass over new rows.
        cache: [layers, 2, slots, G, C, D] to share with another model; None for a new one, whose extra last slot takes
            the padding of a pass.
    """

    def __init__(
        self,
        weights: LlamaWeights,
        num_slots: int,
        capacity: int,
        ops: BatchOps | None = None,
        cache: Tensor | None = None,
    ) -> None:
        assert weights.shape.window is None or weights.shape.window >= capacity, "batches have no sliding window"
        self.weights, self.num_slots = weights, num_slots
        self.capacity = rounded_capacity(capacity) if cache is None else cache.shape[4]
        self.ops: BatchOps = ops or ReferenceBatchOps()
        shape, head = weights.shape, weights.head
        size = (len(weights.blocks), 2, num_slots + 1, shape.num_kv_heads, self.capacity, shape.head_dim)
        self.cache = head.new_zeros(size) if cache is None else cache
        angles = torch.arange(self.capacity)[:, None].float() * weights.inverse_frequencies
        self._rope = ((angles.cos() * weights.rope_scale).to(head), (angles.sin() * weights.rope_scale).to(head))

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.weights.head.device

    @torch.inference_mode()
    def prefill(
        self, prompts: Sequence[Sequence[int]], slots: Sequence[int], aux_boundaries: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor]:
        """Read prompts into empty slots, eagerly; a prompt that occurs twice is read once.

        Returns:
            [B, V] logits after each, and aux states [B, T, A * H], T the longest prompt.
        """
        different: dict[tuple[int, ...], int] = {}
        which = [different.setdefault(tuple(prompt), len(different)) for prompt in prompts]
        first_slots = dict(zip(reversed(which), reversed(slots), strict=True))
        read = self._read(list(different), [first_slots[i] for i in range(len(different))], aux_boundaries)
        if len(different) == len(prompts):
            return read
        copies = [(first_slots[i], slot) for i, slot in zip(which, slots, strict=True) if first_slots[i] != slot]
        sources, targets = zip(*copies, strict=True)
        self.move(sources, targets, max(map(len, prompts)))
        where = upload(which, self.device)
        return read[0][where], read[1][where]

    def _read(
        self, prompts: Sequence[Sequence[int]], slots: Sequence[int], aux_boundaries: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        longest = max(map(len, prompts))
        padded = [[*p, *[0] * (longest - len(p))] for p in prompts]  # never seen: attention is causal
        ends = upload([row * longest + len(p) - 1 for row, p in enumerate(prompts)], self.device)
        place = place_prompts(upload(slots, self.device), longest, self._rope)
        width = len(aux_boundaries) * self.weights.shape.hidden
        aux_states = self.weights.head.new_empty(len(prompts) * longest, width)
        ids = upload(padded, self.device).flatten()
        normed = self._pass(ReferenceBatchOps(), ids, place, aux_boundaries, aux_states)
        return F.linear(normed[ends], self.weights.head), aux_states.view(len(prompts), longest, width)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor,
        aux_boundaries: Sequence[int] = (),
        aux_states: Tensor | None = None,
    ) -> Tensor:
        """Read M tokens more in each of the first B slots.

        Args:
            tokens: [B, M].
            lengths: [B] positions cached so far.
            aux_boundaries: A, ascending or not.
            aux_states: [R, A * H], written.

        Returns:
            [R, V] logits.
        """
        place = self.ops.place(lengths, tokens.shape[1], self._rope)
        normed = self._pass(self.ops, tokens.flatten(), place, aux_boundaries, aux_states)
        return F.linear(normed, self.weights.head)

    @torch.inference_mode()
    def read(
        self,
        pieces: Pieces,
        ends: Tensor,
        aux_boundaries: Sequence[int] = (),
        aux_states: Tensor | None = None,
    ) -> Tensor:
        """Read pieces of prompts.

        Args:
            pieces: B of them, of M tokens.
            ends: [E] rows among R = B * M whose logits are wanted.
            aux_boundaries, aux_states: as for `forward`.

        Returns:
            [E, V] logits.
        """
        place = self.ops.place(pieces.starts, pieces.tokens.shape[1], self._rope, pieces.slots)
        normed = self._pass(self.ops, pieces.tokens.flatten(), place, aux_boundaries, aux_states)
        return F.linear(normed[ends], self.weights.head)

    def _pass(
        self, ops: BatchOps, ids: Tensor, place: CachePlace, aux_boundaries: Sequence[int], aux_states: Tensor | None
    ) -> Tensor:
        """[R, H] after the final norm."""
        taps: dict[int, list[int]] = {}
        for slot, boundary in enumerate(aux_boundaries):
            taps.setdefault(boundary, []).append(slot)
        blocks, shape, eps = self.weights.blocks, self.weights.shape, self.weights.shape.eps
        norms = [*(block.input_norm for block in blocks), self.weights.norm]
        residual = F.embedding(ids, self.weights.embedding)
        _tap(taps.get(0), residual, aux_states)
        assert norms[0] is not None, "a target's blocks have an input norm"
        x = ops.norm(residual, norms[0], eps)
        for index, block in enumerate(blocks):
            cache, next_norm = self.cache[index], norms[index + 1]
            assert next_norm is not None, "a target's blocks have an input norm"
            query = ops.turn(F.linear(x, block.qkv, block.qkv_bias), shape, block, cache, place)
            attended = ops.attend(query, shape, cache, place)
            x = ops.add_norm(residual, F.linear(attended, block.o), block.post_norm, eps)
            inner = ops.swiglu(F.linear(x, block.gate_up))
            x = ops.add_norm(residual, F.linear(inner, block.down), next_norm, eps)
            _tap(taps.get(index + 1), residual, aux_states)
        return x

    @torch.inference_mode()
    def move(self, sources: Sequence[int], to: Sequence[int], length: int) -> None:
        """Copy sequences of at most `length` positions into other slots; no slot may be both source and destination."""
        source_slots, to_slots = upload(sources, self.device), upload(to, self.device)
        self.cache[:, :, to_slots, :, :length] = self.cache[:, :, source_slots, :, :length]


def _tap(indices: list[int] | None, residual: Tensor, aux_states: Tensor | None) -> None:
    for index in indices or ():
        assert aux_states is not None, "tapped states need a place to go to"
        width = residual.shape[1]
        aux_states[:, index * width : (index + 1) * width] = residual
