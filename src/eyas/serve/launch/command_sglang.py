"""`python -m sglang.launch_server` for a version: algorithm, shape of the draft, lengths, nodes, in SGLang's words.

Source: server_args.py of 0.5.9, 0.5.12, 0.5.15.post1, 0.5.17; arg_groups/ of 0.5.20 and 0.5.23. All flags used here
have kept their names in these versions; what moved are the graph flags (`bad_combinations`).
"""

from collections.abc import Iterator

from eyas.serve.launch.engine_command import EngineCommand, Recipe, flag_findings, unknown_of_ours, url_of
from eyas.serve.launch.flag_table import flag_value
from eyas.serve.launch.serve_options import Counting

DEFAULT_PORT = 30000
_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_DRAFT_QUANTIZATION = "--speculative-draft-model-quantization"


def sglang_command(recipe: Recipe) -> EngineCommand:
    """The command for this machine (head or worker: SGLang's differ in --node-rank only)."""
    options, counting = recipe.options, Counting.of(recipe.options)
    port = options.port or DEFAULT_PORT
    argv = [recipe.python, "-m", "sglang.launch_server", *_flags(recipe, counting, port)]
    notes = list(_notes(recipe))
    environment = dict(recipe.environment)
    served = options.context_length or recipe.target_length
    environment.pop(_LONGER, None)  # decided here, where the served length is known
    if recipe.draft_length and served and recipe.draft_length < served:
        environment[_LONGER] = "1"
        notes.append(
            f"{_LONGER}=1: the draft's config allows {recipe.draft_length} tokens, served are {served}; without it "
            f"SGLang refuses to start. Beyond {recipe.draft_length} tokens expect fewer accepted drafts"
        )
    return EngineCommand(
        argv=(*argv, *recipe.extra),
        environment=environment,
        url=url_of(options, port) if options.node_rank == 0 else "",
        counting=counting,
        # SGLang reads no key from the environment: a private YAML file is the way that `ps` does not show.
        key_flag="--config" if recipe.key_variable else None,
        notes=tuple(notes),
        findings=(*unknown_of_ours(argv, recipe.known), *flag_findings(argv, recipe.extra, recipe.known)),
    )


def _flags(recipe: Recipe, counting: Counting, port: int) -> Iterator[str]:
    options = recipe.options
    steps, topk, nodes = counting.sglang
    yield from ("--model-path", recipe.target)
    yield from ("--speculative-algorithm", "EAGLE3")
    yield from ("--speculative-draft-model-path", recipe.draft)
    yield from ("--speculative-num-steps", str(steps))
    yield from ("--speculative-eagle-topk", str(topk))
    yield from ("--speculative-num-draft-tokens", str(nodes))
    yield from ("--host", options.host, "--port", str(port))
    yield from ("--tp-size", str(options.tensor_parallel))
    if options.data_parallel > 1:
        yield from ("--dp-size", str(options.data_parallel))
    if options.nodes > 1:
        yield from ("--nnodes", str(options.nodes), "--node-rank", str(options.node_rank))
        yield from ("--dist-init-addr", str(options.head_address))
    if options.context_length:
        yield from ("--context-length", str(options.context_length))
    if options.max_running_requests:
        yield from ("--max-running-requests", str(options.max_running_requests))
    if options.quantization:
        yield from ("--quantization", options.quantization)
    if options.quantization and _DRAFT_QUANTIZATION not in recipe.needed:
        # Unset, the draft would inherit the target's --quantization.
        yield from (_DRAFT_QUANTIZATION, "unquant")
    if options.draft_attention_backend:
        yield from ("--speculative-draft-attention-backend", options.draft_attention_backend)
    yield from recipe.needed
    if options.served_name:
        yield from ("--served-model-name", options.served_name)
    if "--enable-metrics" not in recipe.extra:
        yield "--enable-metrics"


def _notes(recipe: Recipe) -> Iterator[str]:
    options = recipe.options
    if not options.max_running_requests and flag_value(recipe.extra, "--max-running-requests") is None:
        yield (
            "SGLang runs at most 48 requests at once when speculation is on and --max-running-requests is not set; "
            "to compare with plain decoding set it in both"
        )
    if options.quantization:
        yield "the draft stays unquantised (--speculative-draft-model-quantization unquant)"
    if options.topk > 1:
        yield (
            f"a tree of {options.num_nodes_verified} nodes is verified per pass; with a tree SGLang's accept rate is "
            "per node and cannot approach 1"
        )
    if options.nodes > 1:
        yield (
            f"node {options.node_rank} of {options.nodes}; start the same command with every --node-rank; health of "
            "nodes above 0 is always 200 and says nothing"
        )
