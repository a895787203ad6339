"""`python -m sglang.launch_server`: the draft's flags and the whole command, and launches that SGLang does badly.

Source: server_args.py of 0.5.9, 0.5.12, 0.5.15.post1, 0.5.17; arg_groups/ of 0.5.20 and 0.5.23. All flags used here
have kept their names in these versions; what moved are the graph flags.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from eyas.contract.engines.launching.known_flags import FlagTable, flag_value, told
from eyas.contract.engines.launching.recipe import (
    DraftLaunch,
    EngineCommand,
    Launch,
    Recipe,
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
_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_MLA_TARGETS = ("deepseek", "kimi_k2", "kimi_k25", "glm_moe_dsa", "mistral_large_3")
_MLA_ONLY_BACKENDS = ("trtllm_mla", "flashmla", "cutedsl_mla")
_TREE_PAGE_BACKENDS = ("flashinfer", "fa3", "triton")
_FAKES = ("SGLANG_SIMULATE_ACC_LEN",)
_CONSTANT_HEALTH = (("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "0"), ("SGLANG_DIAG_BYPASS_HEALTH_GENERATE", "1"))
_GONE_GRAPH_FLAGS = {
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
}


class SGLangLaunching:
    """`Launching` of SGLang."""

    package = "sglang"
    help_words = ("-m", "sglang.launch_server", "--help")
    default_port = 30000
    # SGLang keeps at least 10 GiB free on a GPU above 60 GiB. Source: memory_hook.py
    memory_share = 0.88
    memory_flag = "--mem-fraction-static"
    speculation_flags = ("--speculative-",)
    key_variable = None

    def __init__(self, engine: ServingEngine) -> None:
        self.flags = FlagTable.load(engine.name, engine.folder)

    def draft_launch(self, draft: DraftLaunch) -> Launch:
        """The draft's flags alone, to add to a command that the user wrote."""
        steps, _, nodes = draft.counting.sglang
        named, needed, environment, notes = _draft_flags(draft)
        counting = f"K = {steps} drafts per pass: num-steps {steps}, num-draft-tokens {nodes}"
        counting += f" (vLLM: num_speculative_tokens {steps})"
        answers = ("draft-dtype",) if "--dtype" in needed else ()
        flags = (*named, *needed, "--enable-metrics")
        return Launch(flags=flags, environment=environment, notes=(counting, *notes), answers=answers)

    def position_limit(self, draft: DraftLaunch) -> PositionLimit | None:
        """The length that it refuses to exceed, unless it is told not to look."""
        length, asked = draft.scaled_length, draft.asked_length
        if not length or not asked or length >= asked:
            return None
        said = f"SGLang refuses to start, or, with {_LONGER}=1, drafts beyond what the draft's config allows"
        return PositionLimit(tokens=length, beyond=said)

    def command(self, recipe: Recipe) -> EngineCommand:
        """The whole command for this machine (head and workers differ in --node-rank only)."""
        options, port = recipe.options, recipe.options.port or self.default_port
        named, needed, environment, notes = _draft_flags(recipe.draft)
        if flag_value(recipe.extra, "--dtype") is not None and "--dtype" in needed:
            at = needed.index("--dtype")
            needed[at : at + 2] = []
        argv = [recipe.python, "-m", "sglang.launch_server", "--model-path", recipe.target, *named]
        argv += ["--host", options.host, "--port", str(port), *sizes(recipe), *needed]
        trust, trusted = trust_words(recipe)
        argv += trust
        if options.served_name:
            argv += ["--served-model-name", options.served_name]
        if "--enable-metrics" not in recipe.extra:
            argv.append("--enable-metrics")
        return EngineCommand(
            argv=(*argv, *recipe.extra),
            environment=environment,
            url=url_of(options, port),
            counting=recipe.draft.counting,
            # SGLang reads no key from the environment: a private YAML file is the way that `ps` does not show.
            key_flag="--config" if recipe.key_variable else None,
            notes=(*_notes(recipe), *notes, *trusted),
            findings=tuple(recipe.known.findings(argv, recipe.extra)),
        )

    def bad_combinations(self, recipe: Recipe, environment: Mapping[str, str]) -> Iterator[Diagnostic]:
        """Flags, environment and models that do not go together."""
        yield from _bad_flags(recipe)
        yield from _bad_environment(environment, recipe.known.label)
        yield from heads_do_not_divide(recipe)

    def warning(self, version: str) -> str:
        """What to know of a server of this version; "" if nothing."""
        if at_least(version, "0.5.10"):
            return ""
        return "before 0.5.10 SGLang's server stays up after a rank has died: watch it (eyas watch)"


def served_dtype(named: str | None) -> str:
    """What --dtype auto makes of a config's dtype. Source: srt/configs/model_config.py _get_and_verify_dtype."""
    name = {"half": "float16", "float": "float32"}.get(named or "float32", named or "float32")
    return "float16" if name == "float32" else name


def _draft_flags(draft: DraftLaunch) -> tuple[list[str], list[str], dict[str, str], list[str]]:
    """Flags of algorithm, draft and shape; flags that this very draft needs; variables; notes."""
    steps, topk, nodes = draft.counting.sglang
    named = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", draft.draft]
    named += ["--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)]
    named += ["--speculative-num-draft-tokens", str(nodes)]
    needed: list[str] = []
    environment: dict[str, str] = {}
    notes: list[str] = []
    length, asked = draft.scaled_length, draft.asked_length
    if length and asked and length < asked:
        environment[_LONGER] = "1"
        notes.append(
            f"{_LONGER}=1: the draft's config allows {length} tokens, {asked} are served; without it (or a"
            f" --context-length <= {length}) SGLang refuses to start; beyond {length} tokens fewer drafts are accepted"
        )
    if draft.is_parallel:
        notes.append("P-EAGLE: SGLang has no parallel drafting and drafts one token a step with it")
    if draft.window is not None:
        needed += ["--speculative-draft-window-size", str(draft.window)]
        notes.append("SGLang takes the draft's sliding window from this flag, not from config.json")
    if (draft.target_is_quantised or draft.quantization) and not draft.is_quantised:
        needed += ["--speculative-draft-model-quantization", "unquant"]
        notes.append("without `unquant` the draft would inherit --quantization of the target")
    wanted = served_dtype(draft.target_dtype)
    if draft.target_dtype and served_dtype(draft.dtype) != wanted:
        needed += ["--dtype", wanted]
        notes.append(f"--dtype {wanted}: the draft's config would be served in {served_dtype(draft.dtype)} and crash")
    if draft.attention_backend:
        needed += ["--speculative-draft-attention-backend", draft.attention_backend]
    elif not draft.is_mla and draft.target_type.startswith(_MLA_TARGETS):
        notes.append(
            "an MHA draft under an MLA target: if the target's attention backend is MLA-only (trtllm_mla, flashmla,"
            " cutlass_mla), set --speculative-draft-attention-backend to an MHA one (fa3, flashinfer, trtllm_mha)"
        )
    return named, needed, environment, notes


def sizes(recipe: Recipe) -> Iterator[str]:
    """Flags of parallelism, lengths and quantisation, for any command."""
    options = recipe.options
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


def _notes(recipe: Recipe) -> Iterator[str]:
    options = recipe.options
    if not options.max_running_requests and flag_value(recipe.extra, "--max-running-requests") is None:
        yield (
            "SGLang runs at most 48 requests at once when speculation is on and --max-running-requests is not set; "
            "to compare with plain decoding set it in both"
        )
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


def _bad_flags(recipe: Recipe) -> Iterator[Diagnostic]:
    extra, topk = recipe.extra, recipe.options.topk

    def bad(code: str, **facts: object) -> Diagnostic:
        return told(code, _HERE, recipe.known.label, facts)

    algorithm = flag_value(extra, "--speculative-algorithm")
    if algorithm is not None and algorithm.upper() != "EAGLE3":
        yield bad("algorithm-not-eagle3", algorithm=algorithm)
    for old, new in _GONE_GRAPH_FLAGS.items():
        if flag_value(extra, old) is not None and at_least(recipe.known.version, "0.5.20"):
            yield bad("flag-gone", old=old, new=new, other=new.replace("decode", "prefill"))
    backend = flag_value(extra, "--attention-backend")
    if backend in _MLA_ONLY_BACKENDS and not recipe.draft.attention_backend and not recipe.draft.is_mla:
        yield bad("draft-backend-needed", backend=backend)
    page = flag_value(extra, "--page-size")
    if topk > 1 and page not in (None, "1") and backend not in (None, *_TREE_PAGE_BACKENDS):
        backends = ", ".join(_TREE_PAGE_BACKENDS)
        yield bad("tree-needs-small-pages", topk=topk, page=page, backend=backend, backends=backends)
    for flag in ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc"):
        if (value := flag_value(extra, flag)) not in (None, "1", "1.0"):
            yield bad("acceptance-lossy", flag=flag, value=value)
    if recipe.options.data_parallel > 1 and "--enable-dp-attention" in extra:
        yield bad("dp-attention-may-hang")


def _bad_environment(environment: Mapping[str, str], engine: str) -> Iterator[Diagnostic]:
    for name in _FAKES:
        if environment.get(name):
            yield faked_acceptance(name, f"environment: {name}={environment[name]}", engine)
    for name, value in _CONSTANT_HEALTH:
        if environment.get(name, "").lower() in (value, {"0": "false", "1": "true"}[value]):
            yield told("health-is-constant", _HERE, engine, {"name": name, "value": environment[name]})


LAUNCHING: Callable[[ServingEngine], Launching] = SGLangLaunching
