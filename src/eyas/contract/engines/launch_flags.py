"""The launch flags, environment and hints that a draft needs on an engine: text for a person, arguments for `serve`."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from eyas.contract.engines.loading.ledger import Ledger
from eyas.contract.engines.loading.selection import rules_for
from eyas.contract.engines.registry import engine_named
from eyas.contract.engines.version import EngineVersion, at_least
from eyas.contract.spec.draft_reading import DraftReading
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import draft_folder

_ALLOW_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
# scaling types whose cache is simply made longer. Source: vllm/config/speculative.py _CACHE_ONLY_ROPE_TYPES
_CACHE_ONLY = frozenset({"default", "linear", "llama3", "ntk", "proportional"})
_MLA_TARGETS = ("deepseek", "kimi_k2", "kimi_k25", "glm_moe_dsa", "mistral_large_3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to pass to the engine's own command line.

    Attributes:
        flags: arguments of `python -m sglang.launch_server` / `vllm serve` that concern the draft, its path included.
        environment: variables that must be set.
        notes: hints in words (lengths, attention backend, mapping of K).
    """

    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_document(self) -> dict[str, Any]:
        """The launch as a JSON object."""
        return asdict(self)


def launch_for(
    engine: EngineVersion,
    ledger: Ledger,
    reading: DraftReading,
    target: TargetSpec | None,
    *,
    num_draft_tokens: int,
) -> Launch:
    """What a launch with this draft needs on `engine`.

    Args:
        num_draft_tokens: drafts per verify pass (K, bonus excluded).
    """
    compose = _sglang if engine.engine == "sglang" else _vllm
    return compose(engine, ledger, reading, target, num_draft_tokens)


def draft_length(spec: DraftSpec) -> int:
    """Context length that SGLang derives from a draft's config: the factor counts unless the original length is given.

    Source: sglang srt/utils/hf_transformers/common.py get_context_length.
    """
    scaling = spec.rope.scaling or {}
    factor = scaling.get("factor", 1)
    if "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3":
        factor = 1
    plain = isinstance(factor, int | float) and not isinstance(factor, bool) and 0 < factor < 1 << 20
    return int(spec.max_position_embeddings * (factor if plain else 1))


def _sglang(engine: EngineVersion, ledger: Ledger, reading: DraftReading, target: TargetSpec | None, k: int) -> Launch:
    spec, where = reading.spec, draft_folder(reading.checkpoint.where)
    flags = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", where]
    flags += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
    flags += ["--speculative-num-draft-tokens", str(k + 1)]
    environment: dict[str, str] = {}
    notes = [f"K = {k} drafts per pass: num-steps {k}, num-draft-tokens {k + 1} (vLLM: num_speculative_tokens {k})"]
    length = draft_length(spec)
    if target is not None and target.max_position_embeddings and length < target.max_position_embeddings:
        environment[_ALLOW_LONGER] = "1"
        notes.append(
            f"context: the draft says {length}, the target {target.max_position_embeddings}: ValueError at start"
            f" without {_ALLOW_LONGER}=1 or --context-length <= {length}; past {length} tokens acceptance may fall"
        )
    rules = rules_for(engine_named(engine.engine).loading.rules, engine, ledger.draft_class)
    if spec.sliding_window is not None and rules is not None and rules.window == "flag":
        flags += ["--speculative-draft-window-size", str(spec.sliding_window)]
        notes.append("SGLang takes the draft's sliding window from this flag, not from config.json")
    if target is not None:
        notes += _sglang_target_notes(spec, target, flags)
    return Launch(flags=tuple(flags), environment=environment, notes=tuple(notes))


def _sglang_target_notes(spec: DraftSpec, target: TargetSpec, flags: list[str]) -> list[str]:
    notes = []
    if target.quantization and spec.quantization is None:
        flags += ["--speculative-draft-model-quantization", "unquant"]
        notes.append("without `unquant` the draft would inherit --quantization of the target")
    if spec.draft_class == "gqa" and target.text_model_type.startswith(_MLA_TARGETS):
        notes.append(
            "an MHA draft under an MLA target: if the target's attention backend is MLA-only (trtllm_mla, flashmla,"
            " cutlass_mla), set --speculative-draft-attention-backend to an MHA one (fa3, flashinfer, trtllm_mha)"
        )
    return notes


def _vllm(engine: EngineVersion, ledger: Ledger, reading: DraftReading, target: TargetSpec | None, k: int) -> Launch:
    spec, where = reading.spec, draft_folder(reading.checkpoint.where)
    settings: dict[str, Any] = {"method": "eagle3", "model": where, "num_speculative_tokens": k}
    notes = [
        "name the target on the command line and `method` in --speculative-config: otherwise the method is guessed from"
        " the path, and a speculators draft brings its own target",
        f"K = {k} drafts per pass (SGLang: num-steps {k}, num-draft-tokens {k + 1})",
    ]
    environment: dict[str, str] = {}
    if reading.checkpoint.config.get("speculators_model_type") == "peagle":
        settings["parallel_drafting"] = True
        notes.append("P-EAGLE: parallel_drafting runs on the V1 runner only")
    if not engine.runner_is_default and not engine.is_cpu:
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "1" if engine.runner == "v2" else "0"
    flags = ["--speculative-config", json.dumps(settings)]
    length = spec.max_position_embeddings
    wanted = target.max_position_embeddings if target else None
    if wanted and length < wanted:
        notes.append(_vllm_length(engine, spec, length, wanted))
    return Launch(flags=tuple(flags), environment=environment, notes=tuple(notes))


def _vllm_length(engine: EngineVersion, spec: DraftSpec, length: int, wanted: int) -> str:
    kind = (spec.rope.scaling or {}).get("rope_type", "default")
    if not at_least(engine.rules, "0.32.0"):
        return (
            f"context: the draft says {length}, the target {wanted}: {engine.label} does not lengthen the draft's RoPE"
            f" cache, positions past {length} are out of range; --max-model-len {length}"
        )
    if kind in _CACHE_ONLY:
        return f"context: the draft says {length}, the target {wanted}: vLLM raises the draft's to the target's"
    if engine.runner == "v2" and at_least(engine.rules, "0.33.0"):
        return (
            f"context: a draft with {kind} RoPE and {length} tokens: the V2 runner lowers the TARGET's max_model_len"
            f" from {wanted} to {length}, with one warning; write max_position_embeddings: {wanted} in its config"
        )
    return f"context: past {length} tokens vLLM stops drafting (the draft's {kind} RoPE is not made longer)"
