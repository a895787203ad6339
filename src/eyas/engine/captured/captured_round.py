"""One round over static memory, in the order the device runs it: verify, accept, rebuild the draft, draft on.

The same function as the reference round (`engine/round.py`), written so that a CUDA graph can hold it: fixed shapes
(K + 1 rows, accepted or not), every length and token read on the device, no host in between. Two facts make it short:
- Rows beyond the accepted ones are computed too. What they leave in the caches lies beyond the live length, is
  never attended to, and is overwritten by the next round: that *is* the cache repair.
- The draft's rows are the verified rows: row i holds the target's states at position base + i and the target's own
  choice after it. For accepted drafts the choice is the draft; after the last one it is the bonus token.

Shapes: K drafts, M = K + 1 rows, E hidden, L cache length.
"""

from dataclasses import dataclass

from torch import Tensor

from eyas.engine.captured.captured_weights import FastDraft, FastTarget
from eyas.engine.captured.round_ops import RoundOps
from eyas.engine.captured.workspace import (
    ACCEPTED,
    BASE,
    LENGTH,
    RoundState,
    Workspace,
    draft_workspace,
    key_value_cache,
    round_state,
    target_workspace,
)

MOST_DRAFTS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMemory:
    """What the draft works in: M rows for rebuilding, one row for each further step.

    Attributes:
        cache: [1, 2, G, L, D].
        fused: [M, E], `fc` of the aux states.
        carried: [1, E], the state that one step hands to the next.
    """

    cache: Tensor
    rows: Workspace
    one: Workspace
    fused: Tensor
    carried: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedRound:
    """A target, perhaps a draft, and the memory of their rounds.

    Attributes:
        num_draft_tokens: K; 0 is plain decoding.
        is_simulated: acceptances are read from `state.simulated`, not compared (timing only; marked in reports).
    """

    ops: RoundOps
    target: FastTarget
    draft: FastDraft | None
    num_draft_tokens: int
    is_simulated: bool
    state: RoundState
    cache: Tensor
    rows: Workspace
    draft_memory: DraftMemory | None

    def run(self) -> None:
        """Verify, accept, and draft for the next round."""
        self.verify()
        self.propose()

    def verify(self) -> None:
        """The target reads the bonus token and the drafts after it, chooses after each, and keeps what agrees."""
        state, rows = self.state, self.rows
        last = target_pass(self.ops, self.target, self.cache, rows, state.tokens, state.at(LENGTH), 0)
        target = self.target
        self.ops.best_tokens(target.head, last, None, target.norm, target.eps, rows.best, rows.best_ids)
        simulated = state.simulated if self.is_simulated else None
        self.ops.accept(rows.best, rows.best_ids, state.tokens, state.chosen, state.numbers, state.records, simulated)

    def propose(self) -> None:
        """K drafts from the last verify pass: rebuild its positions from the target's states, then step on."""
        if self.draft is None or self.draft_memory is None:
            return
        state, memory = self.state, self.draft_memory
        aux = self.rows.aux
        assert aux is not None, "a target with a draft has aux boundaries"
        self.ops.linear(self.draft.fc, aux, memory.fused, residual=None)
        out = draft_pass(self.ops, self.draft, memory.cache, memory.rows, state.chosen, memory.fused, state.at(BASE), 0)
        self._pick(memory.one, out, state.at(ACCEPTED), 1, (out, state.at(ACCEPTED), memory.carried))
        for step in range(1, self.num_draft_tokens):
            token = state.tokens[step : step + 1]
            # After `accept` the length has grown past the rebuilt positions: step 1 is at `length`, step 2 after it.
            where = (state.at(LENGTH), step - 1)
            out = draft_pass(self.ops, self.draft, memory.cache, memory.one, token, memory.carried, *where)
            self._pick(memory.one, out, state.zero, step + 1, (out, state.zero, memory.carried))

    def _pick(self, one: Workspace, out: Tensor, index: Tensor, slot: int, copy: tuple[Tensor, Tensor, Tensor]) -> None:
        draft = self.draft
        assert draft is not None, "only drafts are picked here"
        self.ops.best_tokens(draft.head, out, index, draft.norm, draft.eps, one.best, one.best_ids)
        token = self.state.tokens[slot : slot + 1]
        is_last = slot == self.num_draft_tokens
        self.ops.pick(one.best, one.best_ids, draft.offsets, token, None if is_last else copy)


def target_pass(
    ops: RoundOps, target: FastTarget, cache: Tensor, rows: Workspace, ids: Tensor, position: Tensor, offset: int
) -> Tensor:
    """M tokens through the target from position + offset on.

    Returns:
        [M, E], the last layer's state (before the final norm); aux states lie in `rows.aux` [M, A * E].
    """
    hidden = target.norm.shape[0]
    columns = {b: slice(a * hidden, (a + 1) * hidden) for a, b in enumerate(target.aux_boundaries)}
    x = rows.first
    ops.embed(target.embedding, ids, x)
    for i, layer in enumerate(target.layers):
        spare = rows.first if i % 2 else rows.second
        tapped = columns.get(i + 1)
        out = rows.aux[:, tapped] if tapped is not None and rows.aux is not None else spare
        ops.project_qkv(
            layer.qkv,
            target.heads,
            x=x,
            norm=layer.input_norm,
            ids=None,
            second=None,
            eps=target.eps,
            position=position,
            offset=offset,
            rope=(target.cos, target.sin),
            query=rows.query,
            cache=cache[i],
            extras=layer.extras,
        )
        ops.attend(rows.query, target.heads, cache[i], position, offset, rows.attended)
        ops.linear(layer.out, rows.attended, rows.middle, residual=x)
        ops.gate_up(layer.gate_up, rows.middle, layer.post_norm, target.eps, rows.inner)
        ops.linear(layer.down, rows.inner, out, residual=rows.middle)
        x = out
    return x


def draft_pass(
    ops: RoundOps,
    draft: FastDraft,
    cache: Tensor,
    rows: Workspace,
    ids: Tensor,
    g: Tensor,
    position: Tensor,
    offset: int,
) -> Tensor:
    """M pairs of (next token, state g) through the draft's layer.

    Args:
        ids: [M], token at position + offset + m + 1.
        g: [M, E], the fused target state or the draft's own last state, at position + offset + m.

    Returns:
        [M, E], the state before the final norm: logits come from it, and it is the next step's g.
    """
    layer = draft.layer
    assert layer.hidden_norm is not None, "layer 0 of a draft norms both its inputs"
    ops.project_qkv(
        layer.qkv,
        draft.heads,
        x=draft.embedding,
        norm=layer.input_norm,
        ids=ids,
        second=(g, layer.hidden_norm),
        eps=draft.eps,
        position=position,
        offset=offset,
        rope=(draft.cos, draft.sin),
        query=rows.query,
        cache=cache[0],
    )
    ops.attend(rows.query, draft.heads, cache[0], position, offset, rows.attended)
    ops.linear(layer.out, rows.attended, rows.middle, residual=g)
    ops.gate_up(layer.gate_up, rows.middle, layer.post_norm, draft.eps, rows.inner)
    ops.linear(layer.down, rows.inner, rows.first, residual=rows.middle)
    return rows.first


def new_round(
    ops: RoundOps,
    target: FastTarget,
    draft: FastDraft | None,
    *,
    num_draft_tokens: int,
    max_length: int,
    num_records: int = 64,
    is_simulated: bool = False,
    caches: tuple[Tensor, Tensor | None] | None = None,
) -> CapturedRound:
    """A round with all its memory.

    Args:
        num_draft_tokens: K, 0 without a draft, at most 7.
        max_length: positions of the caches, drafts beyond the answer included.
        caches: target's and draft's keys and values, shared with other rounds of which one runs at a time; None for
            new ones.
    """
    assert 0 <= num_draft_tokens <= MOST_DRAFTS, "the skinny kernels take at most 8 rows"
    assert (num_draft_tokens > 0) == (draft is not None), "drafts need a draft, and a draft drafts"
    num_rows = num_draft_tokens + 1
    cache, draft_cache = caches or (key_value_cache(target, len(target.layers), max_length), None)
    return CapturedRound(
        ops=ops,
        target=target,
        draft=draft,
        num_draft_tokens=num_draft_tokens,
        is_simulated=is_simulated,
        state=round_state(num_draft_tokens, num_records, target.norm.device),
        cache=cache,
        rows=target_workspace(target, num_rows, ops.num_parts(target.head, num_rows)),
        draft_memory=None if draft is None else draft_memory(ops, draft, num_rows, max_length, draft_cache),
    )


def draft_memory(
    ops: RoundOps, draft: FastDraft, num_rows: int, max_length: int, cache: Tensor | None = None
) -> DraftMemory:
    """Memory for rebuilding `num_rows` positions and stepping on; with a cache of its own unless one is given."""
    rows = draft_workspace(draft, num_rows, 1)  # only one row is ever given to the head
    return DraftMemory(
        cache=key_value_cache(draft, 1, max_length) if cache is None else cache,
        rows=rows,
        one=draft_workspace(draft, 1, ops.num_parts(draft.head, 1)),
        fused=rows.first.clone(),
        carried=rows.first[:1].clone(),
    )
