"""One decoder layer of a draft: norms, attention (GQA here, MLA in `mla`), SwiGLU. Layer 0 alone takes 2H.

Shapes: B sequences, T positions, H draft hidden size, N query heads, M key/value heads, d head width.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.errors import EyasError
from eyas.models.attention import Attend
from eyas.models.mla import MlaAttention
from eyas.models.rope import Rotary

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
