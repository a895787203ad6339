"""Multi-head latent attention of a draft (`Eagle3DeepseekV2ForCausalLM`): queries and keys through low-rank latents.

Shapes: B sequences, T positions, H draft hidden size, N heads, dn and dr widths of a head's unrotated and rotated part,
dv width of a value. One rotated key part is shared by all heads. Keys and values are cached expanded: this is the
reference, not the memory-saving form.
"""

import math

import torch
from torch import Tensor, nn

from eyas.contract.spec.draft_spec import DraftSpec
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
