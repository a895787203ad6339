import dataclasses

import pytest
import torch

from eyas.contract.spec.layer_ids import default_aux_boundaries
from eyas.contract.spec.target_spec import TargetSpec
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.train.preflight.draft_spec import TargetShapeUnknown, draft_spec_for
from eyas.train.preflight.starting_draft import initialise
from tiny_target import tiny_target

TARGET = TargetSpec(
    where="t",
    architectures=("LlamaForCausalLM",),
    model_type="llama",
    text_model_type="llama",
    hidden_size=32,
    num_layers=30,
    vocab_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    rms_norm_eps=1e-5,
    max_position_embeddings=256,
)


@pytest.mark.parametrize(
    ("layers", "boundaries"), [(30, (2, 15, 27)), (32, (2, 16, 29)), (4, (1, 2, 3)), (3, (1, 2, 3))]
)
def test_boundaries_are_the_engines_default_and_increase_even_in_shallow_targets(layers, boundaries):
    assert default_aux_boundaries(layers) == boundaries


def test_a_new_draft_has_the_targets_shape_and_its_embedding():
    spec = draft_spec_for(TARGET, vocab_size=64, draft_vocab_size=16, trained_length=99)
    assert (spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (32, 4, 2, 8)
    assert (spec.embedding, spec.head, spec.aux_boundaries, spec.trained_length) == ("target", "own", (2, 15, 27), 99)
    assert spec.rms_norm_eps == 1e-5


def test_sizes_that_the_config_leaves_out_are_named():
    vague = dataclasses.replace(TARGET, head_dim=None, intermediate_size=None)
    with pytest.raises(TargetShapeUnknown, match="does not give head_dim, intermediate_size"):
        draft_spec_for(vague, vocab_size=64, draft_vocab_size=16, trained_length=99)


def test_the_head_starts_as_the_targets_own_rows_at_the_spread_of_the_other_weights():
    target = Target(tiny_target("llama"))
    spec = draft_spec_for(TARGET, vocab_size=64, draft_vocab_size=16, trained_length=9)
    draft = Eagle3Draft(spec, target_embedding=target.parts.embedding)
    draft.set_vocab_map(torch.arange(0, 64, 4))
    initialise(draft, target.frozen, seed=1)

    head, rows = draft.lm_head.weight.detach(), target.parts.head[::4]
    torch.testing.assert_close(head / head.norm(), rows / rows.norm())
    assert float(head.std()) == pytest.approx(0.02, rel=1e-4)
    assert float(draft.fc.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert bool((draft.norm.weight == 1).all())
