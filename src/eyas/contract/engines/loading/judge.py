"""`judge`: the ledger of one engine (and runner) for one draft: class, parameters, loading, sharing, aux capture."""

from collections.abc import Mapping
from dataclasses import replace

from eyas.contract.engines.loading.aux_capture import aux_capture
from eyas.contract.engines.loading.aux_reasons import aux_reasons
from eyas.contract.engines.loading.damage import key_reasons, map_reasons, parameter_reasons, tensor_reasons
from eyas.contract.engines.loading.hook_reasons import hook_reasons
from eyas.contract.engines.loading.key_fates import key_fates
from eyas.contract.engines.loading.ledger import Ledger, ParameterEntry, Reason, TensorEntry, reason, verdict_of
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.load_tensors import Loaded, load_tensors
from eyas.contract.engines.loading.position_reasons import position_reasons
from eyas.contract.engines.loading.runtime_parameters import Parameter, num_aux_states, runtime_parameters
from eyas.contract.engines.loading.seen_config import SeenConfig
from eyas.contract.engines.loading.select_class import Selection, select_class
from eyas.contract.engines.loading.start_reasons import start_reasons
from eyas.contract.engines.loading.target_hooks import TargetHook, target_hook
from eyas.contract.engines.version import EngineVersion
from eyas.contract.files.checkpoint import Checkpoint, IntMap
from eyas.contract.spec.draft_reading import DraftReading
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Flag


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
        target: None = hooks, depth and sharing are judged as far as they go without.
        runner: vLLM's; None for SGLang.
        algorithm: of the launch; EAGLE is what a user asks for by mistake.
    """
    selection = select_class(engine, draft.config, where=draft.where, algorithm=algorithm)
    if selection.rules is None or selection.config is None:
        return _without_rules(engine, runner, selection)
    rules, config = selection.rules, selection.config
    hook = target_hook(engine, target.architectures) if target else TargetHook(status="unknown", architecture="")
    parameters = runtime_parameters(rules, config)
    map_exists = _map_exists(rules, config, target)
    loaded = load_tensors(rules, config, parameters, draft, map_exists=map_exists)
    capture = aux_capture(engine, runner, config, hook, target.num_layers if target else None)
    tensors, entries = _shared(rules, config, loaded, _parameter_entries(rules, config, parameters, loaded), target)
    reasons = [
        *start_reasons(rules, config, draft.where, _head_rows(draft)),
        *hook_reasons(engine, hook, draft.where),
        *_crash(loaded, draft.where),
        *parameter_reasons(rules, config, entries, loaded, draft.where),
        *tensor_reasons(rules, tensors, loaded, draft.where),
        *map_reasons(rules, config, _int_maps(draft), loaded, draft.where),
        *key_reasons(rules, config, key_fates(rules, draft.config), draft.where),
        *aux_reasons(engine, runner, capture, reading, target, num_aux_states(rules, config), config, draft.where),
        *position_reasons(engine, rules, config, reading, draft.where),
        *_quantised_head(engine, runner, target, loaded, draft.where),
        *_algorithm(engine, algorithm, draft.where),
    ]
    verdict, severity = verdict_of(reasons)
    starts = verdict in ("ok", "silent-damage")
    return Ledger(
        engine=engine,
        runner=runner,
        draft_class=selection.class_name,
        verdict=verdict,
        severity=severity,
        reasons=tuple(r for r in reasons if starts or r.verdict in ("refuses", "crash")),
        tensors=tensors,
        parameters=entries,
        keys=key_fates(rules, draft.config),
        aux=capture.boundaries if starts else None,
        source=rules.source,
        grade=engine.grade,
    )


def _without_rules(engine: EngineVersion, runner: str | None, selection: Selection) -> Ledger:
    verdict, severity = verdict_of(selection.reasons)
    return Ledger(
        engine=engine,
        runner=runner,
        draft_class=selection.class_name,
        verdict=verdict,
        severity=severity,
        reasons=selection.reasons,
        tensors=(),
        parameters=(),
        keys=(),
        aux=None,
        source=f"{engine.engine} {engine.rules} model registry and config classes",
        grade="read" if engine.grade != "inferred" else "inferred",
    )


def _map_exists(rules: LoadRules, config: SeenConfig, target: TargetSpec | None) -> bool:
    vocab = (target.vocab_size if target else None) or config.size("vocab_size")
    return rules.map_when_full or config.draft_vocab != vocab


def _head_rows(draft: Checkpoint) -> int | None:
    heads = [info.shape for name, info in draft.tensors.items() if name.endswith("lm_head.weight")]
    return heads[0][0] if len(heads) == 1 and heads[0] else None


def _int_maps(draft: Checkpoint) -> Mapping[str, IntMap]:
    return {name.rsplit(".", 1)[-1]: found for name, found in draft.int_maps.items()}


def _crash(loaded: Loaded, where: str) -> list[Reason]:
    if loaded.crash is None:
        return []
    name, message = loaded.crash
    return [
        reason(
            code="loader-crash",
            verdict="crash",
            what=f"the loader raises at {name}",
            where=f"{where}: {name}",
            why=message,
            do="export the tensor as the class expects it, or correct the config key that sizes or enables it",
            items=(name,),
        )
    ]


def _quantised_head(
    engine: EngineVersion, runner: str | None, target: TargetSpec | None, loaded: Loaded, where: str
) -> list[Reason]:
    # Source: vllm/v1/worker/gpu/spec_decode/eagle/utils.py _should_share compares with target.weight unguarded
    if runner != "v2" or target is None or not target.is_head_quantized or "lm_head.weight" not in loaded.filled:
        return []
    return [
        reason(
            code="target-head-quantised",
            verdict="crash",
            what="the target's lm_head is quantised and the draft has its own",
            where=f"{where} with {target.where}",
            why=f"{engine.label}'s V2 runner compares the two by `.weight`, which a quantised head does not have",
            do=(Flag("VLLM_USE_V2_MODEL_RUNNER", "0"), "serve a target whose lm_head is left unquantised"),
        )
    ]


def _algorithm(engine: EngineVersion, algorithm: str, where: str) -> list[Reason]:
    if algorithm != "EAGLE" or engine.engine != "sglang":
        return []
    return [
        reason(
            code="algorithm-eagle",
            verdict="silent-damage",
            severity="fatal",
            what="--speculative-algorithm EAGLE with an EAGLE-3 draft",
            where=where,
            why="no aux states are captured, fc is skipped by a shape test, the head is the target's, d2t is unused:"
            " the server is healthy and accepts nothing",
            do=Flag("--speculative-algorithm", "EAGLE3"),
        )
    ]


def _parameter_entries(
    rules: LoadRules, config: SeenConfig, parameters: Mapping[str, Parameter], loaded: Loaded
) -> tuple[ParameterEntry, ...]:
    entries = [_parameter_entry(p, loaded.filled.get(p.name, {}), loaded) for p in parameters.values()]
    if config.draft_vocab < config.size("vocab_size") or rules.map_parameter in loaded.filled:
        filled = loaded.filled.get(rules.map_parameter, {})
        entries.append(
            ParameterEntry(
                name=rules.map_parameter,
                shape=(config.draft_vocab,),
                state="filled" if filled else "absent" if rules.engine == "sglang" else "zeros",
                sources=tuple(filled.values()),
                remark="" if filled else "draft ids are taken for target ids",
            )
        )
    return tuple(entries)


def _parameter_entry(parameter: Parameter, filled: Mapping[str, str], loaded: Loaded) -> ParameterEntry:
    entry = ParameterEntry(
        name=parameter.name, shape=parameter.shape, state=parameter.initial, sources=tuple(filled.values())
    )
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
    # SGLang compares the key, if it is there, with hidden_size; vLLM compares the widths themselves
    is_wider = (config.has("target_hidden_size") and config.target_hidden != hidden) or (
        rules.engine == "vllm" and target is not None and target.hidden_size != hidden
    )
    has_embedding = "model.embed_tokens.weight" in loaded.filled
    has_head = "lm_head.weight" in loaded.filled
    takes: dict[str, str] = {}
    if not is_wider and not (rules.own_embedding and has_embedding):
        takes["model.embed_tokens.weight"] = "the target's"
    takes_head = rules.head_absent == "target" and not has_head
    if rules.engine == "sglang" and not (rules.ties_head and config.ties_head):
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
