"""A prompt in pieces leaves what the plain operators leave: keys, values, aux states, the token after it."""

import pytest
import torch

from eyas.engine.batches.batch_ops import ReferenceBatchOps
from eyas.engine.captured import prompt_pass as module
from eyas.engine.captured.captured_weights import fast_target
from eyas.engine.captured.prompt_pass import PiecewisePrompt, PromptPass, ReferencePrompt, prompt_pass
from eyas.engine.captured.workspace import key_value_cache
from tiny_captured import BOUNDARIES, VOCAB, on_gpu, tiny_weights

LENGTH = 160


def ids_of(num: int) -> list[int]:
    return torch.randint(0, VOCAB, (num,), generator=torch.Generator().manual_seed(num)).tolist()


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max() / a.double().abs().max().clamp(min=1))


def left(reader: PromptPass, cache: torch.Tensor, num: int, width: int) -> tuple[torch.Tensor, ...]:
    """Keys and values, states, token."""
    states = cache.new_full((num, width), 7.0)
    token = reader.read(ids_of(num), states).clone()
    without = reader.read(ids_of(num), None)
    assert int(without) == int(token), "states that are not kept change nothing"
    return cache[:, :, :, :num].clone(), states, token


@pytest.mark.parametrize("num", [1, 15, 16, 17, 40, 97, 159])
def test_pieces_leave_what_plain_operators_leave(num: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_SIZES", (2, 4))  # so that prompts longer than 64 take several passes
    weights = tiny_weights()
    target = fast_target(weights, max_length=LENGTH, aux_boundaries=BOUNDARIES)
    caches = [key_value_cache(target, len(target.layers), LENGTH) for _ in range(2)]
    pieces = PiecewisePrompt(weights, caches[1], BOUNDARIES, ReferenceBatchOps(), captures=False)
    width = len(BOUNDARIES) * weights.shape.hidden

    expected = left(ReferencePrompt(target, caches[0]), caches[0], num, width)
    got = left(pieces, caches[1], num, width)

    for name, a, b in zip(("cache", "states", "token"), expected, got, strict=True):
        assert gap(a, b) < 1e-5, name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("num", [1, 17, 100, 159])
def test_captured_pieces_leave_what_plain_operators_leave(num: int):
    weights = on_gpu(tiny_weights())
    target = fast_target(weights, max_length=LENGTH, aux_boundaries=BOUNDARIES)
    caches = [key_value_cache(target, len(target.layers), LENGTH) for _ in range(2)]
    width = len(BOUNDARIES) * weights.shape.hidden
    pieces = prompt_pass(weights, caches[1], BOUNDARIES, captures=True)

    expected = left(ReferencePrompt(target, caches[0]), caches[0], num, width)
    for _ in range(2):  # captured, replayed
        got = left(pieces, caches[1], num, width)

        for name, a, b in zip(("cache", "states", "token"), expected, got, strict=True):
            assert gap(a, b) < 1e-4, name
