"""Which targets an engine version can tap, and how it reads a draft's ids for them."""

import pytest

from eyas.contract.engines.loading.target_hooks import target_hook
from eyas.contract.engines.registry import all_engines, engine_named, parse_engine


def _hook(engine, architecture):
    version = parse_engine(engine)
    return target_hook(engine_named(version.engine).loading.hooks, version, [architecture])


@pytest.mark.parametrize(
    ("engine", "architecture", "status", "convention"),
    [
        ("sglang==0.5.9", "LlamaForCausalLM", "present", "after-layer"),
        ("sglang==0.5.9", "KimiK25ForConditionalGeneration", "absent", "after-layer"),
        ("sglang==0.5.12", "KimiK25ForConditionalGeneration", "present", "after-layer"),
        ("sglang==0.5.13", "DeepseekV3ForCausalLM", "present", "first-is-1"),
        ("sglang==0.5.15", "GptOssForCausalLM", "present", "after-layer"),
        ("sglang==0.5.17", "GptOssForCausalLM", "present", "last-is-n"),
        ("sglang==0.5.10", "Qwen3VLForConditionalGeneration", "absent", "after-layer"),
        ("sglang==0.5.11", "Qwen3VLForConditionalGeneration", "present", "after-layer"),
        ("sglang==0.5.23", "MixtralForCausalLM", "absent", "boundary"),
        ("sglang==0.5.23", "Qwen2MoeForCausalLM", "no-head", "after-layer"),
        ("sglang==0.5.23", "NoSuchForCausalLM", "unknown", "boundary"),
        ("sglang==0.5.9", "MiniMaxM3SparseForCausalLM", "unregistered", "boundary"),
        ("vllm==0.33.0", "Qwen3ForCausalLM", "present", "boundary"),
        ("vllm==0.33.0", "MixtralForCausalLM", "absent", "boundary"),
        ("vllm==0.25.1", "GraniteForCausalLM", "absent", "boundary"),
        ("vllm==0.32.0", "GraniteForCausalLM", "present", "boundary"),
    ],
)
def test_a_target_is_looked_up_by_engine_version(engine, architecture, status, convention):
    hook = _hook(engine, architecture)

    assert (hook.status, hook.convention) == (status, convention)


def test_the_first_version_that_can_is_named():
    assert _hook("sglang==0.5.9", "KimiK25ForConditionalGeneration").first == "0.5.10"
    assert _hook("sglang==0.5.9", "MixtralForCausalLM").first is None


def test_one_class_shifts_its_default_layers_too():
    assert _hook("sglang==0.5.23", "MiniMaxM3SparseForConditionalGeneration").default_shift == 1
    assert _hook("sglang==0.5.23", "MiniMaxM3SparseForCausalLM").default_shift == 0


@pytest.mark.parametrize("engine", all_engines(), ids=lambda e: e.name)
def test_every_entry_of_the_table_has_a_source_and_is_in_order(engine):
    for architecture, steps in engine.loading.hooks.items():
        assert all(step["source"] for step in steps), architecture
        assert len({s["since"] for s in steps}) == len(steps), architecture
