"""What only TensorRT-LLM's loader stumbles on: parts that must be there, a tied head, an activation it never reads."""

from collections.abc import Iterable

from eyas.contract.engines.loading.ledger import ParameterEntry, Reason, reason
from eyas.contract.engines.serving_engine import LoadedDraft
from eyas.contract.engines.version import at_least
from eyas.diagnostic import Convert, Edit, Remedies

# Source: _torch/modules/linear.py load_weights_fused_qkv_helper, load_weights_fused_gate_up_helper
_FUSED = ("qkv_proj.weight", "gate_up_proj.weight")
_MAP = "model.d2t"


def own_faults(draft: LoadedDraft) -> list[Reason]:
    """All of these faults; () for a draft that this loader accepts."""
    return [*_missing(draft), *_tied_head(draft), *_activation(draft)]


def _missing(draft: LoadedDraft) -> Iterable[Reason]:
    """A crash for every parameter that must be filled; the others silently keep what memory held."""
    # the loader of 1.2.0rc2, and that of MLA drafts in every version, look each tensor up
    is_strict = draft.rules.kind == "mla" or not at_least(draft.engine.rules, "1.2.0rc4")
    misfits = [e.remark for e in draft.loaded.entries if e.fate == "crash"]
    empty = [p for p in draft.parameters if p.state not in ("filled", "target", "unused")]
    empty = [p for p in empty if not any(remark.startswith(f"{p.name} ") for remark in misfits)]
    loud = [p for p in empty if is_strict or _is_asserted(p)]
    if not loud:
        return
    names = tuple(p.name for p in loud)
    lost = [e.name for e in draft.loaded.entries if e.fate == "dropped"]
    do: Remedies = "export the draft with these tensors"
    if lost:
        do = Convert(draft=draft.where, to=draft.rules.engine)
    yield reason(
        code="loader-asserts",
        verdict="crash",
        what=f"the loader raises: no tensors for {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}",
        where=draft.where,
        why=_why(loud[0], is_strict) + (f"; {len(lost)} tensors are dropped, such as {lost[0]}" if lost else ""),
        do=do,
        items=names,
    )


def _is_asserted(parameter: ParameterEntry) -> bool:
    return parameter.name == _MAP or parameter.name.endswith((*_FUSED, ".bias"))


def _why(parameter: ParameterEntry, is_strict: bool) -> str:
    if parameter.name == _MAP:
        return f"AssertionError: {_MAP} is built for a reduced vocabulary and must be in the checkpoint"
    if parameter.name.endswith(".bias"):
        return f"AssertionError: {parameter.name} is built by the config and must be in the checkpoint"
    if parameter.name.endswith(_FUSED):
        return f"AssertionError: all parts of {parameter.name} must be in the checkpoint ({parameter.remark or 'none'})"
    return f"KeyError at {parameter.name}" if is_strict else ""


def _tied_head(draft: LoadedDraft) -> Iterable[Reason]:
    """Source: modeling_utils.py DecoderModelForCausalLM.__init__ reads embed_tokens.tp_size; here it is None."""
    config = draft.config
    if not config.ties_head or config.target_hidden != config.size("hidden_size"):
        return
    yield reason(
        code="head-tied",
        verdict="crash",
        what="tie_word_embeddings is true",
        where=f"{draft.where}: config.json: tie_word_embeddings",
        why="the head is tied to an embedding that the draft borrows later: AttributeError ('NoneType' has no tp_size)",
        do=Edit("tie_word_embeddings", False),
        items=("tie_word_embeddings",),
    )


def _activation(draft: LoadedDraft) -> Iterable[Reason]:
    found = draft.config.get("hidden_act", "silu")
    if found == "silu":
        return
    yield reason(
        code="activation-ignored",
        verdict="silent-damage",
        severity="fatal",
        what=f"hidden_act is {found!r}: the draft's MLP computes silu",
        where=f"{draft.where}: config.json: hidden_act",
        why="the draft's MLP is built without an activation from the config, without a log line",
        do="train with silu; a different activation cannot be served",
        items=("hidden_act",),
    )
