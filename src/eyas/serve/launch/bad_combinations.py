"""Known bad combinations of flags, environment and models that `check` of a draft alone cannot see. Words only.

Each names its source: an engine's code or a public thread.
"""

from collections.abc import Iterator, Mapping, Sequence

from eyas.contract.engines.version import at_least
from eyas.diagnostic import Diagnostic, Severity
from eyas.serve.launch.engine_command import Recipe
from eyas.serve.launch.flag_table import flag_value

_MLA_ONLY_BACKENDS = ("trtllm_mla", "flashmla", "cutedsl_mla")
_TREE_PAGE_BACKENDS = ("flashinfer", "fa3", "triton")
_FAKES = ("SGLANG_SIMULATE_ACC_LEN",)
_CONSTANT_HEALTH = (("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "0"), ("SGLANG_DIAG_BYPASS_HEALTH_GENERATE", "1"))
_GONE_GRAPH_FLAGS = {
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
}


def bad_combinations(recipe: Recipe, environment: Mapping[str, str]) -> tuple[Diagnostic, ...]:
    """Findings about a launch as a whole.

    Args:
        environment: all variables that the server would see.
    """
    per_engine = _sglang if recipe.known.engine == "sglang" else _vllm
    return (*per_engine(recipe, environment), *_models(recipe))


def _sglang(recipe: Recipe, environment: Mapping[str, str]) -> Iterator[Diagnostic]:
    extra, engine = recipe.extra, f"sglang=={recipe.version}"
    algorithm = flag_value(extra, "--speculative-algorithm")
    if algorithm is not None and algorithm.upper() != "EAGLE3":
        # sglang#21272; speculative_hook.py special-cases nothing of it.
        yield _finding(
            "algorithm-not-eagle3",
            "fatal",
            f"--speculative-algorithm {algorithm} with an EAGLE-3 draft",
            "-- --speculative-algorithm",
            "SGLang starts, skips fc, uses the target's head and no vocabulary map: healthy, accept length 1.00",
            "leave the flag out: eyas sets EAGLE3",
            engine,
        )
    for old, new in _GONE_GRAPH_FLAGS.items():
        if flag_value(extra, old) is not None and at_least(recipe.version, "0.5.20"):
            yield _finding(
                "flag-gone",
                "error",
                f"{old} is gone since SGLang 0.5.20",
                f"-- {old}",
                f"argparse finds it an ambiguous beginning of {new} and {new.replace('decode', 'prefill')} and exits",
                f"use {new}",
                engine,
            )
    backend = flag_value(extra, "--attention-backend")
    draft_backend = recipe.options.draft_attention_backend or flag_value(extra, "--speculative-draft-attention-backend")
    if backend in _MLA_ONLY_BACKENDS and not draft_backend and not _is_mla(recipe.draft_headers):
        # sglang#23490
        yield _finding(
            "draft-backend-needed",
            "error",
            f"the draft would inherit --attention-backend {backend}, which serves MLA only",
            "-- --attention-backend",
            "the draft has ordinary attention; SGLang fails when it builds the draft's backend",
            "add --draft-attention-backend trtllm_mha (or flashinfer, triton)",
            engine,
        )
    page = flag_value(extra, "--page-size")
    if recipe.options.topk > 1 and page not in (None, "1") and backend not in (None, *_TREE_PAGE_BACKENDS):
        yield _finding(
            "tree-needs-small-pages",
            "error",
            f"--topk {recipe.options.topk} with --page-size {page} on {backend}",
            "--topk",
            f"trees with pages above 1 work only on {', '.join(_TREE_PAGE_BACKENDS)}",
            "use --topk 1 or one of these backends",
            engine,
        )
    for flag in ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc"):
        if (value := flag_value(extra, flag)) not in (None, "1", "1.0"):
            yield _finding(
                "acceptance-lossy",
                "warning",
                f"{flag} {value}: drafts are kept that the target would not have said",
                f"-- {flag}",
                "the answers are no longer the target's own",
                "leave it out for lossless speculation",
                engine,
            )
    for name in _FAKES:
        if environment.get(name):
            yield _fake(name, f"environment: {name}={environment[name]}", engine)
    for name, value in _CONSTANT_HEALTH:
        if environment.get(name, "").lower() in (value, {"0": "false", "1": "true"}[value]):
            yield _finding(
                "health-is-constant",
                "warning",
                f"{name}={environment[name]} makes /health answer 200 whatever happens",
                f"environment: {name}",
                "a stuck server looks healthy to everybody who asks /health",
                f"unset {name}; eyas watches token progress all the same",
                engine,
            )
    if recipe.options.data_parallel > 1 and "--enable-dp-attention" in extra:
        # sglang#29144
        yield _finding(
            "dp-attention-may-hang",
            "warning",
            "EAGLE with DP attention has hung after a good warm-up, with /health green",
            "-- --enable-dp-attention",
            "one rank waits in a collective while another answers health probes (sglang#29144)",
            "let the first-minute verdict run: it asks every rank by itself",
            engine,
        )


def _vllm(recipe: Recipe, environment: Mapping[str, str]) -> Iterator[Diagnostic]:
    extra, engine = recipe.extra, f"vllm=={recipe.version}"
    speculative = flag_value(extra, "--speculative-config", "--speculative_config") or ""
    if recipe.options.topk > 1:
        yield _finding(
            "tree-not-supported",
            "error",
            f"--topk {recipe.options.topk}: vLLM drafts chains only",
            "--topk",
            "no version up to 0.33.0 has tree drafting or a tree attention backend",
            "use --topk 1, or --engine sglang",
            engine,
        )
    if "draft_tensor_parallel_size" in speculative:
        yield _finding(
            "draft-tp-ignored",
            "warning",
            "draft_tensor_parallel_size has no effect on an EAGLE-3 draft",
            "-- --speculative-config: draft_tensor_parallel_size",
            "only draft_model and dspark read it (vllm#31345); the draft runs with the target's TP",
            "leave it out",
            engine,
        )
    if "synthetic" in speculative:
        yield _fake("rejection_sample_method=synthetic", "-- --speculative-config", engine)
    scaling = _rope_type(recipe.draft_headers)
    uses_v2 = not recipe.is_cpu and environment.get("VLLM_USE_V2_MODEL_RUNNER") != "0"
    has_length = recipe.draft_length is not None
    if uses_v2 and scaling in ("yarn", "dynamic", "longrope") and not has_length:
        yield _finding(
            "target-length-lowered",
            "error",
            f"a {scaling} draft without max_position_embeddings lowers the target's length",
            f"{recipe.draft}/config.json: max_position_embeddings",
            "vLLM's V2 runner takes the draft's unscaled length for both models (262144 became 4096 once)",
            "write max_position_embeddings into the draft's config, or set --context-length",
            engine,
        )


def _models(recipe: Recipe) -> Iterator[Diagnostic]:
    config = recipe.draft_headers.config if recipe.draft_headers else {}
    part = config.get("transformer_layer_config") if isinstance(config.get("transformer_layer_config"), Mapping) else {}
    heads = (part or config).get("num_attention_heads")
    parallel = recipe.options.tensor_parallel
    if isinstance(heads, int) and heads % parallel:
        yield _finding(
            "tensor-parallel-does-not-divide",
            "error",
            f"the draft's {heads} attention heads do not divide by --tensor-parallel {parallel}",
            f"{recipe.draft}/config.json: num_attention_heads",
            "both engines split the draft by heads and stop with an assertion",
            f"choose a --tensor-parallel that divides {heads}",
            f"{recipe.known.engine}=={recipe.version}",
        )


def _fake(name: str, where: str, engine: str) -> Diagnostic:
    return _finding(
        "acceptance-faked",
        "error",
        f"{name} fakes acceptance",
        where,
        "the engine makes acceptance up: answers and accept lengths say nothing of the draft",
        "unset it (it is for cost curves); --force acceptance-faked to measure such a curve",
        engine,
    )


def _finding(code: str, severity: Severity, what: str, where: str, why: str, do: str, engine: str) -> Diagnostic:
    return Diagnostic(code=code, severity=severity, what=what, where=where, why=why, do=do, engine=engine)


def _is_mla(headers: object) -> bool:
    config = getattr(headers, "config", {})
    return "kv_lora_rank" in config or "Deepseek" in "".join(_strings(config.get("architectures")))


def _rope_type(headers: object) -> str | None:
    config = getattr(headers, "config", {})
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name)
        if isinstance(rope, Mapping):
            kind = rope.get("rope_type", rope.get("type"))
            if isinstance(kind, str):
                return kind
    return None


def _strings(value: object) -> Sequence[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []
