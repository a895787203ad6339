"""Bytes per cached token equal what real servers reported; what does not fit is said."""

from eyas.contract.files.checkpoint import Checkpoint, TensorInfo
from eyas.serve.launch.memory_estimate import GIB, estimate_memory, kv_bytes_per_token, smallest_gpu

LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
SMOLLM2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
LLAMA_DRAFT = LLAMA_8B | {"num_hidden_layers": 1}
SMOLLM2_DRAFT = SMOLLM2 | {"num_hidden_layers": 1}


def checkpoint(config: dict[str, object], num_bytes: int = 0) -> Checkpoint:
    tensors = {"w": TensorInfo(dtype="U8", shape=(num_bytes,))} if num_bytes else {}
    return Checkpoint(where="x", kind="folder", config=config, tensors=tensors)


def per_token(*configs: dict[str, object]) -> int:
    return sum(kv_bytes_per_token(c, 1) or 0 for c in configs)


def test_vllm_0_25_1_had_room_for_as_many_tokens_of_an_8b_target_with_a_draft_as_computed():
    # "Available KV cache memory: 51.85 GiB", "GPU KV cache size: 411,872 tokens" (rounded to blocks and 0.005 GiB)
    assert abs(51.85 * GIB / per_token(LLAMA_8B, LLAMA_DRAFT) - 411_872) < 200


def test_and_of_smollm2_with_a_draft():
    # "Available KV cache memory: 69.05 GiB", "GPU KV cache size: 3,114,096 tokens"
    assert abs(69.05 * GIB / per_token(SMOLLM2, SMOLLM2_DRAFT) - 3_114_096) < 500


def test_sglang_0_5_15_gave_the_draft_its_own_pool_of_the_computed_size():
    # "#tokens: 3119000, K size: 33.46 GB, V size: 33.46 GB" (target), "K size: 1.12 GB, V size: 1.12 GB" (draft)
    assert abs(per_token(SMOLLM2) * 3_119_000 / GIB - 2 * 33.46) < 0.02
    assert abs(per_token(SMOLLM2_DRAFT) * 3_119_000 / GIB - 2 * 1.12) < 0.02


def test_kv_heads_fewer_than_gpus_are_repeated_and_mla_is_not_divided():
    mla = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}

    assert kv_bytes_per_token(SMOLLM2, 9) == 2 * 30 * 1 * 64 * 2
    assert kv_bytes_per_token(mla, 8) == kv_bytes_per_token(mla, 1) == 61 * 576 * 2


def test_a_multimodal_wrapper_is_looked_into_and_a_strange_config_is_unknown():
    assert kv_bytes_per_token({"text_config": SMOLLM2}, 1) == per_token(SMOLLM2)
    assert kv_bytes_per_token({"n_layer": 3}, 1) is None


def estimate(gpu_gib: float | None, weights_gib: int, **more: object):
    target, draft = checkpoint(LLAMA_8B, weights_gib * GIB), checkpoint(LLAMA_DRAFT, GIB)
    gpu = (int(gpu_gib * GIB), "") if gpu_gib else (None, "not readable here (no nvidia-smi)")
    defaults = {"share": 0.92, "tensor_parallel": 1, "context_length": 8192}
    return estimate_memory(target, draft, gpu=gpu, **(defaults | more))  # type: ignore[arg-type]


def test_a_size_that_is_no_number_is_unknown():
    mla = {"num_hidden_layers": 61, "kv_lora_rank": 512}
    strange: tuple[object, ...] = ({"a": 1}, [1], "wide", 1e308)

    for value in strange:
        for name in ("head_dim", "num_key_value_heads", "num_attention_heads", "hidden_size"):
            assert kv_bytes_per_token(LLAMA_8B | {name: value}, 1) is None, (name, value)
        assert kv_bytes_per_token(mla | {"qk_rope_head_dim": value}, 1) is None
    assert kv_bytes_per_token(LLAMA_8B | {"num_attention_heads": 0}, 1) is None


def test_what_fits_is_told_in_tokens():
    fits = estimate(80, 15)

    assert fits.findings() == ()
    assert fits.cached_tokens == int((int(80 * GIB * 0.92) - 16 * GIB - 4 * GIB) // 135_168)
    assert "15.00 GiB target + 1.00 GiB draft" in str(fits)


def test_what_does_not_fit_is_an_error_and_what_barely_fits_a_warning():
    assert [f.severity for f in estimate(16, 15).findings()] == ["error"]
    assert [f.severity for f in estimate(22.5, 15).findings()] == ["warning"]
    assert estimate(16, 15, tensor_parallel=4).findings() == ()


def test_without_a_gpu_nothing_is_claimed():
    unknown = estimate(None, 15)

    assert unknown.cached_tokens is None
    assert unknown.findings() == ()
    assert "no nvidia-smi" in str(unknown)


def test_a_machine_without_nvidia_smi_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")

    assert smallest_gpu() == (None, "not readable here (no nvidia-smi)")


def test_what_every_rank_holds_whole_is_not_divided():
    tensors = {
        "fc.weight": TensorInfo(dtype="BF16", shape=(64, 192)),
        "norm.weight": TensorInfo(dtype="BF16", shape=(64,)),
        "midlayer.mlp.down_proj.weight": TensorInfo(dtype="BF16", shape=(64, 256)),
    }
    draft = Checkpoint(where="x", kind="folder", config={}, tensors=tensors)

    def weights(parallel: int) -> int | None:
        return estimate_memory(None, draft, tensor_parallel=parallel, context_length=None, share=0.9).draft_weights

    assert weights(1) == 2 * (64 * 192 + 64 + 64 * 256)
    assert weights(8) == 2 * (64 * 192 + 64) + 2 * 64 * 256 // 8
