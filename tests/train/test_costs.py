import dataclasses

import torch

from eyas.models.draft import Eagle3Draft
from eyas.train.config import TrainConfig
from eyas.train.costs import estimate_costs
from tiny_draft import tiny_spec

SPEC = tiny_spec(embedding="target")
GIVEN = {"target_params": 5000, "target_bytes": 20_000, "longest": 100}


def test_the_trained_parameters_are_those_of_the_draft_but_for_its_norms():
    draft = Eagle3Draft(SPEC, target_embedding=torch.zeros(SPEC.vocab_size, SPEC.hidden_size))
    matrices = sum(p.numel() for p in draft.parameters() if p.ndim > 1)
    assert estimate_costs(SPEC, TrainConfig(), **GIVEN).num_trained == matrices


def test_memory_grows_with_the_micro_batch_and_names_its_largest_part_first():
    small, large = (estimate_costs(SPEC, TrainConfig(micro_batch_tokens=tokens), **GIVEN) for tokens in (1000, 4000))
    assert large.peak_bytes > 2 * small.peak_bytes
    assert next(iter(large.memory_bytes)).startswith("draft activations")
    assert list(large.memory_bytes.values()) == sorted(large.memory_bytes.values(), reverse=True)


def test_smollm2_costs_about_what_was_measured_per_token():
    smollm2 = dataclasses.replace(
        SPEC,
        hidden_size=576,
        target_hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49152,
        draft_vocab_size=8192,
    )
    costs = estimate_costs(smollm2, TrainConfig(), target_params=134_515_008, target_bytes=0, longest=500)
    assert 0.5e9 < costs.flop_per_token < 0.9e9
