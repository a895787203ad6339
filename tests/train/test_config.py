import pytest

from eyas.train.config import TrainConfig, TrainConfigInvalid, resolve


def test_all_problems_are_told_at_once():
    with pytest.raises(TrainConfigInvalid) as caught:
        TrainConfig(steps=1, tokens=1, ttt_steps=0, step_decay=0.0, grad_clip=-1.0, draft_vocab_size=3)
    for part in ("--steps and --tokens", "ttt_steps: 1", "step_decay", "grad_clip", "draft_vocab_size"):
        assert part in caught.value.why


def test_what_was_left_open_is_chosen_and_told():
    resolved = resolve(TrainConfig(tokens=64_000), hidden_size=1152, num_tokens=10_000, longest=2000)
    assert resolved.lr == pytest.approx(5e-4)
    assert resolved.batch_tokens == 1000
    assert [note.split(";")[0] for note in resolved.notes[:2]] == [
        "learning rate 0.0005 (peak), chosen for width 1152",
        "1000 tokens per step",
    ]
    assert "they go alone" in resolved.notes[2]


def test_what_was_given_is_kept():
    resolved = resolve(TrainConfig(lr=0.1, batch_tokens=7), hidden_size=8, num_tokens=10, longest=5)
    assert (resolved.lr, resolved.batch_tokens, resolved.notes) == (0.1, 7, ())
