"""Targets outside the fast path give the same text through transformers, with a draft or without."""

import pytest
import torch

from eyas.engine.eagle_draft import FusedDraft
from eyas.engine.engine import Engine, Limits
from eyas.engine.transformers_target import TransformersTarget
from eyas.models.target import Target
from tiny_draft import tiny_draft
from tiny_target import tiny_target


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "granite", "cohere", "deepseek_v3"])
def test_speculative_text_is_transformers_greedy_text(kind: str):
    model = tiny_target(kind)
    draft = tiny_draft(target_hidden_size=32, vocab_size=64, aux_boundaries=(1, 2, 4)).eval()
    prompt, limits = [3, 17, 5, 60], Limits(max_new_tokens=12)
    engine = Engine(TransformersTarget(Target(model)), FusedDraft(draft, (1, 2, 4)))

    text = engine.generate(prompt, limits, num_draft_tokens=3)

    ids = torch.tensor([prompt])
    for _ in range(12):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    assert text.ids == ids[0, 4:].tolist()
    assert text.acceptance.rounds > 0
