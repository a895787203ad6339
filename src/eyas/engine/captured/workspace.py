"""Static memory of the captured round: a graph replays fixed addresses, so everything that changes lives here.

Shapes: M rows of one pass, E hidden, I intermediate, H query heads, D head width, A aux states, L cache length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.engine.captured.captured_weights import FastDraft, FastTarget

# Where each number lies in `RoundState.numbers`.
LENGTH, BASE, ACCEPTED, ROUNDS, DRAFTED, LAST_UNREAD = range(6)
NUM_NUMBERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Activations of M rows through one model.

    Attributes:
        first, second: [M, E], the residual stream after an even and an odd number of layers.
        middle: [M, E], after attention.
        query, attended: [M, H * D].
        inner: [M, I].
        aux: [M, A * E_target] or None; layers at a boundary write their state straight into its columns.
        best, best_ids: [M, parts], each part's best logit (fp32) and its lowest id (int32).
    """

    first: Tensor
    second: Tensor
    middle: Tensor
    query: Tensor
    attended: Tensor
    inner: Tensor
    aux: Tensor | None
    best: Tensor
    best_ids: Tensor

    @property
    def num_rows(self) -> int:
        """M."""
        return self.first.shape[0]


def target_workspace(target: FastTarget, num_rows: int, num_parts: int) -> Workspace:
    """For `num_rows` rows of the target; `num_parts` as the head kernel writes them."""
    width = target.norm.shape[0] * len(target.aux_boundaries)
    inner = target.layers[0].down.shape[1]
    return _workspace(target, num_rows, inner, width, num_parts)


def draft_workspace(draft: FastDraft, num_rows: int, num_parts: int) -> Workspace:
    """For `num_rows` rows of the draft."""
    return _workspace(draft, num_rows, draft.layer.down.shape[1], 0, num_parts)


def _workspace(model: FastTarget | FastDraft, num_rows: int, inner: int, aux: int, num_parts: int) -> Workspace:
    like, hidden = model.norm, model.norm.shape[0]
    heads = model.heads.num_query * model.heads.width

    def rows(width: int) -> Tensor:
        return torch.zeros(num_rows, width, dtype=like.dtype, device=like.device)

    return Workspace(
        first=rows(hidden),
        second=rows(hidden),
        middle=rows(hidden),
        query=rows(heads),
        attended=rows(heads),
        inner=rows(inner),
        aux=rows(aux) if aux else None,
        best=torch.zeros(num_rows, num_parts, dtype=torch.float32, device=like.device),
        best_ids=torch.zeros(num_rows, num_parts, dtype=torch.int32, device=like.device),
    )


def key_value_cache(model: FastTarget | FastDraft, num_layers: int, max_length: int) -> Tensor:
    """[num_layers, 2, G, L, D] in the model's dtype."""
    shape = (num_layers, 2, model.heads.num_kv, max_length, model.heads.width)
    return torch.zeros(shape, dtype=model.norm.dtype, device=model.norm.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """What one round hands to the next, all int32 on the device.

    Attributes:
        numbers: [6]: target positions in the cache; those before the last verify pass; drafts accepted in it; rounds;
            positions that the draft has read; and the row of the last unread one.
        tokens: [K + 1], the token to be verified first (the last bonus), then K drafts.
        chosen: [K + 1], the target's choices of the last verify pass.
        records: [R, K + 2], a ring: accepted, then the choices, of round r in row r mod R.
        simulated: [R] acceptances to pretend, read instead of compared where simulation is asked for.
        zero: [1], always 0: the row index of one-row passes.
    """

    numbers: Tensor
    tokens: Tensor
    chosen: Tensor
    records: Tensor
    simulated: Tensor
    zero: Tensor

    def at(self, which: int) -> Tensor:
        """One of the numbers as a view [1]."""
        return self.numbers[which : which + 1]


def round_state(num_draft_tokens: int, num_records: int, device: torch.device) -> RoundState:
    """All zeros."""

    def ints(*shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.int32, device=device)

    return RoundState(
        numbers=ints(NUM_NUMBERS),
        tokens=ints(num_draft_tokens + 1),
        chosen=ints(num_draft_tokens + 1),
        records=ints(num_records, num_draft_tokens + 2),
        simulated=ints(num_records),
        zero=ints(1),
    )
