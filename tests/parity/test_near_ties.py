"""Near-ties are those decisions that another arithmetic takes otherwise, counted along the rounds that were taken."""

import pytest
import torch

from eyas.parity.near_ties import count_on_path, decisions
from eyas.replay.replay import accepted_from_everywhere, walk_rounds
from tiny_draft import NUM_AUX, TARGET_HIDDEN, tiny_draft

K = 3


def a_text(draft, seed: int, length: int = 90) -> tuple[torch.Tensor, torch.Tensor]:
    """A text of the draft's own first and second choices, so that deep decisions are reached, and close ones."""
    generator = torch.Generator().manual_seed(seed)
    aux = torch.randn(1, length, NUM_AUX * TARGET_HIDDEN, generator=generator)
    ids = torch.randint(0, draft.spec.vocab_size, (1, length), generator=generator)
    for t in range(2, length):
        if t % 8:
            (step,) = draft.ttt_steps(ids[:, :t], aux[:, :t], 1)
            best, choices = draft.head(step.normed[0, t - 2]).topk(2)
            is_close = bool(best[0] - best[1] < 0.05 * best[0].abs())
            ids[0, t] = draft.to_target_ids(choices[int(is_close and t % 2)])
    return ids, aux


@pytest.fixture(scope="module", params=[{}, {"draft_vocab_size": 40}], ids=["pruned", "whole"])
def case(request):
    with torch.no_grad():
        draft = tiny_draft(seed=3, **request.param)
        return draft, [a_text(draft, seed) for seed in range(3)]


def exact_decisions(draft, ids, aux, num_prompt: int) -> list[tuple[float, bool]]:
    """Every decision of the rounds, in float64 and by the cached step: (margin / best, whether the token is offered).

    The margin is that of the text's token over the best other one: negative where the draft is rejected.
    """
    draft, found = draft.double(), []
    g, text = draft.fuse(aux.double()), ids[0].tolist()
    newest, num = num_prompt, len(text)
    while newest < num - 1:
        cache, accepted = draft.new_cache(), 0
        tokens, states = ids[:, 1 : newest + 1], g[:, :newest]
        positions = torch.arange(newest)[None]
        while accepted < K and newest + 1 + accepted < num:
            state, logits = draft.step(tokens, states, positions, cache)
            (row,) = logits[0, -1:]
            truth = text[newest + 1 + accepted]
            offered = draft.to_target_ids(torch.arange(len(row))).tolist()
            if truth not in offered:
                found.append((float("-inf"), False))
                break
            own = row[offered.index(truth)]
            other = torch.cat([row[: offered.index(truth)], row[offered.index(truth) + 1 :]]).max()
            found.append((float((own - other) / row.max().abs()), True))
            if own < other:
                break
            accepted += 1
            tokens, states = ids[:, newest + accepted : newest + accepted + 1], state[:, -1:]
            positions = torch.tensor([[newest - 1 + accepted]])
        newest += accepted + 1
    draft.float()
    return found


@torch.no_grad()
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_count_is_that_of_a_loop_in_another_arithmetic(case, dtype):
    draft, texts = case
    step = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
    counted = expected = 0
    for ids, aux in texts:
        decided = decisions(draft, ids, aux, K, dtype)
        rounds = walk_rounds(decided.accepted.tolist(), 4, ids.shape[1])
        counted += count_on_path(decided.narrow, rounds, 4)
        expected += sum(is_offered and abs(m) <= 4 * step for m, is_offered in exact_decisions(draft, ids, aux, 4))

    assert counted == expected
    assert expected > 0 or dtype == "float16"


@torch.no_grad()
def test_what_bfloat16_decides_otherwise_was_counted(case):
    draft, texts = case
    flips = narrow = total = 0
    for ids, aux in texts:
        decided = decisions(draft, ids, aux, K, "bfloat16")
        other = decisions(tiny_like(draft), ids, aux, K, "bfloat16").accepted
        moved = (decided.accepted != other).nonzero()[:, 0].tolist()
        for t in moved:
            first = min(int(decided.accepted[t]), int(other[t]))
            assert decided.narrow[t, first], f"index {t}: draft {first + 1} fell otherwise, and was not counted"
        flips, narrow = flips + len(moved), narrow + int(decided.narrow.sum())
        total += ids.shape[1]

    assert 0 < flips <= narrow < total / 2


def tiny_like(draft):
    """The same draft in bfloat16."""
    other = tiny_draft(seed=3, draft_vocab_size=draft.spec.draft_vocab_size)
    return other.bfloat16()


@torch.no_grad()
def test_the_same_drafts_are_accepted_as_in_any_replay(case):
    draft, texts = case
    for ids, aux in texts:
        wanted = accepted_from_everywhere(draft, ids, aux, K, [ids.shape[1]])[0]
        assert torch.equal(decisions(draft, ids, aux, K, "bfloat16").accepted, wanted)
        assert int(wanted.max()) >= 2
