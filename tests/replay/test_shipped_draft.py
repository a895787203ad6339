"""The real draft on the real target: replay against a second, independent loop, and against figures known elsewhere."""

import pytest
import torch

from eyas import shipped
from eyas.contract.spec.target_spec import read_target
from eyas.decode.accept_length import Acceptance, pooled
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import place
from eyas.models.target import Target
from eyas.records.eval_rows import EvalRow, read_eval_rows
from eyas.replay.replay import replay
from eyas.talk import Silent

K = 5
# The limit is for machines that are busy.
pytestmark = [pytest.mark.smollm2, pytest.mark.timeout(1200)]


def draft_for(path, smollm2: Target, folder) -> Eagle3Draft:
    return load_draft(
        path,
        place("float32", "cpu"),
        target_spec=read_target(folder),
        target_embedding=smollm2.parts.embedding,
    )


@torch.no_grad()
def rounds_by_drafting(target: Target, draft: Eagle3Draft, row: EvalRow) -> list[int]:
    """The second loop: one sequence, one round at a time, a cache that is cut back and rebuilt from target states."""
    text, num_prompt = [*row.prompt_ids, *row.response_ids], len(row.prompt_ids)
    hidden = target.model.base_model(torch.tensor([text]), output_hidden_states=True).hidden_states
    g = draft.fuse(torch.cat([hidden[b] for b in draft.spec.aux_boundaries], -1))
    cache, rounds, newest = draft.new_cache(), [], num_prompt
    while newest < len(text) - 1:
        # The target's states are known up to newest - 1: read those that the draft has not read yet.
        start = cache.length
        known, positions = torch.tensor([text[start + 1 : newest + 1]]), torch.arange(start, newest)[None]
        state, logits = draft.step(known, g[:, start:newest], positions, cache)
        num_accepted = 0
        for k in range(K):
            guess = int(draft.to_target_ids(logits[0, -1].argmax(-1)))
            if newest + 1 + k >= len(text) or guess != text[newest + 1 + k]:
                break
            num_accepted += 1
            position = torch.tensor([[newest + k]])
            state, logits = draft.step(torch.tensor([[guess]]), state[:, -1:], position, cache)
        cache.truncate(newest)
        rounds.append(num_accepted)
        newest += num_accepted + 1
    return rounds


def test_on_the_shipped_rows_replay_equals_a_second_loop_round_by_round(smollm2, smollm2_folder):
    draft = draft_for(shipped.draft_folder(), smollm2, smollm2_folder)
    rows = read_eval_rows([shipped.eval_rows_path()])[::6]  # of both kinds of text

    results = replay(smollm2, draft, rows, K, Silent())

    expected = [tuple(rounds_by_drafting(smollm2, draft, row)) for row in rows]
    assert len({row.set for row in rows}) == 2
    assert [result.accepted for result in results] == expected
    assert pooled([Acceptance.of_rounds(r, K) for r in expected], K).accept_length > 1.5


@pytest.mark.soak
def test_mt_bench_gives_the_figures_that_were_computed_elsewhere(shared, smollm2, smollm2_folder):
    draft = draft_for(shared / "drafts" / "smollm2-135m-eagle3", smollm2, smollm2_folder)
    rows = read_eval_rows([shared / "data" / "smollm2_greedy_eval.jsonl"], max_rows=12)

    results = replay(smollm2, draft, rows, K, Silent())

    total = pooled([Acceptance.of_rounds(r.accepted, K) for r in results], K)
    assert sum(len(row.response_ids) - 1 for row in rows) == 2850
    assert total.rounds == pytest.approx(1352, abs=7)
    assert total.accept_length == pytest.approx(2.112, abs=0.01)
    assert total.per_position == pytest.approx((0.519, 0.276, 0.150, 0.099, 0.068), abs=0.01)
