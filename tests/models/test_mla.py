import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from eyas.contract.spec.draft_spec import Mla, Rope
from eyas.models.attention import ttt_attention
from tiny_draft import tiny_draft

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


@pytest.mark.parametrize("scaling", [None, YARN])
@pytest.mark.parametrize("q_lora_rank", [12, None])
@torch.no_grad()
def test_latent_attention_is_that_of_deepseek_v3(scaling, q_lora_rank):
    """Layer 1 of a draft reads H like an ordinary layer, so transformers' own attention can stand beside it."""
    draft = tiny_draft(
        num_layers=2,
        draft_class="mla",
        mla=Mla(q_lora_rank=q_lora_rank, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7),
        rope=Rope(theta=500.0, interleaved=True, scaling=scaling),
        max_position_embeddings=32,
    )
    config = DeepseekV3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=10,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=7,
        rope_interleave=True,
        max_position_embeddings=32,
        rope_parameters={**(scaling or {"rope_type": "default"}), "rope_theta": 500.0},
        attn_implementation="eager",
    )
    ours, theirs = draft.layers[1].self_attn, DeepseekV3Attention(config, layer_idx=0)
    theirs.load_state_dict(ours.state_dict())
    x, positions = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0)), torch.arange(9)[None]
    mask = torch.full((9, 9), float("-inf")).triu(1)[None, None]

    def attend(layer, query, key, value):
        return ttt_attention(query, [key], [value], scale=ours.scale)

    out = ours(x, positions, attend)

    cos_sin = DeepseekV3RotaryEmbedding(config)(x, positions)
    expected, _ = theirs(x, position_embeddings=cos_sin, attention_mask=mask)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=2e-5)
