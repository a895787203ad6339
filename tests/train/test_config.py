from math import inf, nan

import pytest

from eyas.train.config import (
    DraftShape,
    TrainConfig,
    TrainConfigInvalid,
    batch_tokens_for,
    require_processes,
    require_threads,
    resolve,
)


def test_all_problems_are_told_at_once():
    with pytest.raises(TrainConfigInvalid) as caught:
        TrainConfig(steps=1, tokens=1, ttt_steps=0, step_decay=0.0, grad_clip=-1.0, draft_vocab_size=3)
    for part in (
        "--steps and --tokens",
        "--ttt-steps is 0, wanted 1 … 16",
        "--step-decay is",
        "--grad-clip is",
        "--draft-vocab-size is 3",
    ):
        assert part in caught.value.why


def test_what_was_left_open_is_chosen_and_told():
    resolved = resolve(TrainConfig(tokens=64_000), hidden_size=1152, num_tokens=10_000, longest=2000)
    assert resolved.lr == pytest.approx(1e-3)
    assert resolved.batch_tokens == 512
    assert resolved.notes[0] == (
        "chosen for 0.064 M tokens, muon and a new draft of width 1152: a peak learning rate of 0.001 (--lr),"
        " 512 tokens a step (--batch-tokens)"
    )
    plain = resolve(TrainConfig(tokens=64_000, optimiser="adamw"), hidden_size=1152, num_tokens=1, longest=9)
    assert plain.lr == pytest.approx(5e-4)
    assert "a batch of its own" in resolved.notes[1]


@pytest.mark.parametrize(
    ("total", "expected"),
    [(1, 256), (10_000, 256), (2_000_000, 2048), (50_000_000, 8192), (10**9, 32768), (10**12, 32768)],
)
def test_steps_and_their_size_both_grow_with_the_run(total, expected):
    assert batch_tokens_for(total) == expected


def test_what_was_given_is_kept():
    resolved = resolve(TrainConfig(lr=0.1, batch_tokens=7), hidden_size=8, num_tokens=10, longest=5)
    assert (resolved.lr, resolved.batch_tokens, resolved.notes) == (0.1, 7, ())


@pytest.mark.parametrize("value", [inf, -inf, nan])
@pytest.mark.parametrize(
    "name", ["lr", "step_decay", "warmup_share", "final_lr_share", "weight_decay", "grad_clip", "checkpoint_every_s"]
)
def test_what_is_no_finite_number_is_refused(name, value):
    with pytest.raises(TrainConfigInvalid) as caught:
        TrainConfig(**{name: value})
    assert caught.value.why.startswith(f"--{name.replace('_', '-')} is {value}, wanted ")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"seed": 99999999999999999999999}, "--seed is 99999999999999999999999, wanted 0 … 4294967295"),
        ({"seed": -1}, "--seed is -1, wanted 0 … 4294967295"),
        ({"steps": 999_999_999_999}, "--steps is 999999999999, wanted 1 … 1000000"),
        ({"tokens": 10**30}, f"--tokens is {10**30}, wanted 1 … {10**15}"),
        ({"epochs": 10**30}, f"--epochs is {10**30}, wanted 1 … {10**15}"),
        ({"batch_tokens": 2**63}, f"--batch-tokens is {2**63}, wanted 1 … {10**15}"),
        ({"micro_batch_tokens": 10**400}, f"--micro-batch-tokens is {10**400}, wanted 1 … {10**15}"),
        (
            {"shape": DraftShape(intermediate_size=2**63 - 1)},
            f"--intermediate-size is {2**63 - 1}, wanted 1 … {2**20}",
        ),
        ({"aux_boundaries": (2, 4)}, "--aux-boundaries is 2 4, wanted 3 of them"),
        ({"aux_boundaries": ()}, "--aux-boundaries is , wanted 3 of them"),
        ({"aux_boundaries": (4, 2, 5)}, "--aux-boundaries is 4 2 5, wanted 1 or more, increasing"),
        ({"aux_boundaries": (0, 2, 5)}, "--aux-boundaries is 0 2 5, wanted 1 or more, increasing"),
    ],
)
def test_what_is_out_of_range_is_told_alone(options, why):
    with pytest.raises(TrainConfigInvalid) as caught:
        TrainConfig(**options)
    assert caught.value.why == why


@pytest.mark.parametrize("threads", [0, -1, 1025, 100_000])
def test_a_number_of_threads_that_no_machine_has_is_refused(threads):
    with pytest.raises(TrainConfigInvalid, match="threads"):
        require_threads(threads)


@pytest.mark.parametrize("threads", [None, 1, 1024])
def test_other_numbers_of_threads_are_taken(threads):
    require_threads(threads)


@pytest.mark.parametrize(("gpus", "under_torchrun"), [(0, False), (65, False), (2, True)])
def test_a_number_of_processes_that_makes_no_sense_is_refused(gpus, under_torchrun):
    with pytest.raises(TrainConfigInvalid, match="--gpus"):
        require_processes(gpus, under_torchrun=under_torchrun)


def test_a_micro_batch_is_as_given_or_as_large_as_the_device_likes():
    assert [TrainConfig().micro_batch_on(device) for device in ("cpu", "cuda")] == [4096, 16384]
    assert TrainConfig(micro_batch_tokens=77).micro_batch_on("cuda") == 77


def test_a_draft_that_is_trained_already_takes_smaller_steps():
    sizes = {"hidden_size": 576, "num_tokens": 1000, "longest": 10}

    new, trained = (resolve(TrainConfig(), **sizes, is_new=is_new) for is_new in (True, False))

    assert trained.lr == pytest.approx(new.lr / 5)
    assert "a trained draft" in trained.notes[0]
