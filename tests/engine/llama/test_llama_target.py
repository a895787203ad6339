"""The fast path computes what transformers computes, cached or not, by torch or by our own kernels."""

import os
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from eyas.contract.files.safetensors_header import FileTruncated
from eyas.engine.llama.block_stack import CacheTooLarge
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import FAMILIES, LlamaWeights, fuse_llama, read_llama, sliding_window, why_not_fast
from eyas.engine.llama.native import NativeKernels, load_kernels
from eyas.models.target.loading import TargetUnloadable
from eyas.talk import Silent
from tiny_target import tiny_target

IDS = [3, 17, 5, 60, 22, 22, 9, 41, 33, 8, 2, 54, 1, 44, 13, 29, 6, 50, 50, 11]  # more than the kernels take at once
CHANGES = {
    "llama": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0,
                                  "high_freq_factor": 4.0, "original_max_position_embeddings": 16}},
    "mistral": {"sliding_window": 5},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
}  # fmt: skip


def fused(model: PreTrainedModel) -> LlamaWeights:
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    for tensor in (t for name, t in state.items() if name.endswith("bias")):
        tensor.normal_()  # transformers starts biases at 0, which would hide their loss
    config = model.config.to_dict()
    assert why_not_fast(config) is None
    return fuse_llama(config, state.get)


@torch.inference_mode()
def reference(model: PreTrainedModel, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    out = model(torch.tensor([ids]), output_hidden_states=True)
    return out.logits[0], torch.cat([out.hidden_states[i][0] for i in (0, 2, 3)], -1)


@pytest.mark.parametrize("path", ["torch", "native"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_aux_states_are_those_of_transformers(family: str, path: str, kernels: NativeKernels):
    model = tiny_target(family, **CHANGES[family])
    target = LlamaTarget(fused(model), kernels=kernels if path == "native" else None, num_threads=2)
    logits, aux = reference(model, IDS)

    target.start(len(IDS), (0, 2, 3))
    first = target.prefill(IDS[:6])
    aux_states = [first.aux_states]
    torch.testing.assert_close(first.logits[0], logits[5], atol=2e-5, rtol=2e-5)
    for begin, end in ((6, 7), (7, 11), (11, 20)):
        out = target.forward(IDS[begin:end])
        torch.testing.assert_close(out.logits, logits[begin:end], atol=2e-5, rtol=2e-5)
        aux_states.append(out.aux_states)
    torch.testing.assert_close(torch.cat(aux_states), aux, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_native_value_of_a_row_does_not_depend_on_the_rows_beside_it(family: str, kernels: NativeKernels):
    target = LlamaTarget(fused(tiny_target(family, **CHANGES[family])), kernels=kernels, num_threads=2)
    target.start(64, ())
    target.prefill(IDS)
    one_by_one = torch.cat([target.forward([token]).logits.clone() for token in IDS[:12]])

    for rows in range(2, 13):  # above 8 in two goes
        target.truncate(len(IDS))
        together = target.forward(IDS[:rows]).logits
        assert torch.equal(together, one_by_one[:rows]), f"{rows} rows"


def test_what_was_truncated_leaves_no_trace(kernels: NativeKernels):
    target = LlamaTarget(fused(tiny_target()), kernels=kernels)
    target.start(64, (1,))
    target.prefill(IDS)
    wanted = target.forward([7, 8])
    wanted_logits = wanted.logits.clone()

    target.start(64, (1,))
    target.prefill(IDS)
    target.forward([1, 1, 1, 1])
    target.truncate(len(IDS))
    again = target.forward([7, 8])

    assert torch.equal(again.logits, wanted_logits)
    assert torch.equal(again.aux_states, wanted.aux_states)


def test_rows_beyond_the_cache_never_reach_the_kernels(kernels: NativeKernels):
    target = LlamaTarget(fused(tiny_target("llama")), kernels=kernels)
    target.start(10, ())
    target.prefill(IDS[:10] * 25)  # 250 of the 256 positions that 10 are rounded up to

    with pytest.raises(AssertionError, match="256 positions"):
        target.forward([1] * 7)


def test_a_cache_for_which_there_is_no_memory_is_refused_and_the_next_one_is_whole(kernels: NativeKernels):
    target = LlamaTarget(fused(tiny_target("llama")), kernels=kernels)
    target.start(10, ())
    wanted = target.prefill(IDS[:8]).logits.clone()

    with pytest.raises(CacheTooLarge, match="cache-too-large"):
        target.start(1 << 60, ())
    target.start(10, ())

    assert torch.equal(target.prefill(IDS[:8]).logits, wanted)


def test_a_saved_folder_reads_as_the_model_in_memory(tmp_path: Path):
    model = tiny_target("qwen3", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)

    target = LlamaTarget(read_llama(tmp_path, dtype=torch.float32, device=torch.device("cpu")))
    target.start(32, ())

    torch.testing.assert_close(target.prefill(IDS).logits[0], reference(model, IDS)[0][-1], atol=2e-5, rtol=2e-5)


def test_a_download_that_broke_off_is_said_to_be_one(tmp_path: Path):
    tiny_target().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)

    with pytest.raises(FileTruncated):
        read_llama(tmp_path, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize(
    "said", [{"max_position_embeddings": [None]}, {"rms_norm_eps": "small"}, {"head_dim": -(2**63)}]
)
def test_a_config_value_that_is_no_size_is_told(said: dict[str, object]):
    with pytest.raises(TargetUnloadable, match=r"an impossible value(.|\n)*config\.json"):
        fuse_llama(tiny_target().config.to_dict() | said, {}.get)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen2", "model.norm.weight"),
        ("qwen2", "model.layers.1.self_attn.k_proj.weight"),
        ("qwen2", "lm_head.weight"),
        # Of all layers: blocks without them are computed without a complaint, and wrongly.
        ("qwen2", "_proj.bias"),
        ("qwen3", "self_attn.k_norm.weight"),
    ],
)
def test_a_weight_that_is_not_in_the_files_is_named(family: str, name: str):
    model = tiny_target(family)
    state = {full: tensor for full, tensor in model.state_dict().items() if not full.endswith(name)}

    with pytest.raises(TargetUnloadable, match=f"weights of the target are missing(.|\n)*{name}"):
        fuse_llama(model.config.to_dict(), state.get)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"intermediate_size": 96}, "mlp.gate_proj.weight"),
        ({"head_dim": 16}, "self_attn.q_proj.weight"),
        ({"num_key_value_heads": 4}, "self_attn.k_proj.weight"),
        ({"hidden_size": 64}, "embed_tokens.weight"),
        ({"vocab_size": 70}, "embed_tokens.weight"),
    ],
)
def test_a_config_of_other_sizes_never_reaches_kernels_that_read_by_them(said: dict[str, int], name: str):
    model = tiny_target("llama")

    with pytest.raises(TargetUnloadable, match=f"does not have the size(.|\n)*{name}"):
        fuse_llama(model.config.to_dict() | said, model.state_dict().get)


def test_biases_that_the_family_does_not_compute_with_are_left_out_as_transformers_does():
    model = tiny_target("llama")
    stray = {f"model.layers.{i}.self_attn.{name}_proj.bias": torch.ones(8) for i in range(4) for name in "qkv"}

    assert fuse_llama(model.config.to_dict(), (model.state_dict() | stray).get).blocks[0].qkv_bias is None


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 5}, 5),
        ({"sliding_window": None}, None),
        ({}, 4096),
        ({"sliding_window": 5, "layer_types": ["full_attention"] * 4}, None),
        ({"sliding_window": 5, "layer_types": ["sliding_attention"] * 4}, 5),
    ],
)
def test_mistrals_window_is_the_one_that_transformers_computes_with(changes: dict[str, object], window: int | None):
    assert sliding_window({"model_type": "mistral", **changes}) == window


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "gpt_oss"}, "model_type gpt_oss"),
        ({"model_type": "llama", "hidden_act": "gelu"}, "hidden_act is gelu"),
        ({"model_type": "llama", "attention_bias": True}, "biases"),
        ({"model_type": "llama", "mlp_bias": True}, "biases"),
        ({"model_type": "qwen3", "use_sliding_window": True}, "window"),
        ({"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]}, "window"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"model_type": "llama", "hidden_size": 32}, "does not say intermediate_size"),
    ],
)
def test_what_the_fast_path_cannot_do_is_said(config: dict[str, object], reason: str):
    assert reason in str(why_not_fast(config))


def test_without_a_compiler_the_slow_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    talk = Silent()

    assert load_kernels(tmp_path, talk) is None
    assert "no C compiler" in talk.notes[0]


def test_where_no_kernel_can_be_kept_torchs_own_are_used_and_it_is_said(tmp_path: Path):
    (tmp_path / "kernels").write_text("a file, no folder")
    talk = Silent()

    assert load_kernels(tmp_path, talk) is None
    assert "the engine uses torch's own" in talk.notes[0]


@pytest.mark.parametrize("damage", ["truncated", "another library", "empty", "fifo", "no fingerprint"])
def test_a_damaged_kernel_cache_is_compiled_again_or_left_and_never_loaded(tmp_path: Path, damage: str):
    if load_kernels(tmp_path, Silent()) is None:
        pytest.skip("there is no C compiler")
    (library,) = (tmp_path / "kernels").glob("*.so")
    whole = library.read_bytes()
    library.unlink()
    if damage == "fifo":
        os.mkfifo(library)
    elif damage == "no fingerprint":
        library.write_bytes(whole)
        library.with_suffix(".fingerprint").unlink()
    else:
        library.write_bytes({"truncated": whole[:4096], "another library": whole[::-1], "empty": b""}[damage])
    talk = Silent()

    loaded = load_kernels(tmp_path, talk)

    assert (loaded is None) == (damage == "fifo")
    if damage == "fifo":
        assert "a device or a pipe" in talk.notes[0]
    else:
        assert library.read_bytes() == whole


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "change with the length"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "change with the length"),
        ({"partial_rotary_factor": 0.5}, "a part of each head"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "a part of each head"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, None),
    ],
)
def test_rope_that_the_fast_path_does_not_compute_goes_through_transformers(changes, reason):
    found = why_not_fast(tiny_target("llama").config.to_dict() | changes)
    assert (reason is None and found is None) or (reason is not None and reason in str(found))
