"""Small random drafts whose every weight, norms included, is far from a neutral value: a wrong switch shows."""

from typing import Any

import torch

from eyas.contract.draft_spec import DraftSpec
from eyas.models.draft import Eagle3Draft

VOCAB, DRAFT_VOCAB, TARGET_HIDDEN, NUM_AUX = 40, 24, 16, 3


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
