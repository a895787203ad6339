"""A tiny target and its draft as files, written without torch: right names and shapes, random bytes."""

import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path

HIDDEN, VOCAB, WIDTH, HEADS, KV_HEADS, INTERMEDIATE = 32, 64, 8, 4, 2, 48
TARGET_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 8,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": WIDTH,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
DRAFT_CONFIG = TARGET_CONFIG | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": VOCAB,
}


def draft_shapes(layer: str) -> dict[str, tuple[int, ...]]:
    """Tensors of a draft whose layer is named `layer` ("midlayer" or "layers.0")."""
    return {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.hidden_norm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}.self_attn.q_proj.weight": (HEADS * WIDTH, 2 * HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (KV_HEADS * WIDTH, 2 * HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (KV_HEADS * WIDTH, 2 * HIDDEN),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, HEADS * WIDTH),
        f"{layer}.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }


def write_target(folder: Path) -> Path:
    """A target folder: config, a few tensors, a chat template."""
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    write_checkpoint(folder, TARGET_CONFIG, shapes)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


def write_draft(folder: Path, layer: str = "midlayer", *, without: str = "") -> Path:
    """A draft folder; `without` leaves out the tensors that begin so."""
    shapes = {n: s for n, s in draft_shapes(layer).items() if not without or not n.startswith(without)}
    write_checkpoint(folder, DRAFT_CONFIG, shapes)
    return folder


def write_checkpoint(folder: Path, config: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """config.json and model.safetensors (bf16 numbers around 0.02)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, object] = {}
    data = bytearray()
    dice = random.Random(3)
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        begin = len(data)
        for _ in range(count):
            data += struct.pack("<f", dice.gauss(0, 0.02))[2:]
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
