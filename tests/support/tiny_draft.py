"""Small random drafts whose every weight, norms included, is far from a neutral value: a wrong switch shows."""

from typing import Any

import torch

from eyas.contract.spec.draft_spec import DraftSpec, Mla, Rope
from eyas.models.draft import Eagle3Draft

VOCAB, DRAFT_VOCAB, TARGET_HIDDEN, NUM_AUX = 40, 24, 16, 3
MLA = {
    "draft_class": "mla",
    "aux_boundaries": (2, 3, 4),
    "rope": Rope(interleaved=True),
    "mla": Mla(q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7),
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 1.0}
SWITCHES = {
    "eagle-3": {},
    "post-norm residual": {"residual": "post-norm"},
    "norm over concat": {"aux_norm": "over-concat"},
    "norm per state": {"aux_norm": "per-state"},
    "post-norm feedback": {"feedback": "post-norm"},
    "q/k norm": {"qk_norm": True},
    "biases": {"attention_bias": True, "mlp_bias": True, "fc_bias": True},
    "two layers": {"num_layers": 2},
    "all heads own keys": {"num_kv_heads": 4},
    "partial rope": {"rope": Rope(partial_rotary_factor=0.5)},
    "interleaved rope": {"rope": Rope(interleaved=True)},
    "llama3 rope": {
        "rope": Rope(
            theta=500.0,
            scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        )
    },
    "yarn rope": {
        "rope": Rope(scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}),
    },
    "latent attention": MLA,
    "latent attention, whole queries": {
        **MLA,
        "mla": Mla(q_lora_rank=None, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7),
    },
    "latent attention, yarn, two layers, norm per state, post-norm feedback": {
        **MLA,
        "rope": Rope(interleaved=True, scaling=YARN),
        "num_layers": 2,
        "aux_norm": "per-state",
        "feedback": "post-norm",
    },
    "full vocabulary": {"draft_vocab_size": 40},
    "sliding window": {"sliding_window": 5},
    "window in one of two layers": {
        "sliding_window": 5,
        "num_layers": 2,
        "layer_types": ("full_attention", "sliding_attention"),
    },
    "head of the target": {"head": "target", "draft_vocab_size": 40, "embedding": "target"},
    "tied head": {"head": "tied", "draft_vocab_size": 40},
}


def tiny_spec(**changes: Any) -> DraftSpec:
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "target_hidden_size": TARGET_HIDDEN,
        "intermediate_size": 48,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "num_aux": NUM_AUX,
        "aux_boundaries": (1, 2, 3),
        "embedding": "own",
    }
    return DraftSpec(**{**sizes, **changes})


def tiny_draft(seed: int = 0, **changes: Any) -> Eagle3Draft:
    generator = torch.Generator().manual_seed(seed)
    spec = tiny_spec(**changes)
    embedding = torch.randn(spec.vocab_size, spec.hidden_size, generator=generator)
    draft = Eagle3Draft(spec, target_embedding=embedding, target_head=embedding.flip(0))
    with torch.no_grad():
        for parameter in draft.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.4 * noise if parameter.ndim == 1 else noise * parameter.shape[-1] ** -0.5)
    if spec.has_vocab_map:
        draft.set_vocab_map(torch.randperm(spec.vocab_size, generator=generator)[: spec.draft_vocab_size].sort().values)
    return draft


def tiny_text(num_rows: int = 2, length: int = 14, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (num_rows, length), generator=generator)
    return ids, torch.randn(num_rows, length, NUM_AUX * TARGET_HIDDEN, generator=generator)
