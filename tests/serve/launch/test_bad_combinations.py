"""Each known bad combination is found before anything starts, and good launches have none."""

import pytest

from eyas.serve.launch.bad_combinations import bad_combinations
from eyas.serve.launch.serve_options import ServeOptions
from recipes import headers, recipe

MLA = headers(architectures=["Eagle3DeepseekV2ForCausalLM"], kv_lora_rank=512)
YARN = headers(rope_scaling={"rope_type": "yarn", "factor": 4.0})


def codes(of_recipe: object, **environment: str) -> list[str]:
    return [f.code for f in bad_combinations(of_recipe, environment)]  # type: ignore[arg-type]


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
def test_a_bad_combination_is_found(code: str, given: object, environment: dict[str, str]):
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
        recipe("vllm", "0.32.0", draft_headers=YARN, is_cpu=True),
        recipe("vllm", "0.33.0", options=ServeOptions(tensor_parallel=4), draft_headers=headers(num_attention_heads=8)),
        recipe("sglang", "0.5.23", "--speculative-accept-threshold-acc", "1.0"),
    ],
)
def test_a_good_launch_has_none(given: object):
    assert codes(given) == []


def test_an_algorithm_that_accepts_nothing_is_fatal():
    (finding,) = bad_combinations(recipe("sglang", "0.5.23", "--speculative-algorithm=EAGLE"), {})

    assert finding.severity == "fatal"
    assert "1.00" in finding.why
