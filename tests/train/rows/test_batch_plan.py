from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.train.config import TrainConfig, TrainConfigInvalid
from eyas.train.rows.batch_plan import plan_batches

LENGTHS = [5, 9, 3, 7, 7, 2, 8, 4]


def test_one_pass_sees_every_row_once_in_an_order_drawn_from_the_seed():
    plans = [plan_batches(LENGTHS, TrainConfig(seed=seed), 16) for seed in (0, 0, 1)]

    assert plans[0] == plans[1] != plans[2]
    for plan in plans:
        assert sorted(row for batch in plan for row in batch.rows) == list(range(8))


def test_each_pass_has_its_own_order():
    plan = plan_batches(LENGTHS, TrainConfig(epochs=2), 8)
    rows = [row for batch in plan for row in batch.rows]
    assert sorted(rows[:8]) == sorted(rows[8:])
    assert rows[:8] != rows[8:]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 64), st.integers(1, 200))
def test_batches_keep_to_their_size_and_the_run_to_its_tokens(lengths, batch_tokens, tokens):
    plan = plan_batches(lengths, TrainConfig(tokens=tokens), batch_tokens)

    for batch in plan:
        assert batch.num_tokens == sum(lengths[row] for row in batch.rows)
        assert batch.num_tokens <= batch_tokens or len(batch.rows) == 1
    total = sum(batch.num_tokens for batch in plan)
    assert total >= tokens > total - plan[-1].num_tokens


@pytest.mark.parametrize("steps", [1, 3, 11])
def test_steps_says_how_many_batches_there_are(steps):
    assert len(plan_batches(LENGTHS, TrainConfig(steps=steps), 16)) == steps


def test_longer_runs_begin_like_shorter_ones():
    short, long = (plan_batches(LENGTHS, TrainConfig(steps=n), 16) for n in (4, 9))
    assert long[:4] == short
    assert max(Counter(row for batch in long for row in batch.rows).values()) <= 3


@pytest.mark.parametrize("config", [TrainConfig(epochs=10**12), TrainConfig(tokens=10**15)])
def test_a_run_without_end_is_refused_before_it_fills_the_memory(config):
    with pytest.raises(TrainConfigInvalid, match="longer than can be planned"):
        plan_batches(LENGTHS, config, 16)


def test_steps_are_counted_while_they_are_laid_out(monkeypatch):
    monkeypatch.setattr("eyas.train.rows.batch_plan.MAX_STEPS", 10)
    assert len(plan_batches(LENGTHS[:5], TrainConfig(epochs=2), 1)) == 10
    with pytest.raises(TrainConfigInvalid, match="longer than can be planned"):
        plan_batches(LENGTHS[:5], TrainConfig(epochs=3), 1)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.sampled_from([0.01, 0.25, 0.7]), st.integers(1, 400))
def test_a_ramp_starts_small_ends_at_the_full_size_and_sees_the_same_rows(lengths, ramp, tokens):
    plain, ramped = (plan_batches(lengths, TrainConfig(tokens=tokens, batch_ramp=r), 64) for r in (1.0, ramp))

    rows = [[row for batch in plan for row in batch.rows] for plan in (plain, ramped)]
    assert all(a == b for a, b in zip(*rows, strict=False))
    done = 0
    for batch in ramped:
        size = round(64 * min(1.0, ramp + (1 - ramp) * 2 * done / tokens))
        assert batch.num_tokens <= size or len(batch.rows) == 1
        done += batch.num_tokens
    assert done >= tokens
