"""An EAGLE-3 draft with one sequence in its cache: the fast path for the GQA class, and the reference for the rest.

Shapes: R rows, H draft hidden, D draft vocabulary, A aux states, Ht target hidden.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.decode.tree_rows import TreeRows, paths_of
from eyas.engine.llama.block_stack import BlockStack, TorchStack
from eyas.engine.llama.llama_weights import BlockWeights, LlamaShape
from eyas.engine.llama.native import NativeKernels
from eyas.engine.llama.native_stack import stack_for
from eyas.models.draft import Eagle3Draft
from eyas.models.draft_layer import window_of
from eyas.models.rope import inverse_frequencies


class ReferenceDraft:
    """A `DraftSequence` that calls `Eagle3Draft.step`: works for every draft class, slowly."""

    def __init__(self, draft: Eagle3Draft, aux_boundaries: Sequence[int]) -> None:
        self.aux_boundaries, self.vocab_index = tuple(aux_boundaries), vocab_index(draft)
        self._draft, self._cache = draft, draft.new_cache()
        self._confirmed = 0
        self._states = torch.empty(0)  # [1, E + 1, H] of the text's end and of E nodes expanded since
        self._paths: list[tuple[int, ...]] = []

    def start(self, capacity: int) -> None:
        """See `DraftSequence.start`; the cache grows by itself."""
        self._cache = self._draft.new_cache()
        self._confirmed = 0

    @torch.inference_mode()
    def read(self, next_ids: Sequence[int], aux_states: Tensor) -> Tensor:
        """See `DraftSequence.read`."""
        self._cache.truncate(self._confirmed)
        self._paths = []
        logits = self._step(next_ids, self._draft.fuse(aux_states)[None])
        self._confirmed = self._cache.length
        return logits

    @torch.inference_mode()
    def step(self, draft_id: int) -> Tensor:
        """See `DraftSequence.step`."""
        return self._step([draft_id], self._states)

    @torch.inference_mode()
    def expand(self, ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        """See `TreeDraft.expand`."""
        self._paths = paths_of(parents, self._cache.length, self._paths)
        tree = TreeRows(base=self._confirmed, paths=tuple(self._paths[-len(ids) :]))
        device = self._states.device
        g = self._states[:, [parent + 1 for parent in parents]]
        positions = torch.tensor([tree.positions], device=device)
        state, logits = self._draft.step(torch.tensor([ids], device=device), g, positions, self._cache, tree=tree)
        self._states = torch.cat((self._states, state), 1)
        return logits[0]

    def _step(self, next_ids: Sequence[int], g: Tensor) -> Tensor:
        tokens = torch.tensor([next_ids], device=g.device)
        start = self._cache.length
        positions = torch.arange(start, start + len(next_ids), device=g.device)[None]
        state, logits = self._draft.step(tokens, g, positions, self._cache)
        self._states = state[:, -1:]
        return logits[0, -1]


class FusedDraft:
    """A `DraftSequence` over fused weights: same values as `Eagle3Draft.step`, by the engine's fast blocks."""

    def __init__(
        self,
        draft: Eagle3Draft,
        aux_boundaries: Sequence[int],
        *,
        kernels: NativeKernels | None = None,
        num_threads: int = 1,
    ) -> None:
        assert why_not_fused(draft.spec) is None, "ask why_not_fused first"
        self.aux_boundaries, self.vocab_index = tuple(aux_boundaries), vocab_index(draft)
        self._draft, spec = draft, draft.spec
        shapes, blocks = fused_blocks(draft)
        rope = inverse_frequencies(spec.rope, spec.head_dim, spec.max_position_embeddings)
        self._stack: BlockStack = stack_for(TorchStack(shapes, blocks, *rope), kernels, num_threads)
        self._layers = spec.num_layers
        self._states = torch.empty(0)  # [E + 1, H] of the text's end and of E nodes expanded since
        self._length = self._confirmed = 0
        self._paths: list[tuple[int, ...]] = []
        # Looked up once: going through nn.Module costs as much as a small kernel.
        first = draft.layers[0].state_dict()
        self._fc, self._fc_bias = draft.fc.weight.detach(), draft.fc.bias
        self._embedding = draft.embedding_weight.detach().to(draft.dtype)
        self._head = draft.head_weight.detach().to(draft.dtype).contiguous()
        self._norms = {
            "embedding": first["input_layernorm.weight"].detach(),
            "state": first["hidden_norm.weight"].detach(),
            "last": draft.norm.weight.detach(),
        }

    def start(self, capacity: int) -> None:
        """See `DraftSequence.start`."""
        self._stack.reserve(capacity)
        self._length = self._confirmed = 0

    @torch.inference_mode()
    def read(self, next_ids: Sequence[int], aux_states: Tensor) -> Tensor:
        """See `DraftSequence.read`."""
        self._length, self._paths = self._confirmed, []
        self._states, normed = self._fed_back(self._run(next_ids, self._fuse(aux_states))[-1:])
        self._confirmed = self._length
        return self._stack.linear(normed, self._head)[0]

    @torch.inference_mode()
    def step(self, draft_id: int) -> Tensor:
        """See `DraftSequence.step`."""
        self._states, normed = self._fed_back(self._run((draft_id,), self._states))
        return self._stack.linear(normed, self._head)[0]

    @torch.inference_mode()
    def expand(self, ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        """See `TreeDraft.expand`."""
        self._paths = paths_of(parents, self._length, self._paths)
        tree = TreeRows(base=self._confirmed, paths=tuple(self._paths[-len(ids) :]))
        states, normed = self._fed_back(self._run(ids, self._states[[parent + 1 for parent in parents]], tree))
        self._states = torch.cat((self._states, states))
        return self._stack.linear(normed, self._head)

    def _fuse(self, aux_states: Tensor) -> Tensor:
        if self._draft.spec.aux_norm != "none" or self._fc_bias is not None:
            return self._draft.fuse(aux_states)
        return self._stack.linear(aux_states.to(self._fc.dtype), self._fc)

    def _run(self, next_ids: Sequence[int], g: Tensor, tree: TreeRows | None = None) -> Tensor:
        """The residual [R, H] after the last block."""
        embedding = self._embedding.index_select(0, torch.tensor(next_ids, device=g.device))
        normed_g = self._norm("state", g)
        x = torch.cat((self._norm("embedding", embedding), normed_g), -1)
        # Blocks update their residual in place: g may be the caller's.
        residual = normed_g if self._draft.spec.residual == "post-norm" else g.clone()
        residual = self._stack.run(range(self._layers), residual, self._length, x, tree)
        self._length += len(next_ids)
        return residual

    def _fed_back(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """What the next step starts from, and what the head reads."""
        normed = self._norm("last", residual)
        return (normed if self._draft.spec.feedback == "post-norm" else residual), normed

    def _norm(self, which: str, x: Tensor) -> Tensor:
        return torch.rms_norm(x, (x.shape[-1],), self._norms[which], self._draft.spec.rms_norm_eps)


def why_not_fused(spec: DraftSpec) -> str | None:
    """Why a draft is outside the fast path, in words; None when it is inside."""
    if spec.draft_class != "gqa":
        return f"it is of class {spec.draft_class}"
    if spec.rope.interleaved or spec.rope.partial_rotary_factor != 1.0:
        return "its RoPE pairs or shares are unusual"
    if spec.activation not in ("silu", "swish"):
        return f"its activation is {spec.activation}"
    if any(name.endswith(("o_proj.bias", "gate_proj.bias", "up_proj.bias", "down_proj.bias")) for name in spec.tensors):
        return "it has biases beyond q, k, v"
    return None


def fused_blocks(draft: Eagle3Draft) -> tuple[list[LlamaShape], list[BlockWeights]]:
    """Shapes and fused weights of the layers of a draft that `why_not_fused` has nothing against."""
    layers = range(draft.spec.num_layers)
    return [_shape(draft.spec, i) for i in layers], [_fuse(draft, i) for i in layers]


def vocab_index(draft: Eagle3Draft) -> Tensor | None:
    """[D] target id of each draft id; None when the vocabularies are the same."""
    if not draft.spec.has_vocab_map:
        return None
    return draft.to_target_ids(torch.arange(draft.spec.draft_vocab_size, device=draft.d2t.device))


def _shape(spec: DraftSpec, index: int) -> LlamaShape:
    return LlamaShape(
        hidden=spec.hidden_size,
        in_width=spec.hidden_size * (2 if index == 0 else 1),
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rotary_dim=spec.head_dim,
        intermediate=spec.intermediate_size,
        eps=spec.rms_norm_eps,
        window=window_of(spec, index),
    )


def _fuse(draft: Eagle3Draft, index: int) -> BlockWeights:
    tensors = {name: t.detach() for name, t in draft.layers[index].state_dict().items()}
    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    has_bias = f"{qkv[0]}.bias" in tensors
    return BlockWeights(
        input_norm=None if index == 0 else tensors["input_layernorm.weight"],
        qkv=torch.cat([tensors[f"{name}.weight"] for name in qkv]),
        qkv_bias=torch.cat([tensors[f"{name}.bias"] for name in qkv]) if has_bias else None,
        q_norm=tensors.get("self_attn.q_norm.weight"),
        k_norm=tensors.get("self_attn.k_norm.weight"),
        o=tensors["self_attn.o_proj.weight"],
        post_norm=tensors["post_attention_layernorm.weight"],
        gate_up=torch.cat([tensors["mlp.gate_proj.weight"], tensors["mlp.up_proj.weight"]]),
        down=tensors["mlp.down_proj.weight"],
    )
