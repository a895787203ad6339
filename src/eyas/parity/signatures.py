"""What each known fault would do to a draft's acceptance: the fault is planted, and the same texts replayed.

Faults that give the same rounds on the same texts are one class: without `o` or without `v` the attention is silent,
and no count of any server tells which of them was lost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eyas.contract.spec.layer_ids import default_boundaries
from eyas.decode.accept_length import Acceptance
from eyas.models.draft import Eagle3Draft
from eyas.models.states import StateSource
from eyas.records.eval_rows import EvalRow
from eyas.replay.emulate import Fill, left_unfilled
from eyas.replay.infer import as_read, changes_of, single_changes
from eyas.replay.replay import replay_states
from eyas.talk import Silent, Talk

_BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a class of faults does to the acceptance.

    Attributes:
        faults: its members, for a person; they give the same rounds on these texts.
        acceptance: counts of a draft with one of them.
        is_harmless: they give the rounds of the draft as it was trained.
    """

    faults: tuple[str, ...]
    acceptance: Acceptance
    is_harmless: bool = False

    @property
    def name(self) -> str:
        """All members."""
        return ", or ".join(self.faults)


@torch.no_grad()
def signatures(
    states: StateSource,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    num_draft_tokens: int,
    talk: Talk,
    *,
    boundaries_known: Sequence[int],
    thetas: Sequence[float],
    num_layers: int | None = None,
    target_embedding: Tensor | None = None,
    fills: Sequence[Fill] = ("zeros",),
) -> list[Signature]:
    """The counts that every known fault gives on `rows`, one signature for each class of faults.

    Args:
        states: of the target over `rows`: live, or of a probe pack.
        draft: as it was trained.
        rows: texts that the target wrote.
        num_draft_tokens: K.
        boundaries_known: boundaries that `states` can give; others are not tried.
        thetas: RoPE bases to try.
        num_layers: of the target: the boundaries that engines tap where a draft names none are tried.
        target_embedding: [V, H]: where it is given, a draft's own embedding replaced by it is a fault too.
        fills: what memory may hold where an engine loads nothing.

    Returns:
        In the order in which a class' first fault is tried.
    """

    def rounds_of(one: Eagle3Draft) -> tuple[tuple[int, ...], ...]:
        results = replay_states(states, one, rows, num_draft_tokens, Silent(), batch_tokens=_BATCH_TOKENS)
        return tuple(tuple(row.accepted) for row in results)

    planted = [
        *_planted(draft, boundaries_known, thetas, target_embedding, fills),
        *_default_boundaries(draft, boundaries_known, num_layers),
    ]
    classes: dict[tuple[tuple[int, ...], ...], list[str]] = {}
    with talk.progress("faults", len(planted) + 1, "faults") as bar:
        trained = rounds_of(draft)
        bar.advance()
        for name, faulty in planted:
            classes.setdefault(rounds_of(faulty), []).append(name)
            bar.advance()
    return [
        Signature(
            faults=tuple(faults),
            acceptance=Acceptance.of_rounds([n for row in rounds for n in row], num_draft_tokens),
            is_harmless=rounds == trained,
        )
        for rounds, faults in classes.items()
    ]


def _planted(
    draft: Eagle3Draft,
    boundaries_known: Sequence[int],
    thetas: Sequence[float],
    target_embedding: Tensor | None,
    fills: Sequence[Fill],
) -> Iterator[tuple[str, Eagle3Draft]]:
    names = [name for name in draft.state_dict() if name not in ("d2t", "t2d")]
    for lost, label in [
        *(([name], name.removesuffix(".weight")) for name in names),
        ([name for name in names if name.startswith("layers.")], "all tensors of the layers"),
    ]:
        for fill in fills:
            memory = "" if len(fills) == 1 or all("norm" in name for name in lost) else f" (memory holds {fill})"
            if memory or fill == fills[0]:
                yield f"{label} not loaded{memory}", _without(draft, lost, fill)
    for spec in single_changes(draft.spec, boundaries_known, thetas):
        changes = ", ".join(f"{key} = {value}" for key, value in changes_of(draft.spec, spec).items())
        yield f"served as if {changes}", as_read(draft, spec)
    if draft.spec.has_vocab_map:
        unmapped = as_read(draft, draft.spec)
        unmapped.d2t = torch.zeros_like(draft.d2t)
        yield "vocabulary map d2t not applied", unmapped
    if draft.embed_tokens is not None and target_embedding is not None:
        replaced = as_read(draft, draft.spec)
        replaced.load_state_dict({"embed_tokens.weight": target_embedding}, strict=False, assign=True)
        yield "the target's embedding in place of the draft's own", replaced


def _default_boundaries(
    draft: Eagle3Draft, boundaries_known: Sequence[int], num_layers: int | None
) -> Iterator[tuple[str, Eagle3Draft]]:
    """What engines tap where a draft's layer ids are not found (docs/semantics.md)."""
    default = None if num_layers is None else default_boundaries(num_layers)
    is_new = default != draft.spec.aux_boundaries and draft.spec.num_aux == 3
    if default is not None and is_new and set(default) <= set(boundaries_known):
        spec = replace(draft.spec, aux_boundaries=default)
        yield f"layer ids not read: boundaries {default}, the engines' default", as_read(draft, spec)


def _without(draft: Eagle3Draft, names: Sequence[str], fill: Fill) -> Eagle3Draft:
    """The draft with these tensors as a loader leaves what it does not fill."""
    faulty = as_read(draft, replace(draft.spec))
    state, generator = dict(draft.state_dict()), torch.Generator().manual_seed(0)
    state |= {name: left_unfilled(name, state[name], fill, generator) for name in names}
    faulty.load_state_dict(state, assign=True)
    return faulty.eval()
