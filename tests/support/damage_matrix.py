"""The damage matrix: one small healthy draft, and each way to spoil it. Standard library only.

Used by the tests of the ledger and by the runners that let real engines load every row (benchmarks/conformance_run.py).
The shapes are SmolLM2-135M's proportions (30 layers, heads of 64, 3 query heads to 1), a third as wide.
"""

import json
import random
import struct
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

H, HEADS, KV_HEADS, HEAD_DIM, INNER = 192, 3, 1, 64, 512
VOCAB, DRAFT_VOCAB, LAYERS = 1024, 256, 30
AUX = (2, 15, 27)

TARGET_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
_SIZE_BYTES = {"BF16": 2, "F32": 4, "I64": 8, "BOOL": 1, "F8_E4M3": 1}


@dataclass(slots=True)
class Draft:
    """config.json, tensors (name -> dtype, shape) and the integer maps (name -> values)."""

    config: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    maps: dict[str, list[int]] = field(default_factory=dict)

    def drop(self, name: str) -> "Draft":
        del self.tensors[name]
        self.maps.pop(name, None)
        return self

    def add(self, name: str, *shape: int, dtype: str = "BF16") -> "Draft":
        self.tensors[name] = (dtype, shape)
        return self

    def set(self, **keys: Any) -> "Draft":
        self.config.update(keys)
        return self

    def unset(self, *keys: str) -> "Draft":
        for key in keys:
            self.config.pop(key, None)
        return self

    def rename(self, old: str, new: str) -> "Draft":
        self.tensors = {n.replace(old, new, 1) if old in n else n: t for n, t in self.tensors.items()}
        return self


def draft_ids() -> list[int]:
    """Target ids of the draft vocabulary: sorted, dense at first, with runs of neighbours later on."""
    rng = random.Random(7)
    return [*range(64), *sorted(rng.sample(range(64, VOCAB - 1), DRAFT_VOCAB - 65)), VOCAB - 1]


def healthy(layer: str = "midlayer") -> Draft:
    """A SpecForge-style draft, bf16, layer ids in SGLang's convention."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "fc.weight": ("BF16", (H, 3 * H)),
        f"{layer}.hidden_norm.weight": ("BF16", (H,)),
        f"{layer}.input_layernorm.weight": ("BF16", (H,)),
        f"{layer}.post_attention_layernorm.weight": ("BF16", (H,)),
        f"{layer}.self_attn.q_proj.weight": ("BF16", (q, 2 * H)),
        f"{layer}.self_attn.k_proj.weight": ("BF16", (kv, 2 * H)),
        f"{layer}.self_attn.v_proj.weight": ("BF16", (kv, 2 * H)),
        f"{layer}.self_attn.o_proj.weight": ("BF16", (H, q)),
        f"{layer}.mlp.gate_proj.weight": ("BF16", (INNER, H)),
        f"{layer}.mlp.up_proj.weight": ("BF16", (INNER, H)),
        f"{layer}.mlp.down_proj.weight": ("BF16", (H, INNER)),
        "norm.weight": ("BF16", (H,)),
        "lm_head.weight": ("BF16", (DRAFT_VOCAB, H)),
        "d2t": ("I64", (DRAFT_VOCAB,)),
        "t2d": ("BOOL", (VOCAB,)),
    }
    ids = draft_ids()
    mask = [0] * VOCAB
    for i in ids:
        mask[i] = 1
    config = {
        **{k: v for k, v in TARGET_CONFIG.items() if k != "tie_word_embeddings"},
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [b - 1 for b in AUX], "use_aux_hidden_state": True},
    }
    return Draft(config=config, tensors=tensors, maps={"d2t": [t - i for i, t in enumerate(ids)], "t2d": mask})


def speculators() -> Draft:
    """The same draft in the speculators format."""
    draft = healthy("layers.0")
    layer_keys = (
        "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta",
        "hidden_act",
    )  # fmt: skip
    method = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    draft.config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": DRAFT_VOCAB,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": list(AUX),
        "dtype": "bfloat16",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": "smollm2-shaped", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": {k: draft.config[k] for k in layer_keys},
    }
    return draft


def _with_map(values: Callable[[list[int]], list[int]]) -> Draft:
    draft = healthy()
    draft.maps["d2t"] = values(draft_ids())
    return draft


def _with_ids(*ids: int) -> Draft:
    draft = healthy()
    draft.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(ids)
    return draft


def _speculators_without(key: str) -> Draft:
    draft = speculators()
    del draft.config[key]
    return draft


def _resized(part: str, rows: int, columns: int) -> Draft:
    draft = healthy()
    dtype, (r, c) = draft.tensors[f"midlayer.{part}.weight"]  # type: ignore[misc]
    draft.tensors[f"midlayer.{part}.weight"] = (dtype, (r + rows, c + columns))
    return draft


def _two_layers(norm: str) -> Draft:
    draft = healthy("layers.0").set(num_hidden_layers=2)
    for name, (dtype, shape) in list(draft.tensors.items()):
        if name.startswith("layers.0."):
            inner = name.replace("layers.0.", "layers.1.")
            if "hidden_norm" in name:
                continue
            if "input_layernorm" in name:
                inner = inner.replace("input_layernorm", norm)
            if any(f".{p}_proj" in name for p in "qkv"):
                shape = (shape[0], H)
            draft.tensors[inner] = (dtype, shape)
    return draft


def _thirty_one() -> Draft:
    """Eagle 3.1: one norm per state and the post-norm state fed back."""
    draft = healthy().set(fc_norm=True, norm_output=True)
    for i in range(3):
        draft.add(f"fc_norm.{i}.weight", H)
    return draft


def _quantised_fc() -> Draft:
    draft = healthy()
    draft.tensors["fc.weight"] = ("F8_E4M3", (H, 3 * H))
    return draft.add("fc.weight_scale", 1, dtype="F32")


def _all_fp32() -> Draft:
    draft = healthy()
    draft.tensors = {n: ("F32" if d == "BF16" else d, s) for n, (d, s) in draft.tensors.items()}
    return draft


def _aux_norm_names() -> Draft:
    draft = healthy().set(use_aux_norm=True)
    for which in ("low", "mid", "high"):
        draft.add(f"aux_norm_{which}.weight", H)
    return draft


def _qwen3() -> Draft:
    draft = healthy("layers.0").set(architectures=["Eagle3Qwen3ForCausalLM"], model_type="qwen3")
    return draft.add("layers.0.self_attn.q_norm.weight", HEAD_DIM).add("layers.0.self_attn.k_norm.weight", HEAD_DIM)


_MISSING = {
    "fc": "fc",
    "q": "midlayer.self_attn.q_proj",
    "k": "midlayer.self_attn.k_proj",
    "v": "midlayer.self_attn.v_proj",
    "o": "midlayer.self_attn.o_proj",
    "gate": "midlayer.mlp.gate_proj",
    "up": "midlayer.mlp.up_proj",
    "down": "midlayer.mlp.down_proj",
    "input_layernorm": "midlayer.input_layernorm",
    "hidden_norm": "midlayer.hidden_norm",
    "post_attention_layernorm": "midlayer.post_attention_layernorm",
    "norm": "norm",
    "lm_head": "lm_head",
}

ROWS: dict[str, Callable[[], Draft]] = {
    "intact": healthy,
    "intact-layers0": lambda: healthy("layers.0"),
    "intact-speculators": speculators,
    **{
        f"missing-{short}": (lambda name=name: healthy().drop(f"{name}.weight"))  # type: ignore[misc]
        for short, name in _MISSING.items()
    },
    "missing-d2t": lambda: healthy().drop("d2t"),
    "missing-t2d": lambda: healthy().drop("t2d"),
    "d2t-absolute": lambda: _with_map(lambda ids: ids),
    "d2t-shifted": lambda: _with_map(lambda ids: [t - i - 1 for i, t in enumerate(ids)]),
    "d2t-arange": lambda: _with_map(lambda ids: list(range(len(ids)))),
    "d2t-zeros": lambda: _with_map(lambda ids: [0] * len(ids)),
    "extra-fc-bias": lambda: healthy().add("fc.bias", H),
    "extra-q-bias": lambda: healthy().add("midlayer.self_attn.q_proj.bias", HEADS * HEAD_DIM),
    "extra-o-bias": lambda: healthy().add("midlayer.self_attn.o_proj.bias", H),
    "extra-down-bias": lambda: healthy().add("midlayer.mlp.down_proj.bias", H),
    "declared-q-bias": lambda: (
        healthy().set(attention_bias=True).add("midlayer.self_attn.q_proj.bias", HEADS * HEAD_DIM)
    ),
    "embed-random": lambda: healthy().add("embed_tokens.weight", VOCAB, H),
    "aux-plus-one": lambda: _with_ids(2, 15, 27),
    "aux-minus-one": lambda: _with_ids(0, 13, 25),
    "aux-unsorted": lambda: _with_ids(26, 1, 14),
    "aux-two": lambda: _with_ids(1, 14),
    "aux-top-level": lambda: healthy().unset("eagle_config").set(eagle_aux_hidden_state_layer_ids=list(AUX)),
    "aux-none": lambda: healthy().unset("eagle_config"),
    "residual-true": lambda: healthy().set(norm_before_residual=True),
    "residual-absent-speculators": lambda: _speculators_without("norm_before_residual"),
    "theta-wrong": lambda: healthy().set(rope_theta=1e6),
    "rope-absent": lambda: healthy().unset("rope_theta"),
    "rope-new-spelling": lambda: (
        healthy().unset("rope_theta").set(rope_parameters={"rope_type": "default", "rope_theta": 1e5})
    ),
    "draft-vocab-missing": lambda: healthy().unset("draft_vocab_size"),
    "draft-vocab-null": lambda: healthy().set(draft_vocab_size=None),
    "arch-llama": lambda: healthy().set(architectures=["LlamaForCausalLM"]),
    "arch-qwen3": lambda: healthy().set(architectures=["Qwen3ForCausalLM"]),
    "arch-angelslim": lambda: healthy().set(architectures=["Eagle3LlamaForCausalLM"]),
    "arch-unknown": lambda: healthy().set(architectures=["MyDraftForCausalLM"]),
    "arch-missing": lambda: healthy().unset("architectures"),
    "model-type-missing": lambda: healthy().unset("model_type"),
    "model-type-unknown": lambda: healthy().set(model_type="my_draft"),
    "tie-true": lambda: healthy().set(tie_word_embeddings=True),
    "input-norm-without-flag": lambda: healthy().add("input_norm.weight", 3 * H),
    "input-norm-with-flag": lambda: healthy().set(norm_before_fc=True).add("input_norm.weight", 3 * H),
    "input-norm-flag-only": lambda: healthy().set(norm_before_fc=True),
    "eagle-3.1": _thirty_one,
    "fc-norm-without-flag": lambda: _thirty_one().set(fc_norm=False),
    "aux-norm-names": _aux_norm_names,
    "qk-norm": lambda: (
        healthy().add("midlayer.self_attn.q_norm.weight", HEAD_DIM).add("midlayer.self_attn.k_norm.weight", HEAD_DIM)
    ),
    "qwen3-class": _qwen3,
    "unknown-tensor": lambda: healthy().add("foo.weight", H),
    "model-prefix": lambda: healthy().rename("fc.", "model.fc."),
    "model-prefix-head": lambda: healthy().rename("lm_head.", "model.lm_head."),
    "long-q": lambda: _resized("self_attn.q_proj", 64, 0),
    "long-gate": lambda: _resized("mlp.gate_proj", 32, 0),
    "long-down": lambda: _resized("mlp.down_proj", 0, 32),
    "short-q": lambda: _resized("self_attn.q_proj", -64, 0),
    "short-gate": lambda: _resized("mlp.gate_proj", -32, 0),
    "short-down": lambda: _resized("mlp.down_proj", 0, -32),
    "wide-q": lambda: _resized("self_attn.q_proj", 0, 32),
    "fc-two-states": lambda: healthy().add("fc.weight", H, 2 * H),
    "head-short": lambda: healthy().add("lm_head.weight", DRAFT_VOCAB - 16, H),
    "two-layers-vllm": lambda: _two_layers("input_layernorm"),
    "two-layers-sglang": lambda: _two_layers("hidden_norm"),
    "layers-key-two": lambda: healthy().set(num_hidden_layers=2),
    "fc-fp8-with-scale": _quantised_fc,
    "all-fp32": _all_fp32,
    "activation-gelu": lambda: healthy().set(hidden_act="gelu"),
    "rotary-buffer": lambda: healthy().add("midlayer.self_attn.rotary_emb.inv_freq", 32, dtype="F32"),
}


def write(draft: Draft, folder: Path, *, seed: int = 0) -> Path:
    """A real checkpoint folder: config.json and model.safetensors with small random values."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(draft.config, indent=1))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    order = sorted(draft.tensors, key=lambda n: (-_SIZE_BYTES[draft.tensors[n][0]], n))
    for name in order:
        dtype, shape = draft.tensors[name]
        size = _SIZE_BYTES[dtype]
        for s in shape:
            size *= s
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(seed)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            begin, end = header[name]["data_offsets"]
            file.write(_data(draft, name, end - begin, rng))
    return folder


def write_target(folder: Path) -> Path:
    """config.json of the target; no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TARGET_CONFIG, indent=1))
    return folder


def build(row: str) -> Draft:
    """The draft of one row, fresh."""
    return deepcopy(ROWS[row]())


_FP8_BELOW_TWO = bytes(b & 0x3F for b in range(256))
_BF16_OF_ABOUT_0_02 = bytes(0x3C | (b & 0x80) for b in range(256))  # the upper byte


def _data(draft: Draft, name: str, size: int, rng: random.Random) -> bytes:
    dtype, _ = draft.tensors[name]
    if name in draft.maps:
        values = draft.maps[name]
        return bytes(values) if dtype == "BOOL" else struct.pack(f"<{len(values)}q", *values)
    raw = rng.randbytes(size)
    if dtype == "F8_E4M3":
        return raw.translate(_FP8_BELOW_TWO)
    if dtype == "F32":
        count = size // 4
        return struct.pack(f"<{count}f", *((b - 127.5) / 4096 for b in raw[:count]))
    # bf16 of about +-0.02: sign and mantissa at random, exponent fixed
    data = bytearray(raw)
    data[1::2] = raw[1::2].translate(_BF16_OF_ABOUT_0_02)
    return bytes(data)
