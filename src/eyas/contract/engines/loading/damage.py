"""What lost tensors, unfilled parameters, ignored switches and broken maps cost: the reasons behind "silent damage"."""

from collections.abc import Mapping, Sequence

from eyas.contract.engines.loading.ledger import KeyEntry, ParameterEntry, Reason, TensorEntry, said
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.load_tensors import Loaded
from eyas.contract.engines.loading.seen_config import SeenConfig
from eyas.contract.files.checkpoint import IntMap
from eyas.contract.files.int_map import absolute_evidence, is_absolute
from eyas.contract.spec.tensor_names import SCALE_SUFFIXES
from eyas.diagnostic import Convert, Edit
from eyas.talk import counted

_FATAL_WHEN_UNFILLED = ("lm_head.weight", "model.fc.weight", "model.embed_tokens.weight")
# such a switch costs something only through its tensors
_BIAS_KEYS = ("attention_bias", "mlp_bias", "bias")
_FUSED = {"qkv_proj": "qkv", "gate_up_proj": ("gate", "up")}
_MAPS = ("hot_token_id", "draft_id_to_target_id")
# left over from training (speculators): the draft does not need them
_TRAINING_ONLY = ("verifier_norm.", "verifier_lm_head.")


def parameter_reasons(
    rules: LoadRules, config: SeenConfig, parameters: Sequence[ParameterEntry], loaded: Loaded, where: str
) -> list[Reason]:
    """Reasons for parameters that no tensor fills. One whose tensor makes the loader raise has its reason there."""
    lost = [p for p in parameters if p.state not in ("filled", "target", "crash") and not _is_harmless(p)]
    meant = {_leaf(e.name) for e in loaded.entries if e.fate == "crash" and e.parameter is None}
    lost = [p for p in lost if not meant.intersection(_leaves(p))]
    found: list[Reason] = []
    if vocabulary := [p for p in lost if p.name in _MAPS]:
        found.append(_no_map(config, vocabulary[0], where))
    weights = [p for p in lost if p.name not in _MAPS]
    if weights:
        found.append(_unfilled(rules, weights, loaded, where))
    head = next((p for p in parameters if p.name == "lm_head.weight"), None)
    if head is not None and head.state == "target" and config.draft_vocab < config.size("vocab_size"):
        taken = head.remark or "the head of the target"
        facts = {"draft_vocab": config.draft_vocab, "engine": rules.engine, "head": taken}
        found.append(said("head-cut", where, (head.name,), facts=facts))
    if rules.ties_head and config.ties_head:
        found += _tied(config, loaded, where)
    for names, code in ((loaded.cut, "tensor-cut"), (loaded.padded, "tensor-padded")):
        if names:
            number, first = counted(len(names), "tensor is", "tensors are"), next(iter(names))
            told = {"number": number, "names": _short(list(names)), "first": first, "remark": names[first]}
            found.append(said(code, where, names, facts=told))
    return found


def _leaf(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _leaves(parameter: ParameterEntry) -> set[str]:
    """Suffixes of the tensor names that could fill it; for a fused parameter, those of its parts."""
    leaf = _leaf(parameter.name)
    return {leaf} | {leaf.replace(whole, f"{part}_proj") for whole, parts in _FUSED.items() for part in parts}


def _is_harmless(parameter: ParameterEntry) -> bool:
    """Never applied, or a bias that stays zero."""
    return parameter.state == "unused" or (parameter.state == "zeros" and parameter.name.endswith(".bias"))


def _no_map(config: SeenConfig, parameter: ParameterEntry, where: str) -> Reason:
    facts = {"draft_vocab": config.draft_vocab, "vocab": config.size("vocab_size"), "name": parameter.name}
    state = "unset" if parameter.state == "absent" else "zero"
    return said("vocab-map-missing", where, (parameter.name,), state=state, facts=facts)


def _unfilled(rules: LoadRules, lost: Sequence[ParameterEntry], loaded: Loaded, where: str) -> Reason:
    names = [p.name for p in lost]
    weights = [p for p in lost if not p.name.endswith("norm.weight") and not p.name.endswith(".bias")]
    is_fatal = any(n in _FATAL_WHEN_UNFILLED for n in names) or len(weights) >= 3
    dropped = [e.name for e in loaded.entries if e.fate == "dropped"]
    number = counted(len(dropped), "checkpoint tensor is", "checkpoint tensors are")
    return said(
        "parameters-unfilled",
        where,
        names,
        severity="fatal" if is_fatal else "severe",
        do=Convert(draft=where, to=rules.engine) if dropped else None,
        number=counted(len(names), "parameter gets", "parameters get"),
        names=_short(names),
        they="it stays" if len(names) == 1 else "they stay",
        held=", ".join(sorted({f"{p.state}" for p in lost})),
        dropped=f" ({number} dropped, {_short(dropped)})" if dropped else "",
    )


def _tied(config: SeenConfig, loaded: Loaded, where: str) -> list[Reason]:
    own = [e.name for e in loaded.entries if e.name.endswith("lm_head.weight") and e.fate == "dropped"]
    if not own and config.draft_vocab >= config.size("vocab_size"):
        return []
    why = "the draft's own lm_head is dropped" if own else "its rows are not those of the draft's ids"
    do = Edit("tie_word_embeddings", False)
    return [said("head-tied", f"{where}: config.json: tie_word_embeddings", own or ("lm_head.weight",), do=do, why=why)]


def tensor_reasons(rules: LoadRules, tensors: Sequence[TensorEntry], loaded: Loaded, where: str) -> list[Reason]:
    """Reasons for tensors that are dropped although no parameter waits for them, or cast without their scale."""
    found: list[Reason] = []
    dropped = [t for t in tensors if t.fate == "dropped" and not _is_about_a_parameter(rules, t.name)]
    scales = [t.name for t in dropped if t.name.rsplit(".", 1)[-1] in SCALE_SUFFIXES]
    leftovers = [t.name for t in dropped if t.name.removeprefix("model.").startswith(_TRAINING_ONLY)]
    others = [t.name for t in dropped if t.name not in scales and t.name not in leftovers]
    if others:
        first = next(t for t in dropped if t.name == others[0])
        number = counted(len(others), "tensor of the draft is", "tensors of the draft are")
        do = "use an engine version that has them", Convert(draft=where, to=rules.engine)
        facts = {"number": number, "names": _short(others), "remark": first.remark}
        found.append(said("tensors-dropped", where, others, do=do, facts=facts))
    if scales or loaded.unscaled:
        lost = list(loaded.unscaled) or scales
        found.append(said("scales-lost", where, lost, names=_short(lost)))
    return found


def _is_about_a_parameter(rules: LoadRules, name: str) -> bool:
    """Its loss shows as an unfilled parameter already (a renamed layer, fc, head)."""
    bare = name.removeprefix("model.").removeprefix("model.")
    if bare.endswith((".bias", "q_norm.weight", "k_norm.weight")):
        return False
    if bare.startswith("layers.") and not bare.startswith("layers.0."):
        return rules.layer_module != "midlayer"
    return bare.startswith(("midlayer.", "layers.0.", "fc.", "norm.", "lm_head.", "embed_tokens."))


def map_reasons(
    rules: LoadRules, config: SeenConfig, maps: Mapping[str, IntMap], loaded: Loaded, where: str
) -> list[Reason]:
    """Reasons for a vocabulary map that is loaded and wrong."""
    d2t, t2d = maps.get("d2t"), maps.get("t2d")
    if d2t is None or rules.map_parameter not in loaded.filled:
        return []
    fault = vocab_map_fault(d2t, t2d, config.size("draft_vocab_size") or d2t.length, config.size("vocab_size"))
    if fault is None:
        return []
    is_fixable = absolute_evidence(d2t, t2d, config.size("vocab_size") or 0) is not None
    do = Convert(draft=where, to=rules.engine, fix="d2t-absolute") if is_fixable else None
    return [said("vocab-map-wrong", f"{where}: d2t", ("d2t",), do=do, fault=fault, draft_class=rules.draft_class)]


def vocab_map_fault(d2t: IntMap, t2d: IntMap | None, draft_vocab: int, vocab: int) -> str | None:
    """What is wrong with `d2t` read as offsets; None if nothing shows."""
    if d2t.minimum == d2t.maximum == 0 and (draft_vocab >= vocab or (t2d is not None and t2d.digest == d2t.digest)):
        return None
    agrees = t2d is None or t2d.digest == d2t.digest
    if is_absolute(d2t, t2d):
        return "it holds absolute target ids (they agree with t2d), not offsets"
    if d2t.length != draft_vocab and draft_vocab:
        return f"{d2t.length} entries for {draft_vocab} draft ids"
    if d2t.ids_minimum < 0 or (vocab and d2t.ids_maximum >= vocab):
        return f"ids {d2t.ids_minimum} ... {d2t.ids_maximum} in a vocabulary of {vocab}"
    if not d2t.ids_strictly_increasing:
        return "several draft ids mean the same target id, or their order is not that of the head"
    if d2t.minimum == 0 and d2t.maximum == d2t.length - 1 and d2t.is_strictly_increasing and d2t.length > 8:
        return "it counts 0, 1, 2 ... (a default never replaced): draft id i becomes 2i"
    if d2t.minimum == d2t.maximum == 0 and draft_vocab < vocab:
        return "all offsets are zero (a default never replaced): the first ids of the vocabulary"
    if not agrees:
        return "it does not give the ids that t2d marks"
    return None


def key_reasons(rules: LoadRules, config: SeenConfig, keys: Sequence[KeyEntry], where: str) -> list[Reason]:
    """Reasons for switches that are set and not read."""
    ignored = [k for k in keys if k.fate == "ignored" and k.key.rsplit(".", 1)[-1] not in _BIAS_KEYS]
    if not ignored:
        return []
    names = [k.key for k in ignored]
    facts = {"engine": rules.engine, "names": ", ".join(names), "first": names[0], "remark": ignored[0].remark}
    return [said("switches-ignored", f"{where}: config.json", names, facts=facts)]


def _short(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} ... ({len(names)})"
