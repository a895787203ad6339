"""The final norm of a target, by its kind of text model; a kind that is not listed is refused, never guessed.

Three functions share a name and a weight of the same shape: x / rms(x) * w, the same with 1 + w (Gemma and its kin),
and a layer norm. A draft whose last states were normed by the wrong one has another teacher.
Listed after transformers 5.24's modules; `tests/models/target/test_frozen_parts.py` compares.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.contract.spec.target_parts import TargetPartMissing
from eyas.contract.spec.target_spec import TargetSpec

ONE_PLUS = frozenset((
    "gemma", "gemma2", "gemma3_text", "minimax_m3_vl_text", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
    "vaultgemma",
))  # fmt: skip
LAYER = frozenset((
    "bloom", "codegen", "cohere", "cohere2", "cohere2_moe", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gptj",
    "jais2", "mpt", "opt", "persimmon", "phi", "phimoe", "stablelm", "starcoder2",
))  # fmt: skip
RMS = frozenset((
    "afmoe", "apertus", "apertus1p5_text", "arcee", "aria_text", "axk1", "axk2", "bamba", "bitnet", "cwm",
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "diffllama", "doge", "dots1", "emu3_text_model", "ernie4_5",
    "ernie4_5_moe", "exaone", "exaone4", "exaone_moe", "falcon_h1", "falcon_mamba", "flex_olmo", "gemma3n_text",
    "gemma4_text", "gemma4_unified_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v_moe_text", "glm4v_text",
    "glm_moe_dsa", "gpt_oss", "granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoehybrid",
    "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "hyperclovax", "internlm3", "iquestcoder",
    "jamba", "jetmoe", "kimi_linear", "lfm2", "lfm2_moe", "llama", "llama4_text", "mamba", "mamba2", "mellum",
    "mimo_v2_flash", "minicpm3", "minimax", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral",
    "mllama_text_model", "moshi", "nemotron_h", "olmo2", "olmo3", "olmoe", "phi3", "qwen2", "qwen2_5_vl_text",
    "qwen2_moe", "qwen2_vl_text", "qwen3", "qwen3_moe", "qwen3_omni_moe_text", "qwen3_vl_moe_text", "qwen3_vl_text",
    "seed_oss", "smollm3", "solar_open", "youtu", "zamba", "zamba2", "zaya",
))  # fmt: skip
_EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
_LAYER_EPS = 1e-5  # torch's own, which OPT relies on


def final_norm(spec: TargetSpec, config: Any, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The norm as a function [..., Ht] -> [..., Ht], computed as transformers does.

    Args:
        config: transformers' config of the text model.
        weight, bias: [Ht].

    Raises:
        TargetPartMissing: the kind of text model, or its epsilon, is not known.
    """
    kind = str(getattr(config, "model_type", spec.text_model_type))
    eps = next((value for name in _EPS if isinstance(value := getattr(config, name, None), float)), None)
    if kind in LAYER:
        return lambda x: F.layer_norm(x, weight.shape, weight, bias, eps or _LAYER_EPS)
    if kind not in ONE_PLUS | RMS or bias is not None or eps is None:
        raise TargetPartMissing(
            f"the final norm of a {kind} is not known",
            spec.where,
            "eyas knows it for the architectures that it lists; a wrong norm would give every draft a wrong teacher",
            f"report the model class {kind}, or train with the target in the process: leave --hidden-states out",
        )
    if kind in ONE_PLUS:
        scale = 1.0 + weight.float()
        return lambda x: (_over_rms(x, eps) * scale).to(x.dtype)
    return lambda x: weight * _over_rms(x, eps).to(x.dtype)


def _over_rms(x: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
