"""`Eagle3Draft`: the reference semantics of an EAGLE-3 draft, built from its `DraftSpec` (docs/semantics.md).

Shapes: B sequences, T positions, S new positions, H draft hidden, Ht target hidden, A aux states, D draft vocabulary,
V target vocabulary. Index t of a sequence stands for the target's states after reading token t.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.decode.tree_rows import TreeRows
from eyas.errors import EyasError
from eyas.models.attention import Attend, Backend, cached_attention, ttt_attention
from eyas.models.draft_layer import DraftLayer, window_of


class DraftCache:
    """Grows with each `step`; `truncate` forgets what was drafted from the draft's own states.

    After verification an engine rebuilds the entries of accepted positions from *target* states, so everything a draft
    wrote beyond the first position of a round is cut off and written again.

    Attributes:
        keys, values: per layer [B, M, C, d], or None before the first step.
    """

    def __init__(self, num_layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * num_layers
        self.values: list[Tensor | None] = [None] * num_layers

    @property
    def length(self) -> int:
        """Positions held, C."""
        return 0 if self.keys[0] is None else self.keys[0].shape[2]

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of `layer`, the new ones [B, M, S, d] last."""
        old_key, old_value = self.keys[layer], self.values[layer]
        if old_key is not None and old_value is not None:
            key, value = torch.cat((old_key, key), 2), torch.cat((old_value, value), 2)
        self.keys[layer], self.values[layer] = key, value
        return key, value

    def truncate(self, length: int) -> None:
        """Keep the first `length` positions."""
        assert 0 <= length <= self.length, f"cannot keep {length} of {self.length} positions"
        self.keys = [None if k is None or length == 0 else k[:, :, :length] for k in self.keys]
        self.values = [None if v is None or length == 0 else v[:, :, :length] for v in self.values]


@dataclass(frozen=True, slots=True, kw_only=True)
class TttStep:
    """One step of training-time test, all positions at once.

    Attributes:
        state: [B, T, H], fed to the next step as its `g` (pre-norm or post-norm by `spec.feedback`).
        normed: [B, T, H] after the final norm; `draft.head(normed)` gives logits. Pick rows before the head to save
            memory: logits are D wide.
    """

    state: Tensor
    normed: Tensor


class Eagle3Draft(nn.Module):
    """A draft as a function of the target's states and tokens.

    Parameters and buffers carry the canonical names of `contract.draft_spec`. A shared embedding or head is the
    target's own tensor: it is not a parameter of this module, so it is neither trained, moved nor saved with it.

    Args:
        spec: sizes and semantic switches.
        target_embedding: [V, H] of the target; needed when `spec.embedding` is "target".
        target_head: [V, H] of the target; needed when `spec.head` is "target".
    """

    d2t: Tensor
    t2d: Tensor
    # Of a draft that was stored quantised: canonical name -> values without scale, as an engine that loses it computes.
    unscaled: Mapping[str, Tensor] = MappingProxyType({})

    def __init__(
        self, spec: DraftSpec, *, target_embedding: Tensor | None = None, target_head: Tensor | None = None
    ) -> None:
        super().__init__()
        self.spec = spec
        fused_width = spec.num_aux * spec.target_hidden_size
        self.input_norm = nn.RMSNorm(fused_width, eps=spec.rms_norm_eps) if spec.aux_norm == "over-concat" else None
        self.fc_norm = (
            nn.ModuleList(nn.RMSNorm(spec.target_hidden_size, eps=spec.rms_norm_eps) for _ in range(spec.num_aux))
            if spec.aux_norm == "per-state"
            else None
        )
        self.fc = nn.Linear(fused_width, spec.hidden_size, bias=spec.fc_bias)
        self.layers = nn.ModuleList(DraftLayer(spec, i) for i in range(spec.num_layers))
        self.norm = nn.RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)
        self.embed_tokens = nn.Embedding(spec.vocab_size, spec.hidden_size) if spec.embedding == "own" else None
        self.lm_head = nn.Linear(spec.hidden_size, spec.draft_vocab_size, bias=False) if spec.head == "own" else None
        if spec.has_vocab_map:
            self.register_buffer("d2t", torch.zeros(spec.draft_vocab_size, dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(spec.vocab_size, dtype=torch.bool))
        # In a tuple, so that nn.Module does not take the target's tensors for its own.
        self._shared = (target_embedding, target_head)

    # ---- pieces

    @property
    def embedding_weight(self) -> Tensor:
        """[V, H], the draft's own or the target's."""
        weight = self._shared[0] if self.embed_tokens is None else self.embed_tokens.weight
        assert weight is not None, "this draft shares the target's embedding: give target_embedding"
        return weight

    @property
    def head_weight(self) -> Tensor:
        """[D, H]: own, the target's, or the embedding (tied)."""
        if self.lm_head is not None:
            return self.lm_head.weight
        weight = self.embedding_weight if self.spec.head == "tied" else self._shared[1]
        assert weight is not None, "this draft shares the target's head: give target_head"
        return weight

    @property
    def shared_embedding(self) -> Tensor | None:
        """The target's embedding as it was given, None if it was not."""
        return self._shared[0]

    @property
    def shared_head(self) -> Tensor | None:
        """The target's head as it was given, None if it was not."""
        return self._shared[1]

    @property
    def dtype(self) -> torch.dtype:
        """In which the draft computes."""
        return self.fc.weight.dtype

    def fuse(self, aux_states: Tensor) -> Tensor:
        """`g` [..., H] from aux states in `fc` order, [..., A * Ht]."""
        aux_states = aux_states.to(self.dtype)
        if self.input_norm is not None:
            aux_states = self.input_norm(aux_states)
        elif self.fc_norm is not None:
            parts = aux_states.chunk(self.spec.num_aux, -1)
            aux_states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        fused: Tensor = self.fc(aux_states)
        return fused

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., H] of target token ids."""
        return F.embedding(tokens, self.embedding_weight).to(self.dtype)

    def head(self, normed: Tensor) -> Tensor:
        """Logits over the draft vocabulary, [..., D]."""
        return F.linear(normed, self.head_weight.to(normed.dtype))

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Target token ids of draft-vocabulary ids (`target = draft + d2t[draft]`)."""
        return draft_ids + self.d2t[draft_ids] if self.spec.has_vocab_map else draft_ids

    def to_draft_ids(self, target_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Draft-vocabulary ids of target ids, and where there is one (elsewhere the id is 0, a filler)."""
        if not self.spec.has_vocab_map:
            return target_ids, torch.ones_like(target_ids, dtype=torch.bool)
        offered = self.to_target_ids(torch.arange(self.spec.draft_vocab_size, device=target_ids.device))
        table = torch.full((self.spec.vocab_size,), -1, device=target_ids.device)
        table[offered] = torch.arange(self.spec.draft_vocab_size, device=target_ids.device)
        found = table[target_ids]
        return found.clamp(min=0), found >= 0

    def set_vocab_map(self, offered_ids: Tensor) -> None:
        """Make the draft vocabulary these D target ids (ascending, distinct)."""
        spec = self.spec
        assert offered_ids.shape == (spec.draft_vocab_size,), f"wanted {spec.draft_vocab_size} ids"
        assert bool((offered_ids.diff() > 0).all()), "ids of the draft vocabulary are ascending and distinct"
        if spec.has_vocab_map:
            self.d2t.copy_(offered_ids - torch.arange(spec.draft_vocab_size, device=offered_ids.device))
            self.t2d.fill_(False)
            self.t2d[offered_ids] = True

    # ---- drafting, one step at a time

    def new_cache(self) -> DraftCache:
        """An empty cache for `step`."""
        return DraftCache(self.spec.num_layers)

    def step(
        self, tokens: Tensor, g: Tensor, positions: Tensor, cache: DraftCache, *, tree: TreeRows | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read S positions more: rebuild them from target states (g = `fuse(aux)`) or draft on (g = own last state).

        Args:
            tokens: [B, S] target ids; entry t is the token *after* position t.
            g: [B, S, H].
            positions: [B or 1, S] RoPE positions, t itself (not t + 1).
            cache: grows by S.
            tree: the S new entries are nodes of a tree, and see what it says.

        Returns:
            state [B, S, H], the next step's `g`; logits [B, S, D] over the draft vocabulary.
        """

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = cache.append(layer, key, value)
            scale: float = self.layers[layer].self_attn.scale  # type: ignore[union-attr, assignment]
            window = window_of(self.spec, layer)
            mask = None if tree is None else tree.mask(window, query.device)
            return cached_attention(query, keys, values, scale=scale, window=window, mask=mask)

        state, normed = self._run_layers(tokens, g, positions, attend)
        return state, self.head(normed)

    # ---- training-time test, all positions at once

    def ttt_steps(
        self, input_ids: Tensor, aux_states: Tensor, num_steps: int, *, backend: Backend = "auto"
    ) -> Iterator[TttStep]:
        """Training-time test: `num_steps` unrolled steps from every position in parallel.

        Step j at index t reads token t+1+j, stands at RoPE position t+j, and attends to the step-0 keys at indices ≤ t
        and, at index t, to the keys of steps 1 … j. Where index t+1+j is beyond the end it reads token 0: entries
        t > T-2-j mean nothing. Rows are padded on the right; padding never reaches a real position.

        Args:
            input_ids: [B, T] target ids.
            aux_states: [B, T, A * Ht] in `fc` order.
            num_steps: K ≥ 1.
            backend: see `attention.ttt_attention`.
        """
        g, num = self.fuse(aux_states), input_ids.shape[1]
        keys: list[list[Tensor]] = [[] for _ in self.layers]
        values: list[list[Tensor]] = [[] for _ in self.layers]
        index = torch.arange(num, device=input_ids.device)[None]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys[layer].append(key)
            values[layer].append(value)
            scale: float = self.layers[layer].self_attn.scale  # type: ignore[union-attr, assignment]
            window = window_of(self.spec, layer)
            return ttt_attention(query, keys[layer], values[layer], scale=scale, window=window, backend=backend)

        for j in range(num_steps):
            tokens = F.pad(input_ids[:, 1 + j :], (0, min(1 + j, num)))
            g, normed = self._run_layers(tokens, g, index + j, attend)
            yield TttStep(state=g, normed=normed)

    def ttt_forward(
        self, input_ids: Tensor, aux_states: Tensor, num_steps: int, *, backend: Backend = "auto"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """`ttt_steps` as (state [B, T, H], logits [B, T, D]) per step."""
        for step in self.ttt_steps(input_ids, aux_states, num_steps, backend=backend):
            yield step.state, self.head(step.normed)

    def _run_layers(self, tokens: Tensor, g: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        embedding, state = self.embed(tokens), g.to(self.dtype)
        for layer in self.layers:
            state = layer(embedding, state, positions, attend)
        normed: Tensor = self.norm(state)
        return (normed if self.spec.feedback == "post-norm" else state), normed


class AuxBoundariesUnknown(EyasError):
    """Nothing says which of the target's states the draft reads."""

    code = "aux-boundaries-unknown"


def required_boundaries(draft: Eagle3Draft) -> tuple[int, ...]:
    """The draft's aux boundaries, as the number of decoder layers applied.

    Raises:
        AuxBoundariesUnknown: it does not name any, and the target that decides the default was not given.
    """
    if draft.spec.aux_boundaries is None:
        raise AuxBoundariesUnknown(
            "the draft does not say which target states it reads",
            "config.json: eagle_aux_hidden_state_layer_ids",
            "fed other states than it was trained on, a draft accepts next to nothing",
            "write the ids into its config, or name the target with --target so that the default can be computed",
        )
    return draft.spec.aux_boundaries
