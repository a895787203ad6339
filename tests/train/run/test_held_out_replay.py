import copy
import json
from pathlib import Path

import pytest
import torch

from eyas.models.draft import Eagle3Draft
from eyas.models.states import lay_out
from eyas.models.target import LiveStates, Target
from eyas.records.eval_rows import EvalDataMissing, EvalRow, write_eval_rows
from eyas.replay.figures import figures_of
from eyas.replay.replay import replay
from eyas.replay.states import KeptStates
from eyas.talk import Silent
from eyas.train.optimise.ranks import SOLO, Ranks
from eyas.train.preflight.starting_draft import initialise
from eyas.train.rows.held_out_rows import HeldOutUnusable, find_held_out, read_held_out
from eyas.train.run.held_out_replay import HeldOutReplay, as_written
from tiny_draft import tiny_spec
from tiny_target import tiny_target


def tiny() -> tuple[Eagle3Draft, Target]:
    target = Target(tiny_target("llama", seed=3))
    spec = tiny_spec(
        target_hidden_size=32, vocab_size=64, draft_vocab_size=8, embedding="target", aux_boundaries=(1, 2, 3)
    )
    draft = Eagle3Draft(spec, target_embedding=target.parts.embedding)
    draft.set_vocab_map(torch.arange(3, 11))
    initialise(draft, target.frozen, seed=0)
    return draft, target


def rows_of(*lengths: int) -> list[EvalRow]:
    torch.manual_seed(1)
    return [
        EvalRow(
            id=str(i),
            set="s",
            prompt_ids=(3, 4),
            response_ids=tuple(torch.randint(3, 5, (length,)).tolist()),
        )
        for i, length in enumerate(lengths)
    ]


class _Counting(LiveStates):
    num_calls = 0

    def __call__(self, rows, boundaries):
        self.num_calls += 1
        return super().__call__(rows, boundaries)


def test_the_figure_is_that_of_a_plain_replay_and_follows_the_draft():
    draft, target = tiny()
    rows = rows_of(120, 90, 140)
    held_out, lengths = HeldOutReplay(LiveStates(target), torch.float32, rows, 1, SOLO), set()
    for seed in (0, 1):
        initialise(draft, target.frozen, seed)
        figures = held_out.measure(draft)
        with as_written(draft):
            assert figures == figures_of(replay(target, draft, rows, 1, Silent()), 1)
        lengths.add(figures.accept_length)
    assert len(lengths) == 2


def test_what_is_replayed_is_the_draft_as_its_file_will_hold_it_and_the_masters_stay():
    draft, target = tiny()
    rows = rows_of(120, 90, 140)
    with torch.no_grad():  # in fp32 a logit's sign decides between the first two tokens; in bf16 they are the same
        head = draft.lm_head.weight
        head[:] = 0
        head[0] = torch.linspace(0.5, 1.0, head.shape[1]).bfloat16() * torch.tensor([1.0, -1.0] * (head.shape[1] // 2))
        head[1] = head[0] * (1 + 2**-12)
    masters = {name: p.detach().clone() for name, p in draft.named_parameters()}
    rounded = copy.deepcopy(draft)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16().float()

    figures = HeldOutReplay(LiveStates(target), torch.float32, rows, 1, SOLO).measure(draft)

    assert figures == figures_of(replay(target, rounded, rows, 1, Silent()), 1)
    assert figures != figures_of(replay(target, draft, rows, 1, Silent()), 1)
    assert all(torch.equal(masters[name], p) for name, p in draft.named_parameters())


def test_the_target_runs_once_over_rows_that_fit_and_each_time_over_the_others():
    _, target = tiny()
    size = (10 + 1) * (3 + 1) * 32 * 4
    counting = _Counting(target)
    states = KeptStates(counting, most_bytes=size)
    for _ in range(3):
        first = states(lay_out([[1] * 10], [0], target.device), (1, 2, 3))
        states(lay_out([[1] * 10], [1], target.device), (1, 2, 3))
    assert counting.num_calls == 1 + 3
    assert torch.equal(first.aux, LiveStates(target)(lay_out([[1] * 10], [0], target.device), (1, 2, 3)).aux)


def test_two_ranks_together_replay_every_row_once():
    draft, target = tiny()
    rows, both = rows_of(120, 90, 140, 30), []

    class OneOfTwo(Ranks):
        def gather(self, item):
            both.extend(item)
            return [list(both)]

    for rank in (0, 1):
        figures = HeldOutReplay(LiveStates(target), torch.float32, rows, 1, OneOfTwo(rank, 2)).measure(
            copy.deepcopy(draft)
        )
    assert figures == figures_of(replay(target, draft, rows, 1, Silent()), 1)


def test_the_file_beside_the_rows_is_found_and_a_given_one_wins(tmp_path: Path):
    assert find_held_out(None, tmp_path) is None
    write_eval_rows(rows_of(5, 6, 7), tmp_path / "held_out.jsonl")
    assert find_held_out(None, tmp_path) == tmp_path / "held_out.jsonl"
    assert find_held_out(tmp_path / "mine.jsonl", tmp_path) == tmp_path / "mine.jsonl"


def test_prompts_without_an_answer_are_left_out_and_counted(tmp_path: Path):
    lines = [json.dumps(row.as_document()) for row in rows_of(5, 1)] + ['{"turns": ["Who?"]}']
    (tmp_path / "h.jsonl").write_text("\n".join(lines))
    found = read_held_out(tmp_path / "h.jsonl", 10)
    assert [row.id for row in found.rows] == ["0"]
    assert found.num_skipped == 2


def test_a_file_of_prompts_alone_is_refused(tmp_path: Path):
    (tmp_path / "h.jsonl").write_text('{"turns": ["Who?"]}')
    with pytest.raises(HeldOutUnusable, match="has an answer of the target"):
        read_held_out(tmp_path / "h.jsonl", 10)


def test_a_file_that_is_not_there_is_named_by_the_option_that_train_has(tmp_path: Path):
    with pytest.raises(EvalDataMissing) as caught:
        read_held_out(tmp_path / "h.jsonl", 10)
    assert caught.value.where == f"--held-out {tmp_path / 'h.jsonl'}"
