"""Small random drafts on disk, in any layout, written without eyas' own writers and without torch.

`DraftBuild` holds sizes and switches; `write_draft` gives a folder. Every byte is random, so that a tensor that was
mixed up with another of the same shape shows.
"""

import json
import random
from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "BOOL": 1, "F8_E4M3": 1, "I32": 4, "U8": 1}


@dataclass(frozen=True, kw_only=True)
class DraftBuild:
    hidden: int = 16
    target_hidden: int = 16
    inner: int = 24
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    vocab: int = 64
    draft_vocab: int = 40
    layers: int = 1
    aux: tuple[int, ...] = (2, 6, 9)
    dtype: str = "BF16"
    residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    fc_bias: bool = False
    own_embedding: bool = False
    sliding_window: int | None = None
    mla: bool = False
    theta: float = 500000.0
    scaling: dict[str, Any] | None = None
    t2d: bool = True
    seed: int = 0
    extra_config: dict[str, Any] = field(default_factory=dict)


TARGET_LAYERS = 12  # (2, 6, 9) are the default boundaries


def with_changes(build: DraftBuild, **changes: Any) -> DraftBuild:
    return replace(build, **changes)


def target_config(build: DraftBuild | None = None) -> dict[str, Any]:
    build = build or DraftBuild()
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": build.target_hidden,
        "num_hidden_layers": TARGET_LAYERS,
        "num_attention_heads": 4,
        "vocab_size": build.vocab,
        "max_position_embeddings": 512,
        "rope_theta": 500000.0,
    }


def shapes(build: DraftBuild) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape: written out here on its own, not taken from eyas."""
    h, t, a = build.hidden, build.target_hidden, len(build.aux)
    found: dict[str, tuple[int, ...]] = {"fc.weight": (h, a * t), "norm.weight": (h,)}
    found["lm_head.weight"] = (build.draft_vocab, h)
    if build.fc_bias:
        found["fc.bias"] = (h,)
    if build.norm_before_fc:
        found["input_norm.weight"] = (a * t,)
    if build.fc_norm:
        found.update({f"fc_norm.{i}.weight": (t,) for i in range(a)})
    if build.own_embedding:
        found["embed_tokens.weight"] = (build.vocab, h)
    for layer in range(build.layers):
        prefix, wide = f"layers.{layer}.", 2 * h if layer == 0 else h
        found[prefix + "input_layernorm.weight"] = (h,)
        found[prefix + "post_attention_layernorm.weight"] = (h,)
        if layer == 0:
            found[prefix + "hidden_norm.weight"] = (h,)
        for name, shape in (("gate", (build.inner, h)), ("up", (build.inner, h)), ("down", (h, build.inner))):
            found[f"{prefix}mlp.{name}_proj.weight"] = shape
            if build.mlp_bias:
                found[f"{prefix}mlp.{name}_proj.bias"] = shape[:1]
        if build.mla:
            found.update(
                {
                    prefix + "self_attn.q_a_proj.weight": (12, wide),
                    prefix + "self_attn.q_a_layernorm.weight": (12,),
                    prefix + "self_attn.q_b_proj.weight": (build.heads * (8 + 4), 12),
                    prefix + "self_attn.kv_a_proj_with_mqa.weight": (10 + 4, wide),
                    prefix + "self_attn.kv_a_layernorm.weight": (10,),
                    prefix + "self_attn.kv_b_proj.weight": (build.heads * (8 + 6), 10),
                    prefix + "self_attn.o_proj.weight": (h, build.heads * 6),
                }
            )
            continue
        for name, heads in (("q", build.heads), ("k", build.kv_heads), ("v", build.kv_heads)):
            found[f"{prefix}self_attn.{name}_proj.weight"] = (heads * build.head_dim, wide)
            if build.attention_bias:
                found[f"{prefix}self_attn.{name}_proj.bias"] = (heads * build.head_dim,)
        found[prefix + "self_attn.o_proj.weight"] = (h, build.heads * build.head_dim)
        if build.qk_norm:
            found[prefix + "self_attn.q_norm.weight"] = (build.head_dim,)
            found[prefix + "self_attn.k_norm.weight"] = (build.head_dim,)
    return found


def draft_ids(build: DraftBuild) -> list[int]:
    rng = random.Random(build.seed + 1)
    return [*sorted(rng.sample(range(build.vocab - 1), build.draft_vocab - 1)), build.vocab - 1]


def tensors(build: DraftBuild) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Canonical name -> dtype, shape, data."""
    rng = random.Random(build.seed)
    found = {}
    for name, shape in shapes(build).items():
        count = 1
        for size in shape:
            count *= size
        found[name] = (build.dtype, shape, rng.randbytes(count * SIZES[build.dtype]))
    if build.draft_vocab != build.vocab:
        ids = draft_ids(build)
        found["d2t"] = ("I64", (len(ids),), array("q", [t - i for i, t in enumerate(ids)]).tobytes())
        if build.t2d:
            found["t2d"] = ("BOOL", (build.vocab,), bytes(1 if i in set(ids) else 0 for i in range(build.vocab)))
    return found


def layer_config(build: DraftBuild) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": "deepseek_v3" if build.mla else "qwen3" if build.qk_norm else "llama",
        "hidden_size": build.hidden,
        "intermediate_size": build.inner,
        "num_hidden_layers": build.layers,
        "num_attention_heads": build.heads,
        "num_key_value_heads": build.kv_heads,
        "head_dim": build.head_dim,
        "vocab_size": build.vocab,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rope_theta": build.theta,
        "rope_scaling": build.scaling,
        "attention_bias": build.attention_bias,
        "mlp_bias": build.mlp_bias,
    }
    if build.mla:
        config.update(q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6)
    if build.sliding_window:
        config.update(sliding_window=build.sliding_window, layer_types=["sliding_attention"] * build.layers)
    return config


def flat_config(build: DraftBuild) -> dict[str, Any]:
    """As raw vLLM and SGLang read it, ids at the top level."""
    config = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM" if build.mla else "LlamaForCausalLMEagle3"],
        **layer_config(build),
        "draft_vocab_size": build.draft_vocab,
        "norm_before_residual": build.residual,
        "norm_before_fc": build.norm_before_fc,
        "fc_norm": build.fc_norm,
        "norm_output": build.norm_output,
        "bias": build.fc_bias,
        "num_aux_hidden_states": len(build.aux),
        "eagle_aux_hidden_state_layer_ids": list(build.aux),
        "tie_word_embeddings": False,
    }
    if build.target_hidden != build.hidden:
        config["target_hidden_size"] = build.target_hidden
    return {**config, **build.extra_config}


def sglang_name(canonical: str) -> str:
    if canonical.startswith("layers.0."):
        return canonical.replace("layers.0.", "midlayer.", 1)
    if canonical.startswith("layers."):
        return canonical.replace("input_layernorm", "hidden_norm")
    return canonical


def safetensors_bytes(found: dict[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    header: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape, data) in found.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in found.values())


def write_folder(
    folder: Path, config: dict[str, Any] | None, found: dict[str, tuple[str, tuple[int, ...], bytes]]
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(found))
    return folder


def write_draft(folder: Path, build: DraftBuild | None = None, *, names: str = "layers", **changes: Any) -> Path:
    """A draft in one-level layout; `names`: "layers" (raw vLLM) or "midlayer" (SGLang)."""
    build = with_changes(build or DraftBuild(), **changes)
    found = tensors(build)
    if names == "midlayer":
        found = {sglang_name(name): value for name, value in found.items()}
    return write_folder(folder, flat_config(build), found)


def write_target(folder: Path, build: DraftBuild | None = None, *, weights: bool = True) -> Path:
    build = build or DraftBuild()
    data = random.Random(99).randbytes(build.vocab * build.target_hidden * 2)
    found = {"model.embed_tokens.weight": ("BF16", (build.vocab, build.target_hidden), data)}
    write_folder(folder, target_config(build), found if weights else {})
    if not weights:
        (folder / "model.safetensors").unlink()
    return folder


def speculators_config(build: DraftBuild, **changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3DraftModel"],
        "auto_map": {"": "config.Eagle3SpeculatorConfig"},
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "a/b", "architectures": ["X"]}},
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "transformer_layer_config": layer_config(build),
        "draft_vocab_size": build.draft_vocab,
        "norm_before_residual": build.residual,
        "norm_before_fc": build.norm_before_fc,
        "fc_norm": build.fc_norm,
        "norm_output": build.norm_output,
        "eagle_aux_hidden_state_layer_ids": list(build.aux),
        "target_hidden_size": None,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        **changes,
    }


def modelopt_config(build: DraftBuild) -> dict[str, Any]:
    config = flat_config(build)
    for key in ("eagle_aux_hidden_state_layer_ids", "norm_before_residual", "fc_norm", "norm_output"):
        del config[key]
    config["eagle_config"] = {
        "eagle_aux_hidden_state_layer_ids": [b - 1 for b in build.aux],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
    }
    return config
