"""The engine's fast draft computes what `Eagle3Draft.step` computes, with every switch."""

from typing import Any

import pytest
import torch

from eyas.engine.eagle_draft import FusedDraft, ReferenceDraft, why_not_fused
from eyas.engine.llama.native import NativeKernels
from tiny_draft import tiny_draft, tiny_text

SWITCHES: dict[str, dict[str, Any]] = {
    "EAGLE-3": {},
    "normed residual": {"residual": "post-norm"},
    "one norm over the aux states": {"aux_norm": "over-concat"},
    "a norm per aux state": {"aux_norm": "per-state"},
    "normed feedback": {"feedback": "post-norm"},
    "q and k norms": {"qk_norm": True},
    "biases": {"attention_bias": True},
    "two layers": {"num_layers": 2},
    "a window": {"sliding_window": 4},
    "a window in one of two layers": {
        "sliding_window": 4,
        "num_layers": 2,
        "layer_types": ("full_attention", "sliding_attention"),
    },
    "the target's embedding": {"embedding": "target"},
    "the target's head": {"head": "target", "draft_vocab_size": 40},
    "tied head": {"head": "tied", "draft_vocab_size": 40},
}


@pytest.mark.parametrize("path", ["torch", "native"])
@pytest.mark.parametrize("name", SWITCHES)
def test_fast_offers_are_the_reference_offers_round_after_round(name: str, path: str, kernels: NativeKernels):
    draft = tiny_draft(**SWITCHES[name]).eval()
    assert why_not_fused(draft.spec) is None
    fast = FusedDraft(draft, (1, 2, 3), kernels=kernels if path == "native" else None)
    reference = ReferenceDraft(draft, (1, 2, 3))
    ids, aux = tiny_text(num_rows=1, length=20)
    tokens = ids[0].tolist()

    for runner in (fast, reference):
        runner.start(40)
    position = 0
    for num_read in (11, 1, 3, 4):  # a prompt, then rounds that kept 0, 2 and 3 drafts
        chunk = tokens[position + 1 : position + 1 + num_read], aux[0, position : position + num_read]
        torch.testing.assert_close(fast.read(*chunk), reference.read(*chunk), atol=2e-5, rtol=2e-5)
        for drafted in (5, 31, 7):
            torch.testing.assert_close(fast.step(drafted), reference.step(drafted), atol=2e-5, rtol=2e-5)
        position += num_read


def test_reading_the_truth_does_not_change_the_states_that_were_given():
    draft = tiny_draft().eval()
    runner = FusedDraft(draft, (1, 2, 3))
    runner.start(40)
    ids, aux = tiny_text(num_rows=1, length=8)
    before = aux.clone()

    runner.read(ids[0, 1:6].tolist(), aux[0, :5])

    assert torch.equal(aux, before)


@pytest.mark.parametrize(
    ("changes", "reason"), [({"activation": "gelu"}, "activation"), ({"draft_class": "mla"}, "class")]
)
def test_what_the_fast_draft_cannot_do_is_said(changes: dict[str, Any], reason: str):
    from tiny_draft import tiny_spec

    assert reason in str(why_not_fused(tiny_spec(**changes)))
