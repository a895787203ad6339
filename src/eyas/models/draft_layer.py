"""One decoder layer of a draft: norms, attention (GQA or MLA), SwiGLU. Layer 0 alone takes 2H.

Shapes: B sequences, T positions, H draft hidden size, N query heads, M key/value heads, d head width; of MLA, dn and dr
widths of a head's unrotated and rotated part, dv width of a value.

Multi-head latent attention (`Eagle3DeepseekV2ForCausalLM`) takes queries and keys through low-rank latents; one rotated
key part is shared by all heads. Keys and values are cached expanded: this is the reference, not the memory-saving form.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.errors import EyasError
from eyas.models.attention import Attend
from eyas.models.rope import Rotary


class MlaAttention(nn.Module):
    """MLA of layer `index`; layer 0 reads [embedding, state], so its input is 2H wide.

    Source: vLLM deepseek_v2.py `DeepseekV2MLAAttention` as its deepseek_eagle3.py uses it; norms with the config's eps.
    """

    def __init__(self, spec: DraftSpec, index: int) -> None:
        super().__init__()
        assert spec.mla is not None, "an MLA draft has MLA sizes"
        self.index, self.mla, self.num_heads = index, spec.mla, spec.num_heads
        mla, width = spec.mla, 2 * spec.hidden_size if index == 0 else spec.hidden_size
        query_width = spec.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        if mla.q_lora_rank is None:
            self.q_proj = nn.Linear(width, query_width, bias=False)
        else:
            self.q_a_proj = nn.Linear(width, mla.q_lora_rank, bias=False)
            self.q_a_layernorm = nn.RMSNorm(mla.q_lora_rank, eps=spec.rms_norm_eps)
            self.q_b_proj = nn.Linear(mla.q_lora_rank, query_width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, mla.kv_lora_rank + mla.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(mla.kv_lora_rank, eps=spec.rms_norm_eps)
        expanded = spec.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        self.kv_b_proj = nn.Linear(mla.kv_lora_rank, expanded, bias=False)
        self.o_proj = nn.Linear(spec.num_heads * mla.v_head_dim, spec.hidden_size, bias=False)
        self.rotary = Rotary(spec.rope, mla.qk_rope_head_dim, spec.max_position_embeddings)
        self.scale = softmax_scale(spec)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[B, T, H] from the normed input `x` [B, T, 2H or H]; `attend` knows which keys are visible."""
        nope, rope = self.mla.qk_nope_head_dim, self.mla.qk_rope_head_dim
        query = self.q_proj(x) if self.mla.q_lora_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        query_nope, query_rope = torch.split(self._heads(query), [nope, rope], -1)
        latent, key_rope = torch.split(self.kv_a_proj_with_mqa(x), [self.mla.kv_lora_rank, rope], -1)
        expanded = self._heads(self.kv_b_proj(self.kv_a_layernorm(latent)))
        key_nope, value = torch.split(expanded, [nope, self.mla.v_head_dim], -1)
        cos, sin = self.rotary.angles(positions, x.dtype)
        query_rope = self.rotary.turn(query_rope, cos, sin)
        key_rope = self.rotary.turn(key_rope[:, None], cos, sin).expand(-1, self.num_heads, -1, -1)
        query, key = torch.cat((query_nope, query_rope), -1), torch.cat((key_nope, key_rope), -1)
        out = attend(self.index, query, key, value)
        projected: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


def softmax_scale(spec: DraftSpec) -> float:
    """1 / sqrt(head width), times the square of YaRN's mscale where the config gives `mscale_all_dim`."""
    assert spec.mla is not None, "an MLA draft has MLA sizes"
    scale = 1.0 / math.sqrt(spec.mla.qk_nope_head_dim + spec.mla.qk_rope_head_dim)
    scaling = spec.rope.scaling or {}
    factor, all_dim = float(scaling.get("factor", 1.0)), float(scaling.get("mscale_all_dim") or 0.0)
    if factor > 1 and all_dim:
        scale *= (0.1 * all_dim * math.log(factor) + 1.0) ** 2
    return scale


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class ActivationUnknown(EyasError):
    """The draft has an activation that eyas does not compute."""

    code = "activation-unknown"


class DraftAttention(nn.Module):
    """Grouped-query attention of layer `index`; layer 0 reads [embedding, state], so its input is 2H wide."""

    def __init__(self, spec: DraftSpec, index: int) -> None:
        super().__init__()
        self.index, self.head_dim = index, spec.head_dim
        width = 2 * spec.hidden_size if index == 0 else spec.hidden_size
        has_bias, out_bias = spec.attention_bias, f"layers.{index}.self_attn.o_proj.bias" in spec.tensors
        self.q_proj = nn.Linear(width, spec.num_heads * spec.head_dim, bias=has_bias)
        self.k_proj = nn.Linear(width, spec.num_kv_heads * spec.head_dim, bias=has_bias)
        self.v_proj = nn.Linear(width, spec.num_kv_heads * spec.head_dim, bias=has_bias)
        self.o_proj = nn.Linear(spec.num_heads * spec.head_dim, spec.hidden_size, bias=out_bias)
        self.q_norm = nn.RMSNorm(spec.head_dim, eps=spec.rms_norm_eps) if spec.qk_norm else None
        self.k_norm = nn.RMSNorm(spec.head_dim, eps=spec.rms_norm_eps) if spec.qk_norm else None
        self.rotary = Rotary(spec.rope, spec.head_dim, spec.max_position_embeddings)
        self.scale = spec.head_dim**-0.5

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[B, T, H] from the normed input `x` [B, T, 2H or H]; `attend` knows which keys are visible."""
        query, key, value = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        cos, sin = self.rotary.angles(positions, query.dtype)
        query, key = self.rotary.turn(query, cos, sin), self.rotary.turn(key, cos, sin)
        out = attend(self.index, query, key, value)
        projected: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class DraftMlp(nn.Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        if spec.activation not in _ACTIVATIONS:
            raise ActivationUnknown(
                f"activation '{spec.activation}' is not known",
                "config.json: hidden_act",
                f"eyas computes {sorted(_ACTIVATIONS)}",
                "correct the key, or report the draft",
            )
        wide, has_bias = spec.intermediate_size, spec.mlp_bias
        self.gate_proj = nn.Linear(spec.hidden_size, wide, bias=has_bias)
        self.up_proj = nn.Linear(spec.hidden_size, wide, bias=has_bias)
        self.down_proj = nn.Linear(wide, spec.hidden_size, bias=has_bias)
        self.activation = _ACTIVATIONS[spec.activation]

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, H] -> [B, T, H]."""
        out: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return out


class DraftLayer(nn.Module):
    """Layer `index` of the draft.

    Source: SafeAILab/EAGLE eagle/model/cnets.py (layer 0); vLLM llama_eagle3.py (layers above, residual switch).
    """

    def __init__(self, spec: DraftSpec, index: int) -> None:
        super().__init__()
        self.is_first, self.has_normed_residual = index == 0, spec.residual == "post-norm"

        def norm() -> nn.RMSNorm:
            return nn.RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)

        self.input_layernorm = norm()
        self.hidden_norm = norm() if self.is_first else None
        self.self_attn = MlaAttention(spec, index) if spec.draft_class == "mla" else DraftAttention(spec, index)
        self.post_attention_layernorm = norm()
        self.mlp = DraftMlp(spec)

    def forward(self, embedding: Tensor, state: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The state after this layer, [B, T, H].

        Args:
            embedding: [B, T, H] of the token after each position; only layer 0 reads it.
            state: [B, T, H]; for layer 0 the fused target state or the draft's own last state.
            positions: [B or 1, T] RoPE positions.
            attend: computes the attention once q, k, v are there.
        """
        if self.hidden_norm is not None:
            normed = self.hidden_norm(state)
            residual = normed if self.has_normed_residual else state
            x = torch.cat((self.input_layernorm(embedding), normed), -1)
        else:
            residual, x = state, self.input_layernorm(state)
        state = residual + self.self_attn(x, positions, attend)
        after: Tensor = state + self.mlp(self.post_attention_layernorm(state))
        return after


def window_of(spec: DraftSpec, index: int) -> int | None:
    """Positions that layer `index` sees, itself included; None for all."""
    slides = not spec.layer_types or spec.layer_types[index] == "sliding_attention"
    return spec.sliding_window if slides else None
