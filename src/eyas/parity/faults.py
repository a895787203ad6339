"""Which known fault would give the counts that a server gave: each is planted in the draft, and the same ids replayed.

Faults that change the same function cannot be told from counts (`o` lost and `v` lost both silence the attention): they
are one class, named by all its members.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from eyas.decode.accept_length import Acceptance
from eyas.models.draft import Eagle3Draft
from eyas.models.states import StateSource
from eyas.records.eval_rows import EvalRow
from eyas.replay.infer import as_read, changes_of, single_changes
from eyas.replay.predict import left_unfilled
from eyas.replay.replay import replay_states
from eyas.talk import Talk

# Groups of canonical names whose loss is one fault: what loaders drop together, or what silences the same part.
_GROUPS = {
    "attention lost (v or o)": ("self_attn.v_proj", "self_attn.o_proj", "self_attn.kv_b_proj"),
    "attention scores lost (q or k)": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.q_a_proj"),
    "MLP lost (gate, up or down)": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "hidden_norm not loaded": ("hidden_norm",),
    "input_layernorm not loaded": ("input_layernorm",),
    "post_attention_layernorm not loaded": ("post_attention_layernorm",),
    "final norm not loaded": ("norm.weight",),
    "all tensors of the layer lost": ("layers.",),
}
_TOLERANCE = 0.02  # of a per-position share
_SIGMAS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A fault that fits what was served.

    Attributes:
        name: the class of faults, for a person.
        acceptance: of the draft with this fault, on the server's own ids.
        distance: largest difference to a served per-position share.
    """

    name: str
    acceptance: Acceptance
    distance: float


@torch.no_grad()
def suspects(
    states: StateSource,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    served: Acceptance,
    talk: Talk,
    *,
    boundaries_known: Sequence[int],
    thetas: Sequence[float],
) -> list[Suspect]:
    """The faults whose counts fit the server's within noise, nearest first; () when none of the known ones does.

    Args:
        states: of the target over `rows`.
        draft: as it was trained.
        rows: prompts with the ids that the server emitted.
        served: the server's counts over them.
        boundaries_known: boundaries that `states` can give.
        thetas: RoPE bases to try.
    """
    depth = len(served.accepted_at)
    found = []
    for name, faulty in _planted(draft, boundaries_known, thetas):
        results = replay_states(states, faulty, rows, depth, talk)
        acceptance = Acceptance.of_rounds([n for row in results for n in row.accepted], depth)
        found.append(Suspect(name=name, acceptance=acceptance, distance=_distance(served, acceptance)))
    fitting = [suspect for suspect in found if _fits(served, suspect)]
    return sorted(fitting, key=lambda suspect: suspect.distance)


def _planted(
    draft: Eagle3Draft, boundaries_known: Sequence[int], thetas: Sequence[float]
) -> Iterator[tuple[str, Eagle3Draft]]:
    for name, parts in _GROUPS.items():
        lost = [n for n in draft.state_dict() if any(part in n for part in parts) and not _other_norm(name, n)]
        for member in [[n] for n in lost] if " or " in name else [lost]:
            if member:
                yield name, _without(draft, member)
    for spec in single_changes(draft.spec, boundaries_known, thetas):
        changes = ", ".join(f"{key} = {value}" for key, value in changes_of(draft.spec, spec).items())
        yield f"served as if {changes}", as_read(draft, spec)
    if draft.spec.has_vocab_map:
        unmapped = as_read(draft, draft.spec)
        unmapped.d2t = torch.zeros_like(draft.d2t)
        yield "vocabulary map d2t not applied", unmapped


def _other_norm(group: str, name: str) -> bool:
    return group.startswith("final norm") and name != "norm.weight"


def _without(draft: Eagle3Draft, names: Sequence[str]) -> Eagle3Draft:
    """The draft with these tensors as a loader leaves what nothing fills on fresh memory."""
    faulty = as_read(draft, replace(draft.spec))
    state = dict(draft.state_dict())
    state |= {name: left_unfilled(name, state[name], "zeros", torch.Generator()) for name in names}
    faulty.load_state_dict(state, assign=True)
    return faulty.eval()


def _distance(served: Acceptance, other: Acceptance) -> float:
    return max(abs(a - b) for a, b in zip(served.per_position, other.per_position, strict=True))


def _fits(served: Acceptance, suspect: Suspect) -> bool:
    for share, other in zip(served.per_position, suspect.acceptance.per_position, strict=True):
        noise = _SIGMAS * (max(share * (1 - share), 0.25 / served.rounds) / served.rounds) ** 0.5
        if abs(share - other) > max(_TOLERANCE, noise):
            return False
    return True
