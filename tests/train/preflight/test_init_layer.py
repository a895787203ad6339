"""A draft that starts from a layer of its target."""

import pytest
import torch

from eyas.models.draft import Eagle3Draft
from eyas.train.config import TrainConfigInvalid
from eyas.train.preflight.starting_draft import start_from_layers
from tiny_draft import tiny_spec
from tiny_rows import tiny


def test_the_layer_is_the_targets_and_the_state_before_it_passes_through():
    draft, target = tiny()  # boundaries 1, 2, 3
    start_from_layers(draft, [dict(target.parts.layers[2].named_parameters())], 2)
    mine, theirs = draft.layers[0], target.parts.layers[2]

    assert torch.equal(mine.mlp.down_proj.weight, theirs.mlp.down_proj.weight)
    assert torch.equal(mine.hidden_norm.weight, theirs.input_layernorm.weight)
    state = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    read = mine.self_attn.q_proj(torch.cat((state, state), 1))
    torch.testing.assert_close(read, theirs.self_attn.q_proj(state) * 2**0.5)
    aux = torch.randn(5, 96, generator=torch.Generator().manual_seed(1))
    others = aux.clone()
    others[:, 32:64] = 0
    torch.testing.assert_close(draft.fc(aux) - draft.fc(others), aux[:, 32:64])


def test_a_draft_of_another_shape_is_refused_by_the_tensor_that_differs():
    _, target = tiny()
    spec = tiny_spec(
        target_hidden_size=32, vocab_size=64, draft_vocab_size=24, embedding="target", intermediate_size=40,
        aux_boundaries=(1, 2, 3),
    )  # fmt: skip
    with pytest.raises(TrainConfigInvalid, match=r"mlp\.gate_proj\.weight is \(40, 32\) in the draft"):
        start_from_layers(
            Eagle3Draft(spec, target_embedding=target.parts.embedding),
            [dict(target.parts.layers[1].named_parameters())],
            1,
        )
