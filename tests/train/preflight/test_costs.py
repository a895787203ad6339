import dataclasses

import pytest

from eyas.contract.spec.target_size import TargetSize
from eyas.models.draft import Eagle3Draft
from eyas.train.config import TrainConfig
from eyas.train.preflight.costs import estimate_costs
from tiny_draft import SWITCHES, tiny_draft, tiny_spec

SPEC = tiny_spec(embedding="target")
GIVEN = {"target": TargetSize(num_params=5000, num_active=5000, num_bytes=20_000), "longest": 100}


def number_of(draft: Eagle3Draft) -> int:
    return sum(p.numel() for p in draft.parameters())


@pytest.mark.parametrize("switch", SWITCHES)
def test_the_trained_parameters_are_those_of_the_draft_whatever_its_shape(switch):
    draft = tiny_draft(**SWITCHES[switch])
    costs = estimate_costs(draft.spec, TrainConfig(), **GIVEN)
    assert (costs.num_trained, costs.draft_bytes) == (number_of(draft), 2 * number_of(draft))


def test_what_is_frozen_is_kept_but_not_trained():
    draft = tiny_draft()
    costs = estimate_costs(draft.spec, TrainConfig(freeze_head=True, freeze_embedding=True), **GIVEN)
    assert draft.lm_head is not None
    assert draft.embed_tokens is not None
    assert costs.num_trained == number_of(draft) - draft.lm_head.weight.numel() - draft.embed_tokens.weight.numel()
    assert costs.draft_bytes == 2 * number_of(draft)


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
    size = TargetSize(num_params=134_515_008, num_active=106_204_000, num_bytes=0)
    costs = estimate_costs(smollm2, TrainConfig(), target=size, longest=500)
    assert 0.5e9 < costs.flop_per_token < 0.9e9


def test_a_step_of_few_tokens_needs_no_memory_for_a_whole_micro_batch():
    few, many = (estimate_costs(SPEC, TrainConfig(), **GIVEN, batch_tokens=tokens) for tokens in (256, 1 << 20))
    assert "draft activations of 7 steps x 256 tokens" in few.memory_bytes
    assert "draft activations of 7 steps x 4096 tokens" in many.memory_bytes


def test_head_and_teacher_cost_nothing_where_nothing_is_supervised():
    whole, half, none = (estimate_costs(SPEC, TrainConfig(), **GIVEN, supervised=s).flop_per_token for s in (1, 0.5, 0))
    head = 6 * 7 * SPEC.draft_vocab_size * SPEC.hidden_size + 2 * SPEC.vocab_size * SPEC.target_hidden_size
    assert whole - none == head
    assert half - none == head / 2
