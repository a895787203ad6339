"""Tiny random targets of many architectures, without tokenizers or files."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": MOE,
    "gpt_oss": {**MOE, "sliding_window": 8},
    "deepseek_v3": {
        **MOE,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
    },
    "glm4_moe": {
        **MOE,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "partial_rotary_factor": 0.5,
    },
    # muP: embedding, residuals and head are scaled by sizes.
    "minicpm3": {
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
        "dim_model_base": 16,
        "scale_emb": 12,
        "scale_depth": 1.4,
    },
    "gemma2": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8},
    "gemma4_text": {"sliding_window": 8, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8},
    "llama4_text": {**MOE, "intermediate_size_mlp": 48, "attention_chunk_size": 8},
    "gemma": {},
    "glm4": {"partial_rotary_factor": 0.5},
    "phi3": {},
    "mixtral": MOE,
    "granite": {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.25},
    # Linear attention beside full attention: its state cannot be cut back.
    "qwen3_next": {
        **MOE,
        "shared_expert_intermediate_size": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
}
# What eyas refuses by name.
REFUSED: dict[str, dict[str, Any]] = {"minimax": MOE}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": 28,
}
# Wrappers: kind -> what it holds beside the text model; TEXT_OF names the text model where that is not KIND_text, and
# TEXTS has those that transformers knows inside a wrapper only.
TEXT_OF = {"kimi_k25": "deepseek_v3"}
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
TEXTS: dict[str, dict[str, Any]] = {"qwen3_vl_text": {"rope_parameters": _MROPE}}
NESTED: dict[str, dict[str, Any]] = {
    "kimi_k25": {"vision_config": {**VISION, "patch_size": 14}, "tie_word_embeddings": False},
    "gemma3": {"vision_config": {**VISION, "patch_size": 14}, "mm_tokens_per_image": 4},
    "llama4": {"vision_config": {**VISION, "patch_size": 14, "vision_output_dim": 16}},
    # Deepstack: the vision tower's states are added to those of the first layers, for images only.
    "qwen3_vl": {
        "vision_config": {
            "depth": 4,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "patch_size": 14,
            "out_hidden_size": 32,
            "deepstack_visual_indexes": [0, 1, 2],
            "num_position_embeddings": 16,
        }
    },
}


def tiny_target(kind: str = "llama", seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model of one architecture; weights wide enough that argmaxes differ between positions."""
    torch.manual_seed(seed)
    if kind in NESTED:
        text_kind = TEXT_OF.get(kind, f"{kind}_text")
        text = {**SMALL, **(CONFIGS | TEXTS)[text_kind], **changes, "model_type": text_kind}
        config = AutoConfig.for_model(kind, text_config=text, **NESTED[kind])
        model = AutoModelForImageTextToText.from_config(config)
    else:
        config = AutoConfig.for_model(kind, **{**SMALL, **(CONFIGS | REFUSED)[kind], **changes})
        model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2)
    return model.float().eval()
