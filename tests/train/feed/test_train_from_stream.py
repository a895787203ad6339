"""Whole runs whose states servers compute meanwhile."""

import dataclasses
import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eyas.client.address import ServerUnreachable
from eyas.data.rows.row_store import Rows
from eyas.extract.proof import StatesMismatch
from eyas.extract.source import SourceFailed, SourceUnsupported
from eyas.models.target import Target
from eyas.talk import Silent
from eyas.train.config import TrainConfig
from eyas.train.feed import read_ahead
from eyas.train.preflight import open_teaching
from eyas.train.preflight.examine import plan_train
from eyas.train.request import TrainRequest
from eyas.train.run.stopping import TrainingStopped
from eyas.train.run.train import train
from fake_source import FakeSource
from train_run_folder import make_run_folder

BOUNDARIES = (1, 2, 3)
CONFIG = TrainConfig(
    aux_boundaries=BOUNDARIES, steps=6, batch_tokens=150, draft_vocab_size=32, ttt_steps=3, lr=3e-3, eval_every=0
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> tuple[Path, Path]:
    return make_run_folder(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(read_ahead, "_BACKOFF_S", (0.01, 0.05))


def served_by(monkeypatch, **sources: FakeSource) -> None:
    monkeypatch.setattr(open_teaching, "_require_one_there", lambda streams: None)
    monkeypatch.setattr(open_teaching, "_open_server", lambda name, wanted, talk: sources[name])


def request_of(inputs: tuple[Path, Path], out: Path, streams: tuple[str, ...], **changes: Any) -> TrainRequest:
    return TrainRequest(target=inputs[0], rows=inputs[1], out=out, device="cpu", streams=streams, **changes)


def run(request: TrainRequest, config: TrainConfig = CONFIG, talk: Silent | None = None, **options: Any) -> Any:
    talk = talk or Silent()
    return train(request, config, plan_train(request, config, talk), talk, **options)


def losses(done: Any) -> list[float]:
    return [record["loss"] for record in done.metrics]


@pytest.fixture(scope="module")
def live(inputs, tmp_path_factory) -> list[float]:
    return losses(run(request_of(inputs, tmp_path_factory.mktemp("live") / "d", ())))


@pytest.mark.parametrize("last", ["post-norm", "pre-norm"])
def test_two_servers_one_of_which_fails_teach_what_the_target_in_the_process_does(
    last, inputs, live, tmp_path: Path, monkeypatch
):
    sources = {
        "a": FakeSource(inputs[0], BOUNDARIES, last=last, fails_after=[99] * 7 + [1, 0, 2]),
        "b": FakeSource(inputs[0], BOUNDARIES, last=last),
    }
    served_by(monkeypatch, **sources)
    monkeypatch.setattr(Target, "load", None)
    talk = Silent()

    done = run(request_of(inputs, tmp_path / "d", ("a", "b"), read_ahead_gb=0.001), talk=talk)

    assert losses(done) == pytest.approx(live, rel=1e-6)
    assert done.fed["tokens"] == done.plan.num_tokens
    assert done.fed["most_bytes"] <= 1e6
    assert 0 < done.fed["share_of_slower"] < 1.01
    assert any(line.startswith(f"states: {done.plan.num_tokens} tokens at ") for line in talk.lines)


def test_each_row_is_computed_once_for_each_time_that_it_is_learned_from(inputs, tmp_path: Path, monkeypatch):
    source = FakeSource(inputs[0], BOUNDARIES)
    served_by(monkeypatch, a=source)
    request = request_of(inputs, tmp_path / "d", ("a",))
    plan = plan_train(request, CONFIG, Silent())
    begun = open_teaching.FedStates.ahead

    @contextmanager
    def ahead(feed, *args):
        source.served.clear()  # the checks before the run have asked too
        with begun(feed, *args) as figures:
            yield figures

    monkeypatch.setattr(open_teaching.FedStates, "ahead", ahead)

    train(request, CONFIG, plan, Silent())

    wanted = Counter(plan.rows[row].token_ids for batch in plan.batches for row in batch.rows)
    assert Counter(source.served) == wanted


def test_while_no_server_answers_ctrl_c_ends_the_run_and_a_rerun_ends_as_an_undisturbed_one(
    inputs, live, tmp_path: Path, monkeypatch
):
    dead, asked = threading.Event(), threading.Event()
    source = FakeSource(inputs[0], BOUNDARIES, dead=dead)
    served_by(monkeypatch, a=source)
    request = request_of(inputs, tmp_path / "d", ("a",), read_ahead_gb=0.001)
    monkeypatch.setattr(TrainRequest, "ahead_bytes", lambda self, device: 40_000)  # some rows
    plan, step = plan_train(request, CONFIG, Silent()), open_teaching.FedStates.__call__
    calls, began = [], []

    def dies_in_the_third_step(feed, rows, boundaries):
        calls.append(boundaries)
        if len([b for b in calls if b]) == 4:  # the reference check was the first
            dead.set()
            began.append(time.monotonic())
            threading.Timer(0.3, asked.set).start()
        return step(feed, rows, boundaries)

    monkeypatch.setattr(open_teaching.FedStates, "__call__", dies_in_the_third_step)

    @contextmanager
    def listen():
        yield asked.is_set

    with pytest.raises(TrainingStopped):
        train(request, CONFIG, plan, Silent(), listen=listen)
    assert time.monotonic() - began[0] < 4
    dead.clear()
    monkeypatch.setattr(open_teaching.FedStates, "__call__", step)
    done = train(request, CONFIG, plan_train(request, CONFIG, Silent()), Silent())
    assert losses(done) == pytest.approx(live, rel=1e-6)
    assert [record["tokens"] for record in done.metrics][-1] == done.plan.num_tokens


def test_held_out_rows_are_computed_by_a_server_too(inputs, tmp_path: Path, monkeypatch):
    held_out = tmp_path / "held_out.jsonl"
    row = {"id": "0", "set": "s", "prompt_ids": [70, 71, 72], "response_ids": [80, 90, 60, 75, 80, 81, 82]}
    held_out.write_text(json.dumps(row) + "\n")
    served_by(monkeypatch, a=FakeSource(inputs[0], BOUNDARIES))
    config = dataclasses.replace(CONFIG, eval_every=3)
    found = run(request_of(inputs, tmp_path / "d", ("a",), held_out=held_out), config)
    wanted = run(request_of(inputs, tmp_path / "e", (), held_out=held_out), config)
    for name in ("accept_length", "per_position"):
        assert [r[name] for r in found.held_out] == [r[name] for r in wanted.held_out]


def test_servers_that_give_states_of_different_kinds_are_refused(inputs, tmp_path: Path, monkeypatch):
    served_by(
        monkeypatch,
        a=FakeSource(inputs[0], BOUNDARIES),
        b=FakeSource(inputs[0], BOUNDARIES, last="pre-norm"),
    )
    with pytest.raises(SourceUnsupported, match="b gives states of another kind"):
        run(request_of(inputs, tmp_path / "d", ("a", "b")))


def test_of_several_servers_one_may_come_later_but_not_the_only_one(inputs, live, tmp_path: Path, monkeypatch):
    dead = threading.Event()
    late = FakeSource(inputs[0], BOUNDARIES, dead=dead)
    served_by(monkeypatch, a=late, b=FakeSource(inputs[0], BOUNDARIES))
    dead.set()
    with pytest.raises(SourceFailed, match="nothing answers"):
        run(request_of(inputs, tmp_path / "c", ("a",)))
    threading.Timer(0.5, dead.clear).start()
    talk = Silent()
    done = run(request_of(inputs, tmp_path / "d", ("a", "b")), talk=talk)
    assert losses(done) == pytest.approx(live, rel=1e-6)
    assert any(note.startswith("a does not answer") for note in talk.notes)


def test_a_run_that_finds_no_server_ends_before_anything_is_loaded(inputs, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(open_teaching.FrozenParts, "load", None)
    with pytest.raises(ServerUnreachable):
        run(request_of(inputs, tmp_path / "d", ("http://127.0.0.1:9", "sglang://127.0.0.1:10")))


def test_a_server_whose_states_are_not_those_that_its_tokens_come_from_is_refused(inputs, tmp_path: Path, monkeypatch):
    class Shifted(FakeSource):
        def states(self, rows):
            for row in super().states(rows):
                yield dataclasses.replace(row, states=np.roll(row.states, 1, 0))

    served_by(monkeypatch, a=Shifted(inputs[0], BOUNDARIES))
    with pytest.raises(StatesMismatch, match="gives another token than the source wrote"):
        run(request_of(inputs, tmp_path / "d", ("a",)))


def test_the_plan_is_that_of_the_rows_and_the_target_is_not_counted(inputs, tmp_path: Path):
    plan = plan_train(request_of(inputs, tmp_path / "d", ("http://nobody:1",)), CONFIG, Silent())
    whole = plan_train(request_of(inputs, tmp_path / "e", ()), CONFIG, Silent())
    assert plan.batches == whole.batches
    assert len(plan.rows) == len(Rows(inputs[1]))
    assert plan.costs.flop_per_token < whole.costs.flop_per_token
    assert plan.costs.memory_bytes["target weights"] < whole.costs.memory_bytes["target weights"]
