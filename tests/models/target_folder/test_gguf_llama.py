from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from eyas.models.target_folder.built_in import (
    GgufNotLlama,
    dequantise,
    halves_from_pairs,
    hugging_face_name,
    llama_config,
)
from eyas.talk import Silent
from tiny_wheel import pairs_from_halves, tiny_model, write_gguf

METADATA = {
    "general.architecture": "llama",
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.vocab_size": 49152,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
}


@pytest.mark.parametrize(
    ("gguf_name", "name"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.0.attn_q_norm.weight", None),
        ("rope_freqs.weight", None),
    ],
)
def test_names_are_translated_and_unknown_ones_are_not_guessed(gguf_name, name):
    assert hugging_face_name(gguf_name) == name


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_the_row_order_of_q_and_k_is_undone(heads, half, columns):
    weight = np.arange(heads * half * 2 * columns, dtype=np.float32).reshape(-1, columns)
    assert np.array_equal(halves_from_pairs(pairs_from_halves(weight, heads), heads), weight)


def test_the_config_has_both_spellings_of_rope_and_the_epsilon_that_was_meant():
    config = llama_config(METADATA, is_tied=True)
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == 1e-05
    assert config["head_dim"] == 64
    assert config["tie_word_embeddings"] is True


@pytest.mark.parametrize("change", [{"general.architecture": "qwen2"}, {"llama.rope.scaling.type": "yarn"}])
def test_another_architecture_is_refused(change):
    with pytest.raises(GgufNotLlama):
        llama_config({**METADATA, **change}, is_tied=True)


def test_a_gguf_llama_computes_what_the_model_it_came_from_computes(tmp_path: Path):
    write_gguf(tmp_path / "tiny.gguf")
    out = tmp_path / "out"
    out.mkdir()
    dequantise(tmp_path / "tiny.gguf", out, Silent())

    ids = torch.arange(3, 40)[None]
    loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, tiny_model()(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.decode(tokenizer("Hi<|im_end|>")["input_ids"]) == "Hi<|im_end|>"
    assert "<|im_start|>" in tokenizer.chat_template
