"""The draft unrolled over packed rows, with gradients: what `Eagle3Draft.ttt_steps` computes, arranged for speed.

Two ways to the same states. `FusedUnroll` takes common drafts (grouped-query attention, no biases, full RoPE): it
multiplies by matrices cast once per optimiser step, and projects the embedding's half of layer 0's input once for all
steps, since step j reads it j positions later. `ModuleUnroll`, the reference, runs the modules as they are, on padded
rows, and takes every draft. Shapes: T positions, K steps, N teacher rows, H draft hidden.
"""

from collections.abc import Sequence
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.models.draft import Eagle3Draft
from eyas.models.draft_layer import DraftLayer
from eyas.models.rope import inverse_frequencies
from eyas.models.states import from_padded, to_padded
from eyas.train.config import TrainConfigInvalid
from eyas.train.rows.packing import Packed
from eyas.train.step.compute_weights import ComputeWeight, linear, swiglu_linear
from eyas.train.step.dropping import FeedbackDropping
from eyas.train.step.packed_target import angle_table
from eyas.train.step.row_gradients import UnrolledAttention, add_rms_norm, pick_rows, rms_norm, rope_split
from eyas.train.step.row_ops import Angles, HeadCounts


class Unroll(Protocol):
    """A draft in training.

    Attributes:
        head: the matrix that the loss multiplies by.
        pads: whether rows are padded to the longest of the micro-batch.
    """

    head: ComputeWeight
    pads: bool

    def refresh(self) -> None:
        """Read the weights again after an update."""

    def states(self, packed: Packed, aux: Tensor) -> Tensor:
        """[K, N, H] after the final norm, at `packed.picks`; differentiable."""

    def publish(self) -> None:
        """Add all gradients to the draft's parameters."""


def make_unroll(
    draft: Eagle3Draft, num_steps: int, dtype: torch.dtype, *, is_fused: bool = True, dropped_share: float = 0.0
) -> Unroll:
    """The fused path where it is wanted and can compute `draft`, else its modules; computes in `dtype`.

    Args:
        dropped_share: see `FeedbackDropping`; the modules know none.
    """
    why_not = why_not_fused(draft.spec) if is_fused else "--unroll modules"
    if why_not is None:
        return FusedUnroll(draft, num_steps, dtype, dropped_share)
    if dropped_share:
        raise TrainConfigInvalid(
            "this draft's feedback cannot be dropped",
            f"--feedback-dropout {dropped_share:g}",
            f"only the fused step can, and it does not compute this draft: {why_not}",
            "leave --feedback-dropout out",
        )
    return ModuleUnroll(draft, num_steps, dtype)


def why_not_fused(spec: DraftSpec) -> str | None:
    """Why the fused path cannot compute a draft; None where it can."""
    reasons = {
        "its attention is latent": spec.draft_class != "gqa",
        "it has norms of queries and keys": spec.qk_norm,
        "it has biases": spec.attention_bias or spec.mlp_bias or spec.fc_bias or _has_output_bias(spec),
        "its attention slides": spec.sliding_window is not None,
        "its RoPE is partial or interleaved": spec.rope.interleaved or spec.rope.partial_rotary_factor != 1.0,
        f"its activation is {spec.activation}": spec.activation not in ("silu", "swish"),
    }
    return next((reason for reason, is_so in reasons.items() if is_so), None)


def _has_output_bias(spec: DraftSpec) -> bool:
    return any(name.endswith("self_attn.o_proj.bias") for name in spec.tensors)


class _LayerWeights:
    """Matrices of one layer. Layer 0 reads [embedding, state]: its q, k, v are cut into those two halves."""

    def __init__(self, layer: DraftLayer, dtype: torch.dtype, width: int) -> None:
        attention = cast(nn.Module, layer.self_attn)
        qkv = [cast(nn.Linear, getattr(attention, f"{name}_proj")).weight for name in "qkv"]
        self.embedding = ComputeWeight(qkv, dtype, slice(0, width)) if layer.is_first else None
        self.state = ComputeWeight(qkv, dtype, slice(width, 2 * width) if layer.is_first else None)
        self.out = ComputeWeight([cast(nn.Linear, attention.o_proj).weight], dtype)
        self.gate_up = ComputeWeight([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight], dtype)
        self.down = ComputeWeight([layer.mlp.down_proj.weight], dtype)

    @property
    def all(self) -> list[ComputeWeight]:
        """All matrices of the layer."""
        found = [self.state, self.out, self.gate_up, self.down]
        return found if self.embedding is None else [self.embedding, *found]


class FusedUnroll:
    """The fused path; the modules' parameters are the masters and get the gradients."""

    pads = False

    def __init__(self, draft: Eagle3Draft, num_steps: int, dtype: torch.dtype, dropped_share: float = 0.0) -> None:
        spec = draft.spec
        self.dropping = FeedbackDropping(dropped_share, draft.fc.weight.device)
        self._draft, self._num_steps, self._dtype = draft, num_steps, dtype
        self._layers = [cast(DraftLayer, layer) for layer in draft.layers]
        self._weights = [_LayerWeights(layer, dtype, spec.hidden_size) for layer in self._layers]
        self._fc = ComputeWeight([draft.fc.weight], dtype)
        self.head = _head_of(draft, dtype)
        self._heads = HeadCounts(num_query=spec.num_heads, num_kv=spec.num_kv_heads, width=spec.head_dim)
        self._frequencies = inverse_frequencies(spec.rope, spec.head_dim, spec.max_position_embeddings)
        self._tables: list[Angles] = []  # a recorded step reads the one that it was recorded with

    @property
    def weights(self) -> list[ComputeWeight]:
        """All matrices, the head too."""
        return [self._fc, self.head, *(weight for layer in self._weights for weight in layer.all)]

    @property
    def trains_embedding(self) -> bool:
        """Whether the draft has an embedding of its own that is trained."""
        own = self._draft.embed_tokens
        return own is not None and own.weight.requires_grad

    def refresh(self) -> None:
        """See `Unroll.refresh`."""
        for weight in self.weights:
            weight.refresh()

    def publish(self) -> None:
        """See `Unroll.publish`."""
        for weight in self.weights:
            weight.publish()

    def states(self, packed: Packed, aux: Tensor) -> Tensor:
        """See `Unroll.states`."""
        spec, first = self._draft.spec, self._layers[0]
        eps = spec.rms_norm_eps
        self._make_angles(packed)
        attentions = [UnrolledAttention(packed, self._num_steps, spec.head_dim**-0.5) for _ in self._layers]
        embedded = self._embedded(packed)
        state = linear(self._normed_aux(aux.to(self._dtype)), self._fc)
        assert first.hidden_norm is not None, "layer 0 norms the state"
        normed = rms_norm(state, first.hidden_norm.weight, eps)
        picked = []
        for j in range(self._num_steps):
            addend = embedded[1 + j : 1 + j + packed.length]
            change, residual = self._run_layers(state, normed, addend, attentions, packed, j)
            if spec.feedback == "post-norm":
                _, state = add_rms_norm(change, residual, self._draft.norm.weight, eps)
                normed = rms_norm(state, first.hidden_norm.weight, eps)
                picked.append(pick_rows(state, packed.picks[j]))
            else:
                state, normed = add_rms_norm(change, residual, first.hidden_norm.weight, eps)
                picked.append(rms_norm(pick_rows(state, packed.picks[j]), self._draft.norm.weight, eps))
            if self.dropping.share and j + 1 < self._num_steps:
                kept = self.dropping.kept(j, packed.length)
                state, normed = state * kept, normed * kept  # the norm of zeros is zero
        return torch.stack(picked)

    def _run_layers(
        self,
        state: Tensor,
        normed: Tensor,
        addend: Tensor,
        attentions: Sequence[UnrolledAttention],
        packed: Packed,
        j: int,
    ) -> tuple[Tensor, Tensor]:
        """Step j through all layers: what the last MLP adds, and what it is added to."""
        eps = self._draft.spec.rms_norm_eps
        change: Tensor | None = None
        for layer, weights, attend in zip(self._layers, self._weights, attentions, strict=True):
            if change is not None:
                state, normed = add_rms_norm(change, state, layer.input_layernorm.weight, eps)
            residual = normed if layer.is_first and layer.has_normed_residual else state
            qkv = linear(normed, weights.state, addend if layer.is_first else None)
            query, key_value = rope_split(qkv, self._tables[-1], packed.positions, j, self._heads)
            out = linear(attend(query, key_value), weights.out)
            state, after = add_rms_norm(out, residual, layer.post_attention_layernorm.weight, eps)
            change = swiglu_linear(linear(after, weights.gate_up), weights.down)
        assert change is not None, "a draft has a layer"
        return change, state

    def _embedded(self, packed: Packed) -> Tensor:
        """[T + K, (N + 2M) d]: layer 0's projection of each token's normed embedding, before any shift."""
        embedding = F.embedding(packed.ids, self._draft.embedding_weight).to(self._dtype)
        normed = rms_norm(embedding, self._layers[0].input_layernorm.weight, self._draft.spec.rms_norm_eps)
        weight = self._weights[0].embedding
        assert weight is not None, "layer 0 reads the embedding"
        return linear(normed, weight)

    def _normed_aux(self, aux: Tensor) -> Tensor:
        draft, eps = self._draft, self._draft.spec.rms_norm_eps
        if draft.input_norm is not None:
            return rms_norm(aux, draft.input_norm.weight, eps)
        if draft.fc_norm is None:
            return aux
        parts = aux.chunk(draft.spec.num_aux, -1)
        norms = [cast(nn.RMSNorm, norm) for norm in draft.fc_norm]
        return torch.cat([rms_norm(part, n.weight, eps) for part, n in zip(parts, norms, strict=True)], -1)

    def _make_angles(self, packed: Packed) -> None:
        longest = packed.longest + self._num_steps
        if not self._tables or len(self._tables[-1].cos) < longest:
            self._tables.append(angle_table(*self._frequencies, longest, packed.positions.device))


class ModuleUnroll:
    """The reference path: the draft's own modules on padded rows, under autocast where the target is in bf16."""

    pads = True

    def __init__(self, draft: Eagle3Draft, num_steps: int, dtype: torch.dtype) -> None:
        self._draft, self._num_steps, self._dtype = draft, num_steps, dtype
        self.head = _head_of(draft, dtype)

    def refresh(self) -> None:
        """See `Unroll.refresh`."""
        self.head.refresh()

    def publish(self) -> None:
        """See `Unroll.publish`."""
        self.head.publish()

    def states(self, packed: Packed, aux: Tensor) -> Tensor:
        """See `Unroll.states`."""
        ids = to_padded(packed, packed.ids)
        kind = ids.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            steps = self._draft.ttt_steps(ids, to_padded(packed, aux), self._num_steps)
            normed = [from_padded(packed, step.normed) for step in steps]
        return torch.stack([x[rows] for x, rows in zip(normed, packed.picks, strict=True)]).to(self._dtype)


def _head_of(draft: Eagle3Draft, dtype: torch.dtype) -> ComputeWeight:
    """The draft's head, its own or the target's; a frozen one gets no gradient."""
    return ComputeWeight([draft.head_weight], dtype)
