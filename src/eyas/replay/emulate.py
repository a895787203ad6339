"""A draft as an engine runs it, by that engine's ledger.

The engine's ledger is applied to weights and switches. Emulated: tensors that the engine loses, what their parameters
then hold, tensors replaced by the target's, quantised values whose scales it loses, the aux boundaries it taps, norms
of the aux input, residual and feedback switches whose keys it ignores, biases and norms of queries and keys that its
class has not, a RoPE spelling that it does not read, and a sliding window that it does not keep. An fc that it skips
and a head that is the embedding of other ids cannot be emulated: there is no prediction then. Keys whose meaning eyas
does not know are named in `Emulated.not_emulated`.

What an engine leaves uninitialised is whatever memory held: zeros on a fresh GPU, anything later. So a prediction is a
range over `FILLS`, never one number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from eyas.contract.engines.loading.ledger import Ledger
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.tensor_names import PACKED_WEIGHTS, module_and_kind
from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft

Fill = Literal["zeros", "normal", "garbage"]
FILLS: tuple[Fill, ...] = get_args(Fill)
_NORMAL_STD, _GARBAGE_STD = 0.02, 3.0
_DEFAULT_THETA = 10_000.0
_FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
# Ledger keys that `_seen_spec` applies (a bias that is lost is zero); other ignored keys are reported as not emulated.
_APPLIED_KEYS = (
    "norm_output",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "use_aux_norm",
    "layer_ids",
    "bias",
)
# Of the reasons of silent damage: those whose effect is in the figures (a tensor that an engine cuts or pads is so in
# the draft that is given), and those that leave no figure.
EMULATED = frozenset({
    "activation-ignored", "aux-layers-differ", "head-cut", "head-tied", "parameters-unfilled", "rope-spelling-unread",
    "scales-lost", "sliding-window-ignored", "switches-ignored", "tensor-cut", "tensor-padded", "tensors-dropped",
    "vocab-map-missing", "vocab-map-wrong",
})  # fmt: skip
IMPOSSIBLE = frozenset({"aux-capture-off", "fc-skipped"})


class EmulationImpossible(EyasError):
    """The engine does not start with this draft, or uses a part of the target that the caller did not give."""

    code = "emulation-impossible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """A draft as an engine runs it.

    Attributes:
        draft: to be replayed.
        lost: canonical names of the tensors that hold the fill, or what a constructor leaves.
        not_emulated: ignored config keys, and codes of reasons, whose effect is not in `draft`.
        unscaled: canonical names of quantised tensors that stand without their scales.
    """

    draft: Eagle3Draft
    lost: tuple[str, ...]
    not_emulated: tuple[str, ...]
    unscaled: tuple[str, ...] = ()


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
    if found := next((r for r in ledger.reasons if r.code in IMPOSSIBLE), None):
        raise impossible(ledger, found.diagnostic.what)
    spec = draft.spec
    kept = _kept(spec, ledger)
    if "d2t" in kept and int((torch.arange(spec.draft_vocab_size) + draft.d2t.cpu()).max()) >= spec.vocab_size:
        raise impossible(ledger, f"d2t names ids beyond the target's {spec.vocab_size}: an index error ends the engine")
    seen = _seen_spec(spec, ledger, kept)
    shared = _shared(draft, seen, ledger, target or {})
    unscaled = _unscaled(draft, ledger) & kept
    served = Eagle3Draft(seen, target_embedding=shared["embedding"], target_head=shared["head"])
    served.to(device=draft.fc.weight.device, dtype=draft.dtype)
    old, generator = draft.state_dict(), torch.Generator().manual_seed(seed)
    lost = []
    for name, parameter in served.state_dict().items():
        if name in unscaled:
            parameter.copy_(draft.unscaled[name])
        elif name in old and (name in kept or name == "t2d"):
            parameter.copy_(old[name])
        else:
            is_open = name.endswith("bias") and _is_uninitialised(name, ledger)
            parameter.copy_(left_unfilled(name, parameter, fill, generator, is_constructed=not is_open))
            lost.append(name)
    ignored = [key.key for key in ledger.keys if key.fate in ("ignored", "unknown")]
    others = [r.code for r in ledger.reasons if r.verdict == "silent-damage" and r.code not in EMULATED]
    unknown = [key for key in ignored if not any(applied in key for applied in _APPLIED_KEYS)]
    return Emulated(
        draft=served.eval(),
        lost=tuple(lost),
        not_emulated=tuple(dict.fromkeys([*unknown, *others])),
        unscaled=tuple(sorted(unscaled)),
    )


def _unscaled(draft: Eagle3Draft, ledger: Ledger) -> set[str]:
    """Canonical names of quantised weights that the engine casts without their scales."""
    canonical = {stored: name for name, stored in draft.spec.source_names.items()}
    lost = [item for reason in ledger.reasons if reason.code == "scales-lost" for item in reason.diagnostic.items]
    names = {f"{module_and_kind(canonical.get(item, item))[0]}.weight" for item in lost}
    return names & draft.unscaled.keys()


def _kept(spec: DraftSpec, ledger: Ledger) -> set[str]:
    """Canonical names of the tensors that reach the engine's parameters."""
    fates = {entry.name: entry.fate for entry in ledger.tensors}
    arrived = {name for name, stored in spec.source_names.items() if fates.get(stored) in ("used", "shared")}
    # a norm can be loaded and not applied: in upper layers SGLang applies hidden_norm, vLLM input_layernorm
    empty = [f".{p.name}" for p in ledger.parameters if p.state in ("ones", "zeros", "uninitialised")]
    empty += [name.replace("hidden_norm", "input_layernorm") for name in empty if ".layers.0." not in name]
    arrived = {name for name in arrived if not any(parameter.endswith(f".{name}") for parameter in empty)}
    parts = (module_and_kind(name) for name in arrived)
    return arrived | {f"{module}.weight" for module, kind in parts if kind in PACKED_WEIGHTS}


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
    if ledger.norms_residual is not None:  # a class of configs can have another default than the format
        changes["residual"] = "post-norm" if ledger.norms_residual else "pre-norm"
    if ledger.would_tap is not None and len(ledger.would_tap) == spec.num_aux:
        changes["aux_boundaries"] = ledger.would_tap
    codes = {reason.code for reason in ledger.reasons}
    if "rope-spelling-unread" in codes:  # the config class' own default, without scaling
        changes["rope"] = replace(spec.rope, theta=_DEFAULT_THETA, scaling=None)
    if "sliding-window-ignored" in codes:
        changes |= {"sliding_window": None, "layer_types": ()}
    if "activation-ignored" in codes:
        changes["activation"] = "silu"
    if spec.draft_class == "gqa":  # a class can have norms of queries and keys that the draft was trained without
        changes["qk_norm"] = any("q_norm" in name for name in parameters)
    for part, tensor in (("embedding", "embed_tokens"), ("head", "lm_head")):
        states = {entry.state for name, entry in parameters.items() if f"{tensor}.weight" in name}
        if "target" in states or (f"{tensor}.weight" not in kept and getattr(spec, part) == "target"):
            changes[part] = "own" if "uninitialised" in states else "target"  # built, and never made the target's
    if "head-tied" in codes:
        changes["head"] = "tied"
    return replace(spec, **changes)


def _shared(
    draft: Eagle3Draft, seen: DraftSpec, ledger: Ledger, given: Mapping[str, Tensor]
) -> dict[str, Tensor | None]:
    """The target's embedding and head as far as the engine computes with them."""
    shared = {part: given.get(part) for part in ("embedding", "head")}
    for part in ("embedding", "head"):
        if getattr(seen, part) == "target" and shared[part] is None:
            shared[part] = _own_share(draft, part, ledger)
    if seen.head == "tied" and (seen.has_vocab_map or shared["head"] is None):
        why = "its rows are not those of the draft's ids" if seen.has_vocab_map else "a probe pack holds a part of it"
        raise impossible(ledger, f"the target's embedding is the head, and {why}")
    if seen.head == "target" and (head := shared["head"]) is not None:
        shared["head"] = head[: seen.draft_vocab_size]  # engines cut it to the first rows
    return shared


def impossible(ledger: Ledger, why: str) -> EmulationImpossible:
    """The error for an engine that computes what cannot be emulated, or not on these texts."""
    label = ledger.engine.label
    return EmulationImpossible(
        f"{label} computes what eyas does not emulate", label, why, "mend that first: `eyas check` says how"
    )


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


def _is_uninitialised(bias: str, ledger: Ledger) -> bool:
    """The engine builds this bias and sets it to nothing; of a fused one, it lacks this part."""
    part = bias.split(".")[-2]
    names = (f"{part}.bias", f"{_FUSED.get(part, part)}.bias")
    states = {entry.state for entry in ledger.parameters if entry.name.endswith(names)}
    return bool(states & {"uninitialised", "partly"})


def left_unfilled(
    name: str, parameter: Tensor, fill: Fill, generator: torch.Generator, *, is_constructed: bool = True
) -> Tensor:
    """What a parameter that nothing fills holds: constructors set norms to one and maps and most biases to zero.

    Args:
        is_constructed: False = a bias that the constructor leaves as memory was.
    """
    if "norm" in name:
        return torch.ones_like(parameter)
    is_zero = name.endswith("bias") and is_constructed
    if not parameter.is_floating_point() or is_zero or fill == "zeros":
        return torch.zeros_like(parameter)
    std = _NORMAL_STD if fill == "normal" else _GARBAGE_STD
    return (torch.randn(parameter.shape, generator=generator) * std).to(parameter)
