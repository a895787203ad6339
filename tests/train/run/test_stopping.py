"""A run that is asked to stop: the step ends, a checkpoint is written, and the same command goes on to the same end."""

import errno
import json
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eyas.cli import train_signals
from eyas.cli.app import main
from eyas.cli.train_signals import wish_to_stop
from eyas.records.checkpoint import METRICS, STATE, resume_folder
from eyas.talk import Silent
from eyas.train.config import TrainConfig
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.examine import plan_train
from eyas.train.request import TrainRequest
from eyas.train.run.launch_ranks import train_on
from eyas.train.run.stopping import TrainingStopped
from eyas.train.run.train import RunInProgress, train
from train_run_folder import make_run_folder

CONFIG = TrainConfig(steps=8, batch_tokens=150, draft_vocab_size=32, ttt_steps=3)  # checkpoints every 300 s: none


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run_folder(tmp_path_factory.mktemp("inputs"))


def request_for(inputs: tuple[Path, Path], out: Path, **more) -> TrainRequest:
    return TrainRequest(target=inputs[0], rows=inputs[1], out=out, device="cpu", **more)


def asked_at(step: int):
    """Somebody who wants the run to stop while its step of this number (from 1) is under way."""

    @contextmanager
    def listen() -> Iterator:
        asked = iter(range(1, 1000))
        yield lambda: next(asked) >= step

    return listen


def curve(folder: Path) -> list[tuple[int, float, float]]:
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [(line["tokens"], line["loss"], line["grad_norm"]) for line in lines]


def run(request: TrainRequest, config: TrainConfig = CONFIG, **more) -> None:
    train(request, config, plan_train(request, config, Silent()), Silent(), **more)


def test_a_stopped_run_says_its_step_and_goes_on_bit_by_bit_from_there(inputs, tmp_path: Path):
    stopped = request_for(inputs, tmp_path / "stopped")
    with pytest.raises(TrainingStopped, match="after step 3 of 8, which is kept in") as caught:
        run(stopped, listen=asked_at(3))
    assert "resume with step 4" in caught.value.do
    assert json.loads((resume_folder(stopped.out) / STATE).read_text())["step"] == 3
    assert not stopped.out.exists()

    run(stopped)
    run(request_for(inputs, tmp_path / "whole"))
    assert curve(stopped.out) == curve(tmp_path / "whole")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("stopped", "whole"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_without_checkpoints_it_does_not_say_that_it_can_go_on(inputs, tmp_path: Path):
    request, config = request_for(inputs, tmp_path / "d"), replace(CONFIG, checkpoint_every_s=0.0)
    with pytest.raises(TrainingStopped, match="nothing of it is kept"):
        run(request, config, listen=asked_at(2))
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_of_the_same_draft_is_refused_while_the_first_one_is_at_it(inputs, tmp_path: Path):
    request, refused = request_for(inputs, tmp_path / "d"), list[RunInProgress]()
    again = replace(request, out=tmp_path / "." / "d", restart=True)

    @contextmanager
    def listen() -> Iterator:
        with pytest.raises(RunInProgress) as caught:
            run(again)
        refused.append(caught.value)
        yield lambda: False

    run(request, replace(CONFIG, steps=1), listen=listen)
    assert str(tmp_path / "d") in refused[0].what
    assert (tmp_path / "d" / "model.safetensors").exists()


def test_asked_in_the_last_step_it_is_simply_done(inputs, tmp_path: Path):
    run(request_for(inputs, tmp_path / "d"), listen=asked_at(CONFIG.steps or 0))
    assert (tmp_path / "d" / "model.safetensors").exists()


@pytest.mark.parametrize("shard", [False, True])
def test_two_ranks_stop_after_the_same_step(inputs, tmp_path: Path, monkeypatch, shard: bool):
    # Ranks that are forked from here spare their imports; `test_launch.py` starts them as the command does.
    monkeypatch.setattr("eyas.train.run.launch_ranks.get_context", lambda _: multiprocessing.get_context("fork"))
    request, config = request_for(inputs, tmp_path / "d", shard=shard), replace(CONFIG, steps=400)
    events = request.out.with_name("events")
    request = replace(request, tensorboard=events)

    @contextmanager
    def listen() -> Iterator:
        yield events.exists  # made before the first step

    with pytest.raises(TrainingStopped, match=r"after step \d+ of 400, which is kept"):
        train_on(2, request, config, plan_train(request, config, Silent()), Silent, threads=1, listen=listen)
    step = json.loads((resume_folder(request.out) / STATE).read_text())["step"]
    lines = (resume_folder(request.out) / METRICS).read_text().splitlines()
    assert 0 < step == len(lines) < 400


def command(inputs: tuple[Path, Path], out: Path, *more: str) -> list[str]:
    return [
        *["train", "--target", str(inputs[0]), "--data", str(inputs[1]), "--out", str(out), "--device", "cpu"],
        *["--batch-tokens", "150", "--draft-vocab-size", "32", "--ttt-steps", "3", "--steps", "400", *more],
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_after_its_step_with_130_and_a_checkpoint(
    inputs, tmp_path: Path, monkeypatch, capfd, number
):
    whole = Trainer.start_step

    def start_step(self, rows, step):
        if step == 2:
            signal.raise_signal(number)
        return whole(self, rows, step)

    monkeypatch.setattr(Trainer, "start_step", start_step)
    assert main(command(inputs, tmp_path / "d", "--json")) == 130
    out, said = capfd.readouterr()
    assert json.loads((resume_folder(tmp_path / "d") / STATE).read_text())["step"] == 3
    assert "stopping after this step, with a checkpoint" in said
    assert f"interrupted: stopped after step 3 of 400, which is kept in {tmp_path / 'd.resume'}" in said
    assert "resume with step 4" in said
    assert json.loads(out)["code"] == "training-stopped"


def test_ctrl_c_before_the_first_step_does_not_promise_to_go_on(inputs, tmp_path: Path, monkeypatch, capsys):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eyas.train.optimise.teaching.Target.load", interrupt)
    assert main(command(inputs, tmp_path / "d", "--json")) == 130
    said = capsys.readouterr()
    assert "interrupted: no step of this run is kept; run the same command again to start at step 1" in said.err
    assert "resume" not in said.err.splitlines()[-1]
    assert json.loads(said.out)["code"] == "training-interrupted"


def test_ctrl_c_while_going_on_names_the_step_that_is_still_kept(inputs, tmp_path: Path, monkeypatch, capsys):
    folder = resume_folder(tmp_path / "d")
    folder.mkdir()
    (folder / STATE).write_text('{"step": 7}')

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eyas.train.preflight.examine.plan_train", interrupt)
    assert main(command(inputs, tmp_path / "d")) == 130
    assert f"interrupted: {folder} holds the run as of step 7; run the same command again" in capsys.readouterr().err


def test_the_second_signal_ends_at_once_and_one_that_came_twice_is_one(monkeypatch, capfd):
    clock = iter([0.0, 0.1, 5.0])
    monkeypatch.setattr(train_signals.time, "monotonic", lambda: next(clock))
    before = signal.getsignal(signal.SIGINT)
    with wish_to_stop() as is_asked:
        assert not is_asked()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert is_asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr().err.count("stopping after this step") == 1


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_closed_terminal_is_the_wish_to_stop_but_under_nohup(is_ignored, monkeypatch):
    gone = []

    def fail(*_):
        raise OSError(errno.EIO, "the terminal is gone")

    monkeypatch.setattr(train_signals.os, "write", fail)
    monkeypatch.setattr(train_signals.os, "dup2", lambda _, number: gone.append(number))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        with wish_to_stop() as is_asked:
            signal.raise_signal(signal.SIGHUP)
            assert is_asked() is not is_ignored
        assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (2 in gone) is not is_ignored


def test_outside_of_the_main_thread_no_signal_is_touched():
    found = list[bool]()

    def body() -> None:
        with wish_to_stop() as is_asked:
            found.append(is_asked())

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert found == [False]
