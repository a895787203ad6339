"""Weights of the Llama family, fused for decoding, straight from a Hugging Face folder.

Knows the families whose block is the same: Llama, Mistral, Qwen2 / 2.5 (bias on q, k, v), Qwen3 (norm on q and k).
Everything else goes through transformers. Shapes: H hidden, N query heads, M key/value heads, d head width,
I intermediate, V vocabulary.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.contract.files.safetensors_header import read_safetensors_header
from eyas.contract.spec.draft_spec import Rope
from eyas.models.rope import inverse_frequencies
from eyas.models.target.loading import TargetUnloadable
from eyas.models.target.quantise import Quantisation, is_quantised, quantised, say_quantised, stored_bytes
from eyas.talk import Talk

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """Sizes of one decoder block and of the stack.

    Attributes:
        in_width: width of the attention's input (2H in layer 0 of a draft).
        rotary_dim: rotated share of a head.
        window: positions a query sees, its own included; None for all.
    """

    hidden: int
    in_width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    intermediate: int
    eps: float
    window: int | None = None

    @property
    def qkv_width(self) -> int:
        """Rows of the fused q, k, v weight."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWeights:
    """One decoder block.

    Attributes:
        input_norm: [H], or None where the caller norms the attention's input itself (a draft's layer 0).
        qkv: [(N + 2M) d, in_width]; qkv_bias: its bias or None.
        q_norm, k_norm: [d] or None.
        o: [H, N d]; post_norm: [H]; gate_up: [2I, H]; down: [H, I].
    """

    input_norm: Tensor | None
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaWeights:
    """A whole target.

    Attributes:
        embedding: [V, H]; head: [V, H], the same tensor when tied.
        name: of the target, for messages.
        inverse_frequencies: [rotary_dim / 2] fp32 on the CPU; rope_scale: factor on cosines and sines.
    """

    shape: LlamaShape
    embedding: Tensor
    blocks: tuple[BlockWeights, ...]
    norm: Tensor
    head: Tensor
    inverse_frequencies: Tensor
    rope_scale: float
    name: str = "the target"

    @property
    def num_bytes(self) -> int:
        """Bytes that one forward pass of one row reads: all but the embedding table (unless tied)."""
        fused = (t for b in self.blocks for t in (b.qkv, b.o, b.gate_up, b.down))
        return sum(map(stored_bytes, (*fused, self.head)))

    @property
    def is_quantised(self) -> bool:
        """Whether some matrices are torchao's: `F.linear` takes them, our own kernels do not."""
        return any(is_quantised(b.qkv) for b in self.blocks)


def quantise_llama(weights: LlamaWeights, kind: Quantisation, talk: Talk) -> LlamaWeights:
    """The blocks' matrices quantised, one block after the other; embedding, head and norms as they are."""
    if kind == "none":
        return weights
    blocks = []
    for block in weights.blocks:
        matrices = {name: quantised(getattr(block, name), kind) for name in ("qkv", "o", "gate_up", "down")}
        blocks.append(replace(block, **matrices))
    every = [t for b in blocks for t in (b.qkv, b.o, b.gate_up, b.down)]
    left = sum(t.numel() for t in every if not is_quantised(t))
    say_quantised(kind, sum(t.numel() for t in every) - left, left, talk)
    return replace(weights, blocks=tuple(blocks))


def why_not_fast(config: Mapping[str, Any]) -> str | None:
    """Why a config.json is outside the fast path; None if it is inside."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        return f"model_type {kind} is not one of {', '.join(FAMILIES)}"
    if config.get("hidden_act", "silu") != "silu":
        return f"hidden_act is {config['hidden_act']}"
    if config.get("mlp_bias") or (kind != "qwen2" and config.get("attention_bias")):
        return "it has biases where the family has none"
    if config.get("use_sliding_window") or len(set(config.get("layer_types") or ())) > 1:
        return "its layers differ in their attention window"
    if config.get("quantization_config"):
        return "its weights are quantised"
    if reason := _why_not_rope(config):
        return reason
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    silent = [name for name in sizes if not config.get(name)]
    return f"its config.json does not say {', '.join(silent)}" if silent else None


def sliding_window(config: Mapping[str, Any]) -> int | None:
    """Positions that a query sees in a target of the fast path, its own included; None for all."""
    if config["model_type"] != "mistral" or set(config.get("layer_types") or ()) == {"full_attention"}:
        return None
    window = config.get("sliding_window", 4096)  # transformers' default for Mistral, where the config is silent
    return int(window) if window else None


def _why_not_rope(config: Mapping[str, Any]) -> str | None:
    for level in (config, config.get("rope_parameters") or {}, config.get("rope_scaling") or {}):
        kind = level.get("rope_type") or level.get("type")
        if kind in ("dynamic", "longrope"):
            return f"its RoPE frequencies change with the length of the text ({kind})"
        if (level.get("partial_rotary_factor") or 1.0) != 1.0:
            return "it rotates only a part of each head"
    return None


def read_llama(folder: Path, *, dtype: torch.dtype, device: torch.device) -> LlamaWeights:
    """Read and fuse the weights of a folder for which `why_not_fast` gives None.

    Raises:
        TargetUnloadable: a weight is not in its files, or is of another size than the config says; or a size in the
            config is not a positive number.
        What `read_safetensors_header` raises: a file is truncated or not a regular file.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert why_not_fast(config) is None, "ask why_not_fast first"
    with ExitStack() as stack:
        get = _tensors(folder, stack, dtype, device)
        return replace(fuse_llama(config, get), name=str(folder))


def fuse_llama(config: Mapping[str, Any], get: Callable[[str], Tensor | None]) -> LlamaWeights:
    """Fuse weights given by name (`get` gives None for a name that is not there)."""
    shape, rope, max_positions = _sane_shape(config)
    frequencies, scale = inverse_frequencies(rope, shape.head_dim, max_positions)
    must = partial(_must, get)
    embedding = must("model.embed_tokens.weight", config.get("vocab_size"), shape.hidden)
    blocks = range(config["num_hidden_layers"])
    return LlamaWeights(
        shape=shape,
        embedding=embedding,
        blocks=tuple(_block(must, f"model.layers.{i}.", config["model_type"], shape) for i in blocks),
        norm=must("model.norm.weight", shape.hidden),
        head=embedding if config.get("tie_word_embeddings") else must("lm_head.weight", *embedding.shape),
        inverse_frequencies=frequencies,
        rope_scale=scale,
    )


def _sane_shape(config: Mapping[str, Any]) -> tuple[LlamaShape, Rope, int]:
    try:
        shape, rope, max_positions = _shape(config)
        sizes = (shape.hidden, shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.intermediate, max_positions)
        why = f"its sizes are {sizes}, and one is below 1" if min(sizes) < 1 else None
    except (TypeError, ValueError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
    if why is not None:
        raise TargetUnloadable("the target's config has an impossible value", "config.json", why, "correct the config")
    return shape, rope, max_positions


def _shape(config: Mapping[str, Any]) -> tuple[LlamaShape, Rope, int]:
    heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    # transformers 5 writes rope_parameters, transformers 4 rope_theta and rope_scaling.
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(parameters.pop("rope_theta", None) or config.get("rope_theta") or 10000.0)
    rope = Rope(theta=theta, scaling=parameters or None)
    shape = LlamaShape(
        hidden=int(config["hidden_size"]),
        in_width=int(config["hidden_size"]),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        rotary_dim=head_dim,
        intermediate=int(config["intermediate_size"]),
        eps=float(config.get("rms_norm_eps", 1e-6)),
        window=sliding_window(config),
    )
    return shape, rope, int(config.get("max_position_embeddings", 2048))


def _block(must: Callable[..., Tensor], prefix: str, family: str, s: LlamaShape) -> BlockWeights:
    query, key = s.num_heads * s.head_dim, s.num_kv_heads * s.head_dim
    qkv = (("q", query), ("k", key), ("v", key))
    has_bias, has_head_norms = family == "qwen2", family == "qwen3"

    def get(name: str, *size: int) -> Tensor:
        return must(prefix + name, *size)

    return BlockWeights(
        input_norm=get("input_layernorm.weight", s.hidden),
        qkv=torch.cat([get(f"self_attn.{name}_proj.weight", rows, s.hidden) for name, rows in qkv]),
        qkv_bias=torch.cat([get(f"self_attn.{name}_proj.bias", rows) for name, rows in qkv]) if has_bias else None,
        q_norm=get("self_attn.q_norm.weight", s.head_dim) if has_head_norms else None,
        k_norm=get("self_attn.k_norm.weight", s.head_dim) if has_head_norms else None,
        o=get("self_attn.o_proj.weight", s.hidden, query),
        post_norm=get("post_attention_layernorm.weight", s.hidden),
        gate_up=torch.cat([get(f"mlp.{name}_proj.weight", s.intermediate, s.hidden) for name in ("gate", "up")]),
        down=get("mlp.down_proj.weight", s.hidden, s.intermediate),
    )


def _must(get: Callable[[str], Tensor | None], name: str, *size: int | None) -> Tensor:
    """The tensor of that name and size (None: any); kernels read as many numbers as the config says, there or not."""
    tensor = get(name)
    if tensor is None:
        raise TargetUnloadable(
            "weights of the target are missing",
            name,
            "no safetensors file of the target's folder holds this tensor, which its family needs",
            "look at the folder with `eyas header`, and get the missing files",
        )
    if len(size) != tensor.ndim or any(want not in (None, got) for want, got in zip(size, tensor.shape, strict=True)):
        raise TargetUnloadable(
            "a weight of the target does not have the size that its config gives",
            name,
            f"it is {list(tensor.shape)}, and by config.json {['any' if n is None else n for n in size]}",
            "correct config.json, or get the weights that belong to it",
        )
    return tensor


def _tensors(
    folder: Path, stack: ExitStack, dtype: torch.dtype, device: torch.device
) -> Callable[[str], Tensor | None]:
    from safetensors import safe_open

    paths = sorted(folder.glob("*.safetensors"))
    for path in paths:
        read_safetensors_header(path)  # says what is wrong with a download; safe_open also waits for a pipe
    files = [stack.enter_context(safe_open(path, "pt")) for path in paths]
    where = {name: file for file in files for name in file.keys()}  # noqa: SIM118 - safe_open is not a mapping

    def get(name: str) -> Tensor | None:
        if name not in where:
            return None
        tensor: Tensor = where[name].get_tensor(name)
        return tensor.to(device=device, dtype=dtype).contiguous()

    return get
