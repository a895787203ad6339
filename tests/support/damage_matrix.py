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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of the target and its draft.

    `aux` are boundaries. The draft names them by layer ids, boundary - `id_base`: 1 in SGLang's convention, 0 in
    vLLM's. `offered` are the target ids of the draft vocabulary.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    layers: int
    aux: tuple[int, int, int]
    offered: tuple[int, ...]
    theta: float
    positions: int
    tied: bool
    own_embedding: bool = False
    id_base: int = 1

    @property
    def target_config(self) -> dict[str, Any]:
        """config.json of the target."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.positions,
            "rms_norm_eps": 1e-5,
            "rope_theta": self.theta,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        }


H, HEADS, KV_HEADS, HEAD_DIM, INNER = 192, 3, 1, 64, 512
VOCAB, DRAFT_VOCAB, LAYERS = 1024, 256, 30
AUX = (2, 15, 27)


def draft_ids() -> list[int]:
    """Target ids of the draft vocabulary: sorted, dense at first, with runs of neighbours later on."""
    rng = random.Random(7)
    return [*range(64), *sorted(rng.sample(range(64, VOCAB - 1), DRAFT_VOCAB - 65)), VOCAB - 1]


SMOLLM2_SHAPED = Sizes(
    hidden=H, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, inner=INNER, vocab=VOCAB, layers=LAYERS, aux=AUX,
    offered=tuple(draft_ids()), theta=100000.0, positions=2048, tied=True,
)  # fmt: skip
TARGET_CONFIG = SMOLLM2_SHAPED.target_config
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


def healthy(s: Sizes = SMOLLM2_SHAPED, layer: str = "midlayer") -> Draft:
    """A SpecForge-style draft, bf16, layer ids in SGLang's convention."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "fc.weight": ("BF16", (s.hidden, 3 * s.hidden)),
        f"{layer}.hidden_norm.weight": ("BF16", (s.hidden,)),
        f"{layer}.input_layernorm.weight": ("BF16", (s.hidden,)),
        f"{layer}.post_attention_layernorm.weight": ("BF16", (s.hidden,)),
        f"{layer}.self_attn.q_proj.weight": ("BF16", (q, 2 * s.hidden)),
        f"{layer}.self_attn.k_proj.weight": ("BF16", (kv, 2 * s.hidden)),
        f"{layer}.self_attn.v_proj.weight": ("BF16", (kv, 2 * s.hidden)),
        f"{layer}.self_attn.o_proj.weight": ("BF16", (s.hidden, q)),
        f"{layer}.mlp.gate_proj.weight": ("BF16", (s.inner, s.hidden)),
        f"{layer}.mlp.up_proj.weight": ("BF16", (s.inner, s.hidden)),
        f"{layer}.mlp.down_proj.weight": ("BF16", (s.hidden, s.inner)),
        "norm.weight": ("BF16", (s.hidden,)),
        "lm_head.weight": ("BF16", (len(s.offered), s.hidden)),
        "d2t": ("I64", (len(s.offered),)),
        "t2d": ("BOOL", (s.vocab,)),
    }
    if s.own_embedding:
        tensors["embed_tokens.weight"] = ("BF16", (s.vocab, s.hidden))
    ids = list(s.offered)
    mask = [0] * s.vocab
    for i in ids:
        mask[i] = 1
    config = {
        **{k: v for k, v in s.target_config.items() if k != "tie_word_embeddings"},
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "draft_vocab_size": len(s.offered),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [b - s.id_base for b in s.aux],
            "use_aux_hidden_state": True,
        },
    }
    return Draft(config=config, tensors=tensors, maps={"d2t": [t - i for i, t in enumerate(ids)], "t2d": mask})


def speculators(s: Sizes) -> Draft:
    """The same draft in the speculators format."""
    draft = healthy(s, "layers.0")
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
        "draft_vocab_size": len(s.offered),
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": list(s.aux),
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


def _with_map(s: Sizes, values: Callable[[list[int]], list[int]]) -> Draft:
    draft = healthy(s)
    draft.maps["d2t"] = values(list(s.offered))
    return draft


def _with_ids(s: Sizes, *boundaries: int) -> Draft:
    draft = healthy(s)
    draft.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [b - s.id_base for b in boundaries]
    return draft


def _speculators_without(s: Sizes, key: str) -> Draft:
    draft = speculators(s)
    del draft.config[key]
    return draft


def _resized(s: Sizes, part: str, rows: int, columns: int) -> Draft:
    draft = healthy(s)
    dtype, (r, c) = draft.tensors[f"midlayer.{part}.weight"]  # type: ignore[misc]
    draft.tensors[f"midlayer.{part}.weight"] = (dtype, (r + rows, c + columns))
    return draft


def _two_layers(s: Sizes, norm: str) -> Draft:
    draft = healthy(s, "layers.0").set(num_hidden_layers=2)
    for name, (dtype, shape) in list(draft.tensors.items()):
        if name.startswith("layers.0."):
            inner = name.replace("layers.0.", "layers.1.")
            if "hidden_norm" in name:
                continue
            if "input_layernorm" in name:
                inner = inner.replace("input_layernorm", norm)
            if any(f".{p}_proj" in name for p in "qkv"):
                shape = (shape[0], s.hidden)
            draft.tensors[inner] = (dtype, shape)
    return draft


def _thirty_one(s: Sizes) -> Draft:
    """Eagle 3.1: one norm per state and the post-norm state fed back."""
    draft = healthy(s).set(fc_norm=True, norm_output=True)
    for i in range(3):
        draft.add(f"fc_norm.{i}.weight", s.hidden)
    return draft


def _quantised_fc(s: Sizes) -> Draft:
    draft = healthy(s)
    draft.tensors["fc.weight"] = ("F8_E4M3", (s.hidden, 3 * s.hidden))
    return draft.add("fc.weight_scale", 1, dtype="F32")


def _all_fp32(s: Sizes) -> Draft:
    draft = healthy(s)
    draft.tensors = {n: ("F32" if d == "BF16" else d, s) for n, (d, s) in draft.tensors.items()}
    return draft


def _aux_norm_names(s: Sizes) -> Draft:
    draft = healthy(s).set(use_aux_norm=True)
    for which in ("low", "mid", "high"):
        draft.add(f"aux_norm_{which}.weight", s.hidden)
    return draft


def _qwen3(s: Sizes) -> Draft:
    draft = healthy(s, "layers.0").set(architectures=["Eagle3Qwen3ForCausalLM"], model_type="qwen3")
    return draft.add("layers.0.self_attn.q_norm.weight", s.head_dim).add("layers.0.self_attn.k_norm.weight", s.head_dim)


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

ROWS: dict[str, Callable[[Sizes], Draft]] = {
    "intact": lambda s: healthy(s),
    "intact-layers0": lambda s: healthy(s, "layers.0"),
    "intact-speculators": speculators,
    **{
        f"missing-{short}": (lambda s, name=name: healthy(s).drop(f"{name}.weight"))  # type: ignore[misc]
        for short, name in _MISSING.items()
    },
    "missing-d2t": lambda s: healthy(s).drop("d2t"),
    "missing-t2d": lambda s: healthy(s).drop("t2d"),
    "d2t-absolute": lambda s: _with_map(s, lambda ids: ids),
    "d2t-shifted": lambda s: _with_map(s, lambda ids: [t - i - 1 for i, t in enumerate(ids)]),
    "d2t-arange": lambda s: _with_map(s, lambda ids: list(range(len(ids)))),
    "d2t-zeros": lambda s: _with_map(s, lambda ids: [0] * len(ids)),
    "extra-fc-bias": lambda s: healthy(s).add("fc.bias", s.hidden),
    "extra-q-bias": lambda s: healthy(s).add("midlayer.self_attn.q_proj.bias", s.heads * s.head_dim),
    "extra-o-bias": lambda s: healthy(s).add("midlayer.self_attn.o_proj.bias", s.hidden),
    "extra-down-bias": lambda s: healthy(s).add("midlayer.mlp.down_proj.bias", s.hidden),
    "declared-q-bias": lambda s: (
        healthy(s).set(attention_bias=True).add("midlayer.self_attn.q_proj.bias", s.heads * s.head_dim)
    ),
    "embed-random": lambda s: healthy(s).add("embed_tokens.weight", s.vocab, s.hidden),
    "aux-plus-one": lambda s: _with_ids(s, *(b + 1 for b in s.aux)),
    "aux-minus-one": lambda s: _with_ids(s, *(b - 1 for b in s.aux)),
    "aux-unsorted": lambda s: _with_ids(s, *(s.aux[i] for i in (2, 0, 1))),
    "aux-two": lambda s: _with_ids(s, *s.aux[:2]),
    "aux-top-level": lambda s: healthy(s).unset("eagle_config").set(eagle_aux_hidden_state_layer_ids=list(s.aux)),
    "aux-none": lambda s: healthy(s).unset("eagle_config"),
    "residual-true": lambda s: healthy(s).set(norm_before_residual=True),
    "residual-absent-speculators": lambda s: _speculators_without(s, "norm_before_residual"),
    "theta-wrong": lambda s: healthy(s).set(rope_theta=1e6),
    "rope-absent": lambda s: healthy(s).unset("rope_theta"),
    "rope-new-spelling": lambda s: (
        healthy(s).unset("rope_theta").set(rope_parameters={"rope_type": "default", "rope_theta": s.theta})
    ),
    "draft-vocab-missing": lambda s: healthy(s).unset("draft_vocab_size"),
    "draft-vocab-null": lambda s: healthy(s).set(draft_vocab_size=None),
    "arch-llama": lambda s: healthy(s).set(architectures=["LlamaForCausalLM"]),
    "arch-qwen3": lambda s: healthy(s).set(architectures=["Qwen3ForCausalLM"]),
    "arch-angelslim": lambda s: healthy(s).set(architectures=["Eagle3LlamaForCausalLM"]),
    "arch-unknown": lambda s: healthy(s).set(architectures=["MyDraftForCausalLM"]),
    "arch-missing": lambda s: healthy(s).unset("architectures"),
    "model-type-missing": lambda s: healthy(s).unset("model_type"),
    "model-type-unknown": lambda s: healthy(s).set(model_type="my_draft"),
    "tie-true": lambda s: healthy(s).set(tie_word_embeddings=True),
    "input-norm-without-flag": lambda s: healthy(s).add("input_norm.weight", 3 * s.hidden),
    "input-norm-with-flag": lambda s: healthy(s).set(norm_before_fc=True).add("input_norm.weight", 3 * s.hidden),
    "input-norm-flag-only": lambda s: healthy(s).set(norm_before_fc=True),
    "eagle-3.1": _thirty_one,
    "fc-norm-without-flag": lambda s: _thirty_one(s).set(fc_norm=False),
    "aux-norm-names": _aux_norm_names,
    "qk-norm": lambda s: (
        healthy(s)
        .add("midlayer.self_attn.q_norm.weight", s.head_dim)
        .add("midlayer.self_attn.k_norm.weight", s.head_dim)
    ),
    "qwen3-class": _qwen3,
    "unknown-tensor": lambda s: healthy(s).add("foo.weight", s.hidden),
    "model-prefix": lambda s: healthy(s).rename("fc.", "model.fc."),
    "model-prefix-head": lambda s: healthy(s).rename("lm_head.", "model.lm_head."),
    "long-q": lambda s: _resized(s, "self_attn.q_proj", 64, 0),
    "long-gate": lambda s: _resized(s, "mlp.gate_proj", 32, 0),
    "long-down": lambda s: _resized(s, "mlp.down_proj", 0, 32),
    "short-q": lambda s: _resized(s, "self_attn.q_proj", -64, 0),
    "short-gate": lambda s: _resized(s, "mlp.gate_proj", -32, 0),
    "short-down": lambda s: _resized(s, "mlp.down_proj", 0, -32),
    "wide-q": lambda s: _resized(s, "self_attn.q_proj", 0, 32),
    "fc-two-states": lambda s: healthy(s).add("fc.weight", s.hidden, 2 * s.hidden),
    "head-short": lambda s: healthy(s).add("lm_head.weight", len(s.offered) - 16, s.hidden),
    "two-layers-vllm": lambda s: _two_layers(s, "input_layernorm"),
    "two-layers-sglang": lambda s: _two_layers(s, "hidden_norm"),
    "layers-key-two": lambda s: healthy(s).set(num_hidden_layers=2),
    "fc-fp8-with-scale": _quantised_fc,
    "all-fp32": _all_fp32,
    "activation-gelu": lambda s: healthy(s).set(hidden_act="gelu"),
    "rotary-buffer": lambda s: healthy(s).add("midlayer.self_attn.rotary_emb.inv_freq", s.head_dim // 2, dtype="F32"),
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


def build(row: str, sizes: Sizes = SMOLLM2_SHAPED) -> Draft:
    """The draft of one row, fresh."""
    return deepcopy(ROWS[row](sizes))


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
