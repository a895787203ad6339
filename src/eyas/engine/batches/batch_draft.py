"""An EAGLE-3 draft with many sequences in its cache, each with its own length; row = cache slot.

Takes the drafts of the fused single-stream path, but for sliding windows. Same values as `eagle_draft.FusedDraft`.

Shapes: B sequences, M new rows of each, R = B * M rows, H draft hidden, A aux states, Ht target hidden, D draft
vocabulary, S slots, C capacity of a slot.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.engine.batches.batch_llama import Pieces, rounded_capacity, upload
from eyas.engine.batches.batch_ops import BatchOps, CachePlace, ReferenceBatchOps, place_prompts
from eyas.engine.cuda_graphs import FastPathUnsupported
from eyas.engine.eagle_draft import fused_blocks, vocab_index, why_not_fused
from eyas.models.draft import Eagle3Draft
from eyas.models.rope import inverse_frequencies


def why_not_batched(spec: DraftSpec) -> str | None:
    """Why a draft cannot run in batches; None if it can."""
    if spec.sliding_window is not None:
        return "its attention has a sliding window"
    return why_not_fused(spec)


def require_batched(spec: DraftSpec) -> None:
    """Raise `FastPathUnsupported` where `why_not_batched` has a reason."""
    reason = why_not_batched(spec)
    if reason is not None:
        raise FastPathUnsupported(
            "this draft cannot speculate in batches",
            "draft",
            reason,
            "decode one stream at a time (eyas bench without --batch), or serve it with SGLang or vLLM",
        )


def draft_bytes_per_position(draft: Eagle3Draft) -> int:
    """Cache bytes of one position of one sequence."""
    spec = draft.spec
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * draft.dtype.itemsize


class BatchDraft:
    """Fused weights with a slotted cache.

    Args:
        draft: dtype and device are its own.
        num_slots: S.
        capacity: C, rounded up.
        ops: of a pass over new rows.

    One slot more than asked for, the last, is there for what only pads a pass.

    Raises:
        FastPathUnsupported: see `why_not_batched`.
    """

    def __init__(self, draft: Eagle3Draft, num_slots: int, capacity: int, ops: BatchOps | None = None) -> None:
        require_batched(draft.spec)
        self._draft, self.spec, self.ops = draft, draft.spec, ops or ReferenceBatchOps()
        self.vocab_index = vocab_index(draft)
        self._shapes, self._blocks = fused_blocks(draft)
        self.capacity = rounded_capacity(capacity)
        self._embedding = draft.embedding_weight.detach().to(draft.dtype)
        self._head = draft.head_weight.detach().to(draft.dtype).contiguous()
        first = draft.layers[0].state_dict()
        self._embedding_norm = first["input_layernorm.weight"].detach()
        self._state_norm, self._last_norm = first["hidden_norm.weight"].detach(), draft.norm.weight.detach()
        sizes = [(2, num_slots + 1, s.num_kv_heads, self.capacity, s.head_dim) for s in self._shapes]
        self.caches = [self._head.new_zeros(size) for size in sizes]
        frequencies, scale = inverse_frequencies(self.spec.rope, self.spec.head_dim, self.spec.max_position_embeddings)
        angles = torch.arange(self.capacity)[:, None].float() * frequencies
        self._rope = ((angles.cos() * scale).to(self._head), (angles.sin() * scale).to(self._head))

    @torch.inference_mode()
    def prefill(
        self, next_ids: Sequence[Sequence[int]], slots: Sequence[int], aux_states: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Read prompts.

        Args:
            next_ids: per prompt its ids from the second on.
            slots: where to.
            aux_states: [B, T, A * Ht] of the target, T the longest prompt.
            first: [B] the token that follows each prompt.

        Returns:
            The draft's offer for the token after `first`: its id [B] in target ids, and the state [B, H] that the next
            step starts from.
        """
        device, longest = aux_states.device, aux_states.shape[1]
        ends = upload([row * longest + len(ids) for row, ids in enumerate(next_ids)], device)
        padded = upload([[*ids, *[0] * (longest - len(ids))] for ids in next_ids], device).flatten()
        tokens = padded.index_copy(0, ends, first)
        place = place_prompts(upload(slots, device), longest, self._rope)
        states = self._pass(ReferenceBatchOps(), tokens, self._draft.fuse(aux_states.flatten(0, 1)), place, ends)
        return self._offer(states)

    @torch.inference_mode()
    def read(self, next_ids: Tensor, aux_states: Tensor, lengths: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Read what the target has verified.

        Args:
            next_ids: [B, M] the target's own token after each row.
            aux_states: [R, A * Ht].
            lengths: [B] read so far.
            rows: [B] among R: whose offer is wanted.

        Returns:
            As `prefill`.
        """
        place = self.ops.place(lengths, next_ids.shape[1], self._rope)
        states = self._pass(self.ops, next_ids.flatten(), self._draft.fuse(aux_states), place, rows)
        return self._offer(states)

    @torch.inference_mode()
    def read_pieces(self, pieces: Pieces, aux_states: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Read pieces of prompts; `pieces.tokens` are the next ids. The offers of `rows` [E], as `prefill`."""
        place = self.ops.place(pieces.starts, pieces.tokens.shape[1], self._rope, pieces.slots)
        states = self._pass(self.ops, pieces.tokens.flatten(), self._draft.fuse(aux_states), place, rows)
        return self._offer(states)

    @torch.inference_mode()
    def step(self, tokens: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Draft one token more, from the draft's own state [B, H]; as `prefill`."""
        place = self.ops.place(lengths, 1, self._rope)
        return self._offer(self._pass(self.ops, tokens, states, place, None))

    def move(self, sources: Sequence[int], to: Sequence[int], length: int) -> None:
        """Copy sequences of at most `length` positions into other slots."""
        device = self._head.device
        source_slots, to_slots = upload(sources, device), upload(to, device)
        for cache in self.caches:
            cache[:, to_slots, :, :length] = cache[:, source_slots, :, :length]

    def _pass(self, ops: BatchOps, ids: Tensor, g: Tensor, place: CachePlace, rows: Tensor | None) -> Tensor:
        """[R, H] after the last block; only of `rows`, if given."""
        eps = self.spec.rms_norm_eps
        normed_g = ops.norm(g, self._state_norm, eps)
        x = torch.cat((ops.norm(F.embedding(ids, self._embedding), self._embedding_norm, eps), normed_g), -1)
        residual = normed_g if self.spec.residual == "post-norm" else g.clone()
        for index, (shape, block) in enumerate(zip(self._shapes, self._blocks, strict=True)):
            if block.input_norm is not None:
                x = ops.norm(residual, block.input_norm, eps)
            query = ops.turn(F.linear(x, block.qkv, block.qkv_bias), shape, block, self.caches[index], place)
            attended = ops.attend(query, shape, self.caches[index], place)
            if rows is not None and index == len(self._blocks) - 1:
                attended, residual = attended[rows], residual[rows]  # no row attends to the others' outputs
            x = ops.add_norm(residual, F.linear(attended, block.o), block.post_norm, eps)
            residual = residual + F.linear(ops.swiglu(F.linear(x, block.gate_up)), block.down)
        return residual

    def _offer(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.ops.norm(residual, self._last_norm, self.spec.rms_norm_eps)
        best = F.linear(normed, self._head).argmax(-1)
        chosen = best if self.vocab_index is None else self.vocab_index[best]
        return chosen, normed if self.spec.feedback == "post-norm" else residual
