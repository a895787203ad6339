"""What accept length an engine will reach with a draft: the draft as that engine runs it, replayed.

The engine's ledger is applied to weights and switches. Emulated: tensors that the engine loses, what their parameters
then hold, tensors replaced by the target's, the aux boundaries it taps, norms of the aux input, residual and feedback
switches whose keys it ignores, a RoPE spelling that it does not read, a sliding window that it does not keep. Other
ignored keys are named in `Emulated.not_emulated`.

What an engine leaves uninitialised is whatever memory held: zeros on a fresh GPU, anything later. So a prediction is a
range over `FILLS`, never one number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from eyas.contract.engines.loading.ledger import Ledger
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft
from eyas.models.states import StateSource
from eyas.records.eval_record import Figures
from eyas.records.eval_rows import EvalRow
from eyas.records.probe_pack import ProbeLacksBoundary
from eyas.replay.figures import figures_of
from eyas.replay.replay import replay_states
from eyas.talk import Talk

Fill = Literal["zeros", "normal", "garbage"]
FILLS: tuple[Fill, ...] = get_args(Fill)
_NORMAL_STD, _GARBAGE_STD = 0.02, 3.0
_DEFAULT_THETA = 10_000.0
# Ledger keys that `_seen_spec` applies; other ignored keys are reported as not emulated.
_APPLIED_KEYS = ("norm_output", "norm_before_residual", "norm_before_fc", "fc_norm", "layer_ids")


class EmulationImpossible(EyasError):
    """The engine does not start with this draft, or uses a part of the target that the caller did not give."""

    code = "emulation-impossible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """A draft as an engine runs it.

    Attributes:
        draft: to be replayed.
        lost: canonical names of the tensors that hold the fill, or what a constructor leaves.
        not_emulated: ignored config keys whose effect is not in `draft`.
    """

    draft: Eagle3Draft
    lost: tuple[str, ...]
    not_emulated: tuple[str, ...]


@torch.no_grad()
def emulate(
    draft: Eagle3Draft, ledger: Ledger, fill: Fill, *, seed: int = 0, target: Mapping[str, Tensor] | None = None
) -> Emulated:
    """`draft` under `ledger`.

    Args:
        draft: as it was trained, loaded from the checkpoint that the ledger is about.
        ledger: of one engine.
        fill: what uninitialised parameters hold: zeros, N(0, 0.02), or N(0, 3) ("garbage").
        seed: of the fill.
        target: "embedding" and "head" [V, H], where the engine replaces the draft's by the target's.

    Raises:
        EmulationImpossible: the engine does not load it, or a part of the target is needed and not given.
    """
    if not ledger.tensors or ledger.stages["load"][0] in ("refuses", "crash"):
        raise EmulationImpossible(
            f"{ledger.engine.label} does not load this draft",
            ledger.reasons[0].diagnostic.where if ledger.reasons else ledger.engine.label,
            ledger.reasons[0].diagnostic.what if ledger.reasons else ledger.verdict,
            "run `eyas check` to see why",
        )
    spec, given = draft.spec, target or {}
    kept = _kept(spec, ledger)
    seen = _seen_spec(spec, ledger, kept)
    shared = {part: given.get(part) for part in ("embedding", "head")}
    for part in ("embedding", "head"):
        if getattr(seen, part) == "target" and shared[part] is None:
            shared[part] = _own_share(draft, part, ledger)
    served = Eagle3Draft(seen, target_embedding=shared["embedding"], target_head=shared["head"])
    served.to(device=draft.fc.weight.device, dtype=draft.dtype)
    old, generator = draft.state_dict(), torch.Generator().manual_seed(seed)
    lost = []
    for name, parameter in served.state_dict().items():
        if name in old and (name in kept or name == "t2d"):
            parameter.copy_(old[name])
        else:
            parameter.copy_(left_unfilled(name, parameter, fill, generator))
            lost.append(name)
    ignored = [key.key for key in ledger.keys if key.fate in ("ignored", "unknown")]
    not_emulated = tuple(key for key in ignored if not any(applied in key for applied in _APPLIED_KEYS))
    return Emulated(draft=served.eval(), lost=tuple(lost), not_emulated=not_emulated)


def _kept(spec: DraftSpec, ledger: Ledger) -> set[str]:
    """Canonical names of the tensors that reach the engine's parameters."""
    fates = {entry.name: entry.fate for entry in ledger.tensors}
    arrive = ("used", "shared")
    return {name for name, stored in spec.source_names.items() if fates.get(stored) in arrive}


def _seen_spec(spec: DraftSpec, ledger: Ledger, kept: set[str]) -> DraftSpec:
    """The switches as the engine sees them."""
    parameters = {entry.name: entry for entry in ledger.parameters if entry.state not in ("unused", "absent")}
    ignored = [entry.key for entry in ledger.keys if entry.fate in ("ignored", "unknown")]
    changes: dict[str, Any] = {"aux_norm": "none"}
    if any("fc_norm" in name for name in parameters):
        changes["aux_norm"] = "per-state"
    elif any("input_norm" in name for name in parameters):
        changes["aux_norm"] = "over-concat"
    if any(key.endswith("norm_output") for key in ignored):
        changes["feedback"] = "pre-norm"
    if any(key.endswith("norm_before_residual") for key in ignored):
        changes["residual"] = "pre-norm"
    if ledger.would_tap is not None and len(ledger.would_tap) == spec.num_aux:
        changes["aux_boundaries"] = ledger.would_tap
    codes = {reason.code for reason in ledger.reasons}
    if "rope-spelling-unread" in codes:  # the config class' own default, without scaling
        changes["rope"] = replace(spec.rope, theta=_DEFAULT_THETA, scaling=None)
    if "sliding-window-ignored" in codes:
        changes |= {"sliding_window": None, "layer_types": ()}
    for part, tensor in (("embedding", "embed_tokens"), ("head", "lm_head")):
        states = {entry.state for name, entry in parameters.items() if f"{tensor}.weight" in name}
        if "target" in states or (f"{tensor}.weight" not in kept and getattr(spec, part) == "target"):
            changes[part] = "target"
    return replace(spec, **changes)


def _own_share(draft: Eagle3Draft, part: str, ledger: Ledger) -> Tensor:
    """The target's tensor where the draft shares it already."""
    if getattr(draft.spec, part) == "target":
        return draft.embedding_weight if part == "embedding" else draft.head_weight
    raise EmulationImpossible(
        f"{ledger.engine.label} uses the target's {part}, which was not given",
        ledger.engine.label,
        f"the draft's own {part} is replaced or lost there",
        "give the target (--target T); a probe pack does not hold it",
    )


def left_unfilled(name: str, parameter: Tensor, fill: Fill, generator: torch.Generator) -> Tensor:
    """What a parameter that nothing fills holds: constructors set norms to one and maps and biases to zero."""
    if "norm" in name:
        return torch.ones_like(parameter)
    if not parameter.is_floating_point() or name.endswith("bias") or fill == "zeros":
        return torch.zeros_like(parameter)
    std = _NORMAL_STD if fill == "normal" else _GARBAGE_STD
    return (torch.randn(parameter.shape, generator=generator) * std).to(parameter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Accept length of a draft as trained, and as one engine runs it.

    Attributes:
        engine: label.
        trained: replayed as it was trained.
        served: fill -> replayed as the engine runs it; a single entry "exact" when nothing is left uninitialised.
        lost: canonical names of the tensors that the engine does not get.
        not_emulated: ignored config keys whose effect is not in the figures.
        blocked: codes of what keeps this launch from serving: the figures hold once it is mended.
    """

    engine: str
    trained: Figures
    served: Mapping[str, Figures]
    lost: tuple[str, ...]
    not_emulated: tuple[str, ...]
    blocked: tuple[str, ...] = ()

    @property
    def accept_length_range(self) -> tuple[float, float]:
        """Lowest and highest accept length over what memory may hold."""
        lengths = [figures.accept_length for figures in self.served.values()]
        return min(lengths), max(lengths)

    def as_document(self) -> dict[str, Any]:
        """The prediction as a JSON object."""
        low, high = self.accept_length_range
        return {
            "accept_length": {"low": low, "high": high},
            "served": {fill: asdict(figures) for fill, figures in self.served.items()},
            "lost": list(self.lost),
            "not_emulated": list(self.not_emulated),
            "blocked": list(self.blocked),
        }


def replayed(
    states: StateSource, draft: Eagle3Draft, rows: Sequence[EvalRow], num_draft_tokens: int, talk: Talk
) -> Figures:
    """The figures of `draft` as it is."""
    return figures_of(replay_states(states, draft, rows, num_draft_tokens, talk), num_draft_tokens)


def predict(
    states: StateSource,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    ledger: Ledger,
    num_draft_tokens: int,
    talk: Talk,
    *,
    target: Mapping[str, Tensor] | None = None,
    trained: Figures | None = None,
) -> Prediction:
    """Replay `draft` as trained and as `ledger`'s engine runs it.

    Args:
        states: of the target over `rows`, at the draft's and the engine's aux boundaries.
        target: see `emulate`.
        trained: figures of the draft as trained, where they are known already.

    Raises:
        EmulationImpossible: the engine does not load it.
        ProbeLacksBoundary: the engine taps states that the pack does not hold.
    """
    trained = trained or replayed(states, draft, rows, num_draft_tokens, talk)
    first = emulate(draft, ledger, FILLS[0], target=target)
    if not first.lost and first.draft.spec == draft.spec:  # nothing to compute again
        served = {"exact": trained}
    else:
        fills = FILLS if first.lost else FILLS[:1]
        drafts = {fill: emulate(draft, ledger, fill, target=target).draft for fill in fills}
        figures = {fill: replayed(states, one, rows, num_draft_tokens, talk) for fill, one in drafts.items()}
        served = {str(fill): found for fill, found in figures.items()} if first.lost else {"exact": figures["zeros"]}
    return Prediction(
        engine=ledger.engine.label,
        trained=trained,
        served=served,
        lost=first.lost,
        not_emulated=first.not_emulated,
        blocked=tuple(dict.fromkeys(r.code for r in ledger.reasons if r.verdict in ("refuses", "crash"))),
    )


def as_trained(engine: str, trained: Figures) -> Prediction:
    """Of our own engine: it computes the draft as it was trained (tests/replay/test_equals_engine.py)."""
    return Prediction(engine=engine, trained=trained, served={"exact": trained}, lost=(), not_emulated=())


def predict_each(
    states: StateSource,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    ledgers: Mapping[str, Ledger],
    trained: Figures,
    talk: Talk,
    *,
    target: Mapping[str, Tensor],
) -> dict[str, Prediction | EyasError]:
    """Label -> `predict`, or why there is none; `trained` gives K."""
    found = dict[str, Prediction | EyasError]()
    for label, ledger in ledgers.items():
        try:
            found[label] = predict(
                states, draft, rows, ledger, trained.num_draft_tokens, talk, target=target, trained=trained
            )
        except (EmulationImpossible, ProbeLacksBoundary) as error:
            found[label] = error
    return found


def predictions_document(engines: Mapping[str, Prediction | EyasError]) -> dict[str, Any]:
    """The predictions as a JSON object, by label."""
    return {
        label: {"refused": found.code, "why": found.why} if isinstance(found, EyasError) else found.as_document()
        for label, found in engines.items()
    }
