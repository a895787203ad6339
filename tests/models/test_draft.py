import pytest
import torch

from eyas.models.draft import Eagle3Draft
from tiny_draft import SWITCHES, tiny_draft, tiny_spec, tiny_text


def incremental(draft: Eagle3Draft, ids: torch.Tensor, aux: torch.Tensor, start: int, num_steps: int):
    """States and logits of `num_steps` drafts after index `start`, one step at a time, reading `ids` as drafted."""
    cache, g = draft.new_cache(), draft.fuse(aux)
    positions = torch.arange(ids.shape[1])[None]
    state, logits = draft.step(ids[:, 1 : start + 2], g[:, : start + 1], positions[:, : start + 1], cache)
    out = [(state[:, -1], logits[:, -1])]
    for j in range(1, num_steps):
        token = ids[:, start + 1 + j, None]
        state, logits = draft.step(token, out[-1][0][:, None], torch.tensor([[start + j]]), cache)
        out.append((state[:, -1], logits[:, -1]))
    return out


@pytest.mark.parametrize("backend", ["eager", "auto"])
@pytest.mark.parametrize("switch", SWITCHES)
@torch.no_grad()
def test_training_time_test_is_incremental_drafting_at_every_step_and_position(switch, backend):
    draft, num_steps = tiny_draft(**SWITCHES[switch]), 5
    ids, aux = tiny_text()

    unrolled = list(draft.ttt_forward(ids, aux, num_steps, backend=backend))

    worst = 0.0
    for start in range(ids.shape[1] - num_steps):
        for j, (state, logits) in enumerate(incremental(draft, ids, aux, start, num_steps)):
            worst = max(worst, (unrolled[j][0][:, start] - state).abs().max().item())
            worst = max(worst, (unrolled[j][1][:, start] - logits).abs().max().item())
    assert worst < 2e-5


@pytest.mark.parametrize(
    "switch", [s for s in SWITCHES if s not in ("eagle-3", "all heads own keys") and "latent" not in s]
)
@torch.no_grad()
def test_each_switch_changes_the_function(switch):
    if SWITCHES[switch].get("draft_vocab_size"):
        pytest.skip("another output vocabulary: nothing to compare")
    plain = tiny_draft()
    switched = tiny_draft(**SWITCHES[switch])
    switched.load_state_dict(plain.state_dict(), strict=False)
    ids, aux = tiny_text()

    difference = [
        (a[1] - b[1])[:, :9].abs().max().item()
        for a, b in zip(plain.ttt_forward(ids, aux, 3), switched.ttt_forward(ids, aux, 3), strict=True)
    ]

    assert max(difference) > 1e-3


@torch.no_grad()
def test_post_norm_feedback_differs_from_the_second_step_on_only():
    plain, switched = tiny_draft(), tiny_draft(feedback="post-norm")
    ids, aux = tiny_text()

    first, second = (
        (a[1] - b[1])[:, :9].abs().max().item()
        for a, b in zip(plain.ttt_forward(ids, aux, 2), switched.ttt_forward(ids, aux, 2), strict=True)
    )

    assert first == 0.0
    assert second > 1e-2


@torch.no_grad()
def test_padding_on_the_right_reaches_no_real_position():
    draft = tiny_draft()
    ids, aux = tiny_text()
    padded_ids, padded_aux = torch.nn.functional.pad(ids, (0, 6)), torch.nn.functional.pad(aux, (0, 0, 0, 6), value=9.0)

    for j, ((_, short), (_, long)) in enumerate(
        zip(draft.ttt_forward(ids, aux, 4), draft.ttt_forward(padded_ids, padded_aux, 4), strict=True)
    ):
        valid = ids.shape[1] - 1 - j
        torch.testing.assert_close(short[:, :valid], long[:, :valid], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_cache_cut_back_and_rebuilt_from_target_states_equals_a_fresh_one():
    draft = tiny_draft(num_layers=2)
    ids, aux = tiny_text(1)
    g, positions = draft.fuse(aux), torch.arange(ids.shape[1])[None]
    cache = draft.new_cache()
    state, _ = draft.step(ids[:, 1:6], g[:, :5], positions[:, :5], cache)
    for j in range(1, 4):  # drafts from the draft's own states: to be forgotten
        state, _ = draft.step(ids[:, 5 + j, None], state[:, -1:], torch.tensor([[4 + j]]), cache)
    cache.truncate(5)

    _, rebuilt = draft.step(ids[:, 6:9], g[:, 5:8], positions[:, 5:8], cache)

    _, fresh = draft.step(ids[:, 1:9], g[:, :8], positions[:, :8], draft.new_cache())
    torch.testing.assert_close(rebuilt, fresh[:, 5:], atol=1e-5, rtol=1e-5)


def test_draft_ids_go_to_target_ids_by_offset_and_back():
    draft = tiny_draft()
    offered = torch.arange(draft.spec.draft_vocab_size) + draft.d2t

    back, is_offered = draft.to_draft_ids(torch.arange(draft.spec.vocab_size))

    assert torch.equal(draft.to_target_ids(torch.arange(24)), offered)
    assert torch.equal(is_offered, draft.t2d)
    assert torch.equal(back[offered], torch.arange(24))


def test_a_shared_embedding_is_no_parameter_of_the_draft():
    shared = torch.randn(40, 32)
    draft = Eagle3Draft(tiny_spec(embedding="target"), target_embedding=shared)

    draft.to(torch.bfloat16)

    assert draft.embedding_weight is shared
    assert shared.dtype == torch.float32
    assert not any("embed" in name for name in draft.state_dict())
    assert draft.embed(torch.tensor([3])).dtype == torch.bfloat16


def test_casting_the_draft_leaves_the_rope_angles_exact():
    draft = tiny_draft()
    before = draft.layers[0].self_attn.rotary.angles(torch.tensor([[700]]), torch.float32)

    draft.to(torch.bfloat16)

    after = draft.layers[0].self_attn.rotary.angles(torch.tensor([[700]]), torch.float32)
    assert torch.equal(before[0], after[0])
