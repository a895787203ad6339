"""A Llama in a GGUF file, dequantised into a plain Hugging Face folder.

Knows GGUF's names for Llama tensors and metadata. `transformers` can read the same file, but asks for `accelerate`,
refuses to save what it read, and takes twice as long; its tokenizer conversion is used as it is. Refuses to know where
the file comes from.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.errors import EyasError
from eyas.talk import Talk

_BLOCK_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class GgufNotLlama(EyasError):
    """The GGUF file holds something other than a plain Llama."""

    code = "gguf-not-llama"


def hugging_face_name(name: str) -> str | None:
    """A GGUF tensor name in Hugging Face's Llama spelling; None where Llama has no such tensor."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if block and block[2] in _BLOCK_NAMES:
        return f"model.layers.{block[1]}.{_BLOCK_NAMES[block[2]]}.weight"
    return None


def halves_from_pairs(weight: Any, num_heads: int) -> Any:
    """Undo GGUF's row order of q and k: rotary pairs (0, 1), (2, 3) ... back to Hugging Face's two halves.

    Args:
        weight: [num_heads * head_dim, H] numpy array in GGUF order.
        num_heads: heads in it (query heads for q, key/value heads for k).

    Source: ggml-org/llama.cpp convert_hf_to_gguf.py `LlamaModel.permute`, of which this is the inverse.
    """
    rows, columns = weight.shape
    half = rows // num_heads // 2
    return weight.reshape(num_heads, half, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def llama_config(metadata: Mapping[str, Any], *, is_tied: bool) -> dict[str, Any]:
    """config.json of a Llama described by GGUF metadata; RoPE in the spelling of transformers 4 and of 5.

    Raises:
        GgufNotLlama: another architecture, or scaled RoPE, which no file read so far has.
    """
    if metadata.get("general.architecture") != "llama" or "llama.rope.scaling.type" in metadata:
        raise GgufNotLlama(
            "the GGUF file is not a plain Llama",
            f"general.architecture = {metadata.get('general.architecture')!r}",
            "only Llama tensors without RoPE scaling are renamed and reordered here",
            "give a Hugging Face folder of the model instead",
        )
    num_heads = int(metadata["llama.attention.head_count"])
    hidden_size = int(metadata["llama.embedding_length"])
    theta = float(metadata["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": int(metadata["llama.feed_forward_length"]),
        "num_hidden_layers": int(metadata["llama.block_count"]),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(metadata["llama.attention.head_count_kv"]),
        "head_dim": hidden_size // num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": int(metadata["llama.context_length"]),
        "rms_norm_eps": _shortest(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "vocab_size": int(metadata["llama.vocab_size"]),
        "tie_word_embeddings": is_tied,
        "bos_token_id": int(metadata["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(metadata["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(metadata["tokenizer.ggml.padding_token_id"]),
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def dequantise(gguf_file: Path, out: Path, talk: Talk) -> None:
    """Write config, fp32 safetensors, tokenizer and chat template of `gguf_file` into the folder `out`.

    Raises:
        GgufNotLlama: another architecture, or a tensor without a place in Llama (named).
    """
    import gguf
    from safetensors.numpy import save_file

    reader = gguf.GGUFReader(gguf_file)
    metadata = {key: reader.fields[key].contents() for key in reader.fields if not key.startswith("tokenizer.ggml.to")}
    is_tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = llama_config(metadata, is_tied=is_tied)
    heads = {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}
    weights = {}
    with talk.progress("dequantise", len(reader.tensors), "tensors") as bar:
        for tensor in reader.tensors:
            name = hugging_face_name(tensor.name)
            if name is None:
                raise GgufNotLlama(
                    f"tensor {tensor.name} has no place in a Llama",
                    str(gguf_file),
                    "dropping it would change what the model computes",
                    "give a Hugging Face folder of the model instead",
                )
            weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32", copy=False)
            in_pairs = next((count for part, count in heads.items() if part in name), None)
            weights[name] = halves_from_pairs(weight, in_pairs).copy() if in_pairs else weight
            bar.advance()
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # safetensors makes it readable by the owner only
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "generation_config.json").write_text(
        json.dumps({key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}, indent=2) + "\n",
        encoding="utf-8",
    )
    _write_tokenizer(gguf_file, out)


def _write_tokenizer(gguf_file: Path, out: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf_file.parent), gguf_file=gguf_file.name)
    tokenizer.save_pretrained(out)


def _shortest(value: float) -> float:
    """The shortest decimal with the same float32 value: 9.999999747378752e-06 was written from 1e-05."""
    import numpy as np

    return float(str(np.float32(value)))
