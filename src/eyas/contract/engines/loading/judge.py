"""`judge`: the ledger of one engine (and runner) for one draft: class, parameters, loading, sharing, aux capture."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eyas.contract.engines.loading.aux_states import aux_reasons
from eyas.contract.engines.loading.config_reasons import position_reasons, start_reasons
from eyas.contract.engines.loading.damage import key_reasons, map_reasons, parameter_reasons, tensor_reasons
from eyas.contract.engines.loading.key_fates import key_fates
from eyas.contract.engines.loading.ledger import (
    Ledger,
    ParameterEntry,
    Reason,
    Stage,
    TensorEntry,
    reason,
    said,
    verdict_of,
)
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.load_tensors import Loaded, load_tensors
from eyas.contract.engines.loading.runtime_parameters import Parameter, num_aux_states, runtime_parameters
from eyas.contract.engines.loading.seen_config import SeenConfig
from eyas.contract.engines.loading.target_hooks import TargetHook, target_hook
from eyas.contract.engines.registry import engine_named
from eyas.contract.engines.serving_engine import LoadedDraft, Loading
from eyas.contract.engines.version import EngineVersion, at_least
from eyas.contract.files.checkpoint import Checkpoint, IntMap
from eyas.contract.spec.draft_spec import DraftReading
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Convert

_FUSION = ("model.fc.", "model.input_norm.", "model.fc_norm.")
_SHOWN = 8  # messages of a crash beyond the first; its items name all tensors


def judge(
    draft: Checkpoint,
    reading: DraftReading | None,
    target: TargetSpec | None,
    engine: EngineVersion,
    runner: str | None,
    *,
    algorithm: str = "EAGLE3",
) -> Ledger:
    """What `engine` does with `draft`.

    Args:
        reading: the draft as understood (for the boundaries it was trained on); None when it could not be read.
        target: None = hooks, depth and sharing are judged only where the target does not matter.
        runner: the engine's model runner; None where it has only one.
        algorithm: of the launch; EAGLE is what a user asks for by mistake.
    """
    where, known = draft.where, engine_named(engine.engine)
    loading = known.loading
    selection = loading.select(engine, draft.config, where, algorithm)
    # a draft that eyas cannot read is not judged by the rules of a class that it may not be meant for
    if selection.rules is None or selection.config is None or (selection.reasons and reading is None):
        stops = [replace(found, stage="start") for found in selection.reasons]
        return _ledger(engine, runner, selection.class_name, stops)
    rules, config = selection.rules, selection.config
    hook = target_hook(loading.hooks, engine, target.architectures if target else ())
    parameters = runtime_parameters(rules, config)
    loaded = load_tensors(rules, config, parameters, draft, map_exists=_map_exists(rules, config, target))
    trained = reading.spec.aux_boundaries if reading else None
    capture = loading.capture(engine, runner, config, hook, target.num_layers if target else None, trained)
    built = _parameter_entries(rules, config, parameters, loaded)
    if capture.is_off:  # what fuses aux states is never applied
        built = tuple(replace(p, state="unused") if p.name.startswith(_FUSION) and not p.sources else p for p in built)
    tensors, entries = _shared(rules, config, loaded, built, target)
    keys = key_fates(rules, draft.config)
    has_fc = any(name.endswith("fc.weight") or ".fc." in f".{name}" for name in draft.tensors)
    via = f"{engine.label} ({runner} runner)" if runner else engine.label
    remedy = loading.aux_remedy(trained, runner, where) if trained is not None else ""
    num_aux = num_aux_states(rules, config)
    state = LoadedDraft(
        where=where,
        engine=engine,
        runner=runner,
        rules=rules,
        config=config,
        loaded=loaded,
        parameters=entries,
        target=target,
        algorithm=algorithm,
    )
    transformers = known.releases.of(engine.rules).transformers
    found: dict[Stage, list[Reason]] = {
        "start": [
            *selection.reasons,
            *start_reasons(rules, config, where, _head_rows(draft), _deeper_since(loading, rules)),
        ],
        "load": [
            *_crash(loaded, rules.engine, where),
            *parameter_reasons(rules, config, entries, loaded, where),
            *tensor_reasons(rules, tensors, loaded, where),
            *map_reasons(rules, config, _int_maps(draft), loaded, where),
            *key_reasons(rules, config, keys, where),
            *position_reasons(engine, rules, config, reading, transformers, where),
        ],
        "capture": [
            *([] if capture.is_off else _hook_reasons(loading, engine, hook, where)),
            *aux_reasons(via, capture, hook, reading, target, num_aux, config, where, remedy, has_fc),
        ],
    }
    of_stages = (replace(reason, stage=stage) for stage, part in found.items() for reason in part)
    reasons = (*of_stages, *loading.own_reasons(state))
    ledger = _ledger(engine, runner, selection.class_name, reasons)
    taps = capture.boundaries if ledger.starts else None
    ledger = replace(ledger, tensors=tensors, parameters=entries, keys=keys, aux=taps, would_tap=capture.boundaries)
    if rules.reads_residual:
        ledger = replace(ledger, norms_residual=bool(config.get("norm_before_residual")))
    return ledger if selection.reasons else replace(ledger, source=rules.source, grade=engine.grade)


def _ledger(engine: EngineVersion, runner: str | None, draft_class: str | None, reasons: Sequence[Reason]) -> Ledger:
    """A ledger of reasons alone, as far as the model registry and the config classes decide."""
    verdict, severity = verdict_of(reasons)
    return Ledger(
        engine=engine,
        runner=runner,
        draft_class=draft_class,
        verdict=verdict,
        severity=severity,
        reasons=tuple(reasons),
        tensors=(),
        parameters=(),
        keys=(),
        aux=None,
        source=f"{engine.engine} {engine.rules} model registry and config classes",
        # no loader was run over a refusal
        grade="inferred" if engine.grade == "inferred" else "read",
    )


def _hook_reasons(loading: Loading, engine: EngineVersion, hook: TargetHook, where: str) -> list[Reason]:
    """One reason when the target's class has no hook, no head access, or is unknown to this version."""
    fault = loading.hook_fault(engine, hook)
    if fault is None:
        return []
    verdict, what, why = fault
    patched = "if yours is patched, go by the other findings: they hold as soon as the target can be tapped"
    if hook.first and at_least(engine.rules, hook.first):
        do = "no later version in the table has it again; choose another engine"
    elif hook.first:
        do = f"use {engine.engine} {hook.first} or newer"
    else:
        do = "no version known has it; patch the model file"
    place = f"{where} with target class {hook.architecture} ({hook.source or 'model registry'})"
    return [
        reason(
            code="target-hook-missing",
            verdict=verdict,
            what=f"{what} as released",
            where=place,
            why=why,
            do=(do, patched),
            items=(hook.architecture,),
        )
    ]


def _deeper_since(loading: Loading, rules: LoadRules) -> str | None:
    """First version whose class of this name takes more layers than `rules` do."""
    same = (r for r in loading.rules if r.draft_class == rules.draft_class and r.max_layers is None)
    return next((r.since for r in same), None)


def _map_exists(rules: LoadRules, config: SeenConfig, target: TargetSpec | None) -> bool:
    vocab = (target.vocab_size if target else None) or config.size("vocab_size")
    return rules.map_when_full or config.draft_vocab != vocab


def _head_rows(draft: Checkpoint) -> int | None:
    heads = [info.shape for name, info in draft.tensors.items() if name.endswith("lm_head.weight")]
    return heads[0][0] if len(heads) == 1 and heads[0] else None


def _int_maps(draft: Checkpoint) -> Mapping[str, IntMap]:
    return {name.rsplit(".", 1)[-1]: found for name, found in draft.int_maps.items()}


def _crash(loaded: Loaded, engine: str, where: str) -> list[Reason]:
    """One reason for all tensors that the loader raises at; it stops at the first of them."""
    if not loaded.crashes:
        return []
    (name, message), *more = loaded.crashes
    others = f" and {len(more)} more" if more else ""
    messages = [message, *(f"{other}: {said}" for other, said in more[:_SHOWN])]
    left = [f"and {len(more) - _SHOWN} more"] if len(more) > _SHOWN else []
    do = (
        Convert(draft=where, to=engine),
        "export the tensor as the class expects it, or correct the config key that sizes or enables it",
    )
    items = [tensor for tensor, _ in loaded.crashes]
    told = "; then ".join([*messages, *left])
    return [said("loader-crash", f"{where}: {name}", items, do=do, name=name, others=others, messages=told)]


def _parameter_entries(
    rules: LoadRules, config: SeenConfig, parameters: Mapping[str, Parameter], loaded: Loaded
) -> tuple[ParameterEntry, ...]:
    entries = [_parameter_entry(p, loaded.filled.get(p.name, {}), loaded) for p in parameters.values()]
    if config.draft_vocab < config.size("vocab_size") or rules.map_parameter in loaded.filled:
        filled = loaded.filled.get(rules.map_parameter, {})
        raised = any(e.fate == "crash" and "d2t" in e.name for e in loaded.entries)
        entries.append(
            ParameterEntry(
                name=rules.map_parameter,
                shape=(config.draft_vocab,),
                state="filled" if filled else "crash" if raised else "zeros" if rules.map_is_parameter else "absent",
                sources=tuple(filled.values()),
                remark="" if filled else "draft ids are taken for target ids",
            )
        )
    return tuple(entries)


def _parameter_entry(parameter: Parameter, filled: Mapping[str, str], loaded: Loaded) -> ParameterEntry:
    entry = ParameterEntry(
        name=parameter.name, shape=parameter.shape, state=parameter.initial, sources=tuple(filled.values())
    )
    if any(e.fate == "crash" and e.parameter == parameter.name for e in loaded.entries):
        return replace(entry, state="crash")
    if not filled:
        return entry
    missing = [s for s, _ in parameter.shards if s not in filled] if "" not in filled else []
    if missing and parameter.initial == "zeros":
        # a bias that is not there is a bias of zero
        return replace(entry, state="filled", remark=f"no tensor for {', '.join(missing)}: zeros")
    if missing:
        return replace(entry, state="partly", remark=f"{', '.join(missing)} missing: what memory held")
    if any(name in loaded.padded for name in filled.values()):
        return replace(entry, state="partly", remark="the rest is zeros")
    return replace(entry, state="filled")


def _shared(
    rules: LoadRules,
    config: SeenConfig,
    loaded: Loaded,
    parameters: tuple[ParameterEntry, ...],
    target: TargetSpec | None,
) -> tuple[tuple[TensorEntry, ...], tuple[ParameterEntry, ...]]:
    """Embedding and head after the engine has shared or overwritten them with the target's."""
    hidden = config.size("hidden_size")
    is_wider = (config.has("target_hidden_size") and config.target_hidden != hidden) or (
        rules.compares_widths and target is not None and target.hidden_size != hidden
    )
    has_embedding = "model.embed_tokens.weight" in loaded.filled
    has_head = "lm_head.weight" in loaded.filled
    takes: dict[str, str] = {}
    if not is_wider and not (rules.own_embedding and has_embedding):
        takes["model.embed_tokens.weight"] = "the target's"
    takes_head = rules.head_absent == "target" and not has_head
    if rules.head_absent == "target-unless-named":
        takes_head = not any("lm_head" in entry.name for entry in loaded.entries)
    if rules.head_by_key and not (rules.ties_head and config.ties_head):
        takes_head = config.get("draft_vocab_size") is None
    if takes_head:
        takes["lm_head.weight"] = "the target's"
    entries = tuple(
        replace(p, state="target", remark=_head_remark(config) if p.name.startswith("lm_head") else "")
        if p.name in takes
        else p
        for p in parameters
    )
    tensors = tuple(
        replace(t, fate="overwritten", remark="replaced by the target's after loading")
        if t.fate == "used" and t.parameter in takes
        else t
        for t in loaded.entries
    )
    return tensors, entries


def _head_remark(config: SeenConfig) -> str:
    if config.draft_vocab < config.size("vocab_size"):
        return f"the target's head, cut to its first {config.draft_vocab} rows"
    return ""
