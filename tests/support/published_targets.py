"""Tiny random DeepSeek-V3 and Kimi-K2.5 folders, spelled as the published ones are: config keys, tensor names, INT4.

The shapes of attention are those that SGLang's MLA kernels take (kv_lora_rank 512, heads of 128 + 64); 2 heads, so that
two tensor-parallel ranks can serve them. Experts of Kimi are packed as compressed-tensors packs them (4 bits, groups of
32, scales that are powers of 2, so that its twin in bfloat16 computes the same).
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from byte_tokenizer import byte_tokenizer

_YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 2048,
    "type": "yarn",
}
# As in DeepSeek-V3's config.json, but for sizes.
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 257,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "kv_lora_rank": 512,
    "max_position_embeddings": 8192,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 128,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 2,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {**_YARN, "factor": 4.0},
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 512,
}
_INT4 = {
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": 32,
                "num_bits": 4,
                "observer": "minmax",
                "observer_kwargs": {},
                "strategy": "group",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "format": "pack-quantized",
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
_VISION = {
    "init_pos_emb_height": 8,
    "init_pos_emb_time": 4,
    "init_pos_emb_width": 8,
    "merge_kernel_size": [2, 2],
    "merge_type": "sd2_tpool",
    "mm_hidden_size": 32,
    "mm_projector_type": "patchmerger",
    "patch_size": 14,
    "pos_emb_type": "divided_fixed",
    "projector_hidden_act": "gelu",
    "projector_ln_eps": 1e-05,
    "text_hidden_size": 128,
    "video_attn_type": "spatial_temporal",
    "vt_hidden_size": 32,
    "vt_intermediate_size": 64,
    "vt_num_attention_heads": 2,
    "vt_num_hidden_layers": 1,
    # SGLang's and transformers' own names
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
}
_GAIN = 0.7  # of each matrix: with 1.5 rounding grows from layer to layer
# Sizes for tests on the CPU.
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "kv_lora_rank": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}


_PROCESSOR = '''
from transformers import AutoTokenizer


class _Media:
    media_proc_cfg = {
        "patch_size": 14, "merge_kernel_size": 2, "in_patch_limit": 64, "patch_limit_on_one_side": 8,
        "fixed_output_tokens": None, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    }


class KimiK25Processor:
    """As much as a server asks for that is never given an image."""

    media_processor = image_processor = _Media()

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    @classmethod
    def register_for_auto_class(cls, auto_class="AutoProcessor"):
        return None

    @classmethod
    def from_pretrained(cls, folder, *args, **kwargs):
        return cls(AutoTokenizer.from_pretrained(folder))
'''


def save_deepseek_v3(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """DeepSeek-V3 in bfloat16."""
    config = DEEPSEEK_V3 | changes
    return _save(folder, config, _tensors(config, seed))


def kimi_config(*, packed: bool, rope_factor: float = 4.0, **changes: Any) -> dict[str, Any]:
    """Kimi-K2.5's config.json; `changes` of its text model's."""
    original = 4096 if rope_factor == 64.0 else 2048
    yarn = {**_YARN, "beta_fast": 1.0, "beta_slow": 1.0, "factor": rope_factor}
    text = DEEPSEEK_V3 | {"rope_theta": 50000.0, "rms_norm_eps": 1e-05, "routed_scaling_factor": 2.827}
    text |= {"rope_scaling": yarn | {"original_max_position_embeddings": original}, **changes}
    code = {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}
    text |= {"model_type": "kimi_k2", "auto_map": code} | ({"quantization_config": _INT4} if packed else {})
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
        "bos_token_id": text["bos_token_id"],
        "dtype": "bfloat16",
        "eos_token_id": text["eos_token_id"],
        "ignore_index": -100,
        "media_placeholder_token_id": 258,
        "model_type": "kimi_k25",
        "pad_token_id": 258,
        "text_config": text,
        "tie_word_embeddings": False,
        "use_unified_vision_chunk": True,
        "vision_config": _VISION | {"text_hidden_size": text["hidden_size"]},
    }


def save_kimi_k25(folder: Path, seed: int = 0, *, packed: bool = True, servable: bool = False, **changes: Any) -> Path:
    """Kimi-K2.5's text model in its wrapper; `packed`: INT4 experts, as published; else its twin in bfloat16.

    Vision weights are left out: no engine needs them to read text. `servable`: with an image processor that reads no
    images, in place of Kimi's own code (SGLang loads one with the target; `--trust-remote-code`).
    """
    config = kimi_config(packed=packed, **changes)
    tensors = _tensors({**config["text_config"], "model_type": "deepseek_v3"}, seed)
    for name in [name for name in tensors if ".mlp.experts." in name]:
        ints, scales = _quantised(tensors.pop(name).float())
        if packed:
            shape = torch.tensor(ints.shape, dtype=torch.int32)
            stem = name.removesuffix(".weight")
            tensors |= {f"{stem}.weight_packed": _packed(ints), f"{stem}.weight_scale": scales.to(torch.bfloat16)}
            tensors[f"{stem}.weight_shape"] = shape
        else:
            tensors[name] = (ints * scales.repeat_interleave(32, 1)).to(torch.bfloat16)
    if servable:
        del config["auto_map"], config["text_config"]["auto_map"]
        folder.mkdir(parents=True, exist_ok=True)
        about = {"auto_map": {"AutoProcessor": "kimi_k25_processor.KimiK25Processor"}}
        (folder / "processor_config.json").write_text(json.dumps(about))
        (folder / "kimi_k25_processor.py").write_text(_PROCESSOR)
    return _save(folder, config, {f"language_model.{name}": tensor for name, tensor in tensors.items()})


def make_tokenizer_code(folder: Path) -> None:
    """The folder's tokenizer becomes code, as Kimi's is; template and special tokens stay data."""
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    (folder / "tokenizer.json").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": {str(token.pop("id")): token for token in added},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "tokenization_kimi.py").write_text("raise SystemExit('this code must not run')\n")
    (folder / "tiktoken.model").write_bytes(b"AA== 0\n")


def _tensors(config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """Of the text model, named as published; wide enough that states of neighbouring layers differ.

    The routing's bias decides which experts are taken, two others in each layer. Where scores decide, rounding does:
    a third of the positions go through other experts in bfloat16 than in float32, whoever computes them.
    """
    torch.manual_seed(seed)
    options = {name: value for name, value in config.items() if name not in ("model_type", "auto_map")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("deepseek_v3", **options))
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.ndim > 1:
            tensor = torch.randn_like(tensor) * (_GAIN / tensor.shape[-1] ** 0.5)
        elif name.endswith("e_score_correction_bias"):
            layer = int(name.split(".")[2])
            tensor = 2.0 * torch.isin(torch.arange(len(tensor)), torch.tensor([layer, layer + 1]) % len(tensor))
        if name.endswith("experts.gate_up_proj"):
            stem, half = name.removesuffix("gate_up_proj"), tensor.shape[1] // 2
            found |= {f"{stem}{i}.gate_proj.weight": e[:half] for i, e in enumerate(tensor)}
            found |= {f"{stem}{i}.up_proj.weight": e[half:] for i, e in enumerate(tensor)}
        elif name.endswith("experts.down_proj"):
            found |= {f"{name.removesuffix('down_proj')}{i}.down_proj.weight": e for i, e in enumerate(tensor)}
        else:
            found[name] = tensor
    keeps = "e_score_correction_bias"  # stays float32 in published checkpoints
    return {n: t.float() if n.endswith(keeps) else t.to(torch.bfloat16).contiguous() for n, t in found.items()}


def _quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers -8..7 [out, in] and scales [out, in / 32]."""
    groups = weight.unflatten(1, (-1, 32))
    scales = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(-1) / 7)))
    ints = torch.clamp(torch.round(groups / scales[..., None]), -8, 7).flatten(1)
    return ints, scales


def _packed(ints: Tensor) -> Tensor:
    """Eight numbers, + 8 each, in one int32 [out, in / 8], lowest bits first."""
    nibbles = (ints + 8).to(torch.int64).unflatten(1, (-1, 8))
    words = (nibbles << (4 * torch.arange(8))).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    ends = {"eos_token_id": config["eos_token_id"], "bos_token_id": config["bos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    byte_tokenizer().save_pretrained(folder)
    return folder
