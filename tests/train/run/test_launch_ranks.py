"""Two processes on the CPU (gloo): the curve of one process, kills, and going on with another number of ranks.

They are forks of this process, which spares each rank its imports; with `make soak` they start as `eyas train` does.
"""

import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from eyas.cli.terminal import Terminal
from eyas.errors import EnvironmentMissing
from eyas.records.checkpoint import METRICS, STATE, resume_folder
from eyas.records.eval_rows import EvalRow, write_eval_rows
from eyas.talk import Silent
from eyas.train.config import TrainConfig, TrainConfigInvalid
from eyas.train.optimise.optimiser import TrainingDiverged
from eyas.train.optimise.ranks import RankPlace
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.examine import plan_train
from eyas.train.request import TrainRequest
from eyas.train.run.launch_ranks import RankDied, _raise_cause, _rank, _Work, train_on
from eyas.train.run.train import Trained, train
from eyas.train.run.unfinished_run import save_checkpoint
from train_run_folder import make_run_folder

# Sums in another order are all that may differ: fp32, relative.
TOLERANCE = 1e-4
CONFIG = TrainConfig(
    steps=12,
    batch_tokens=150,
    draft_vocab_size=32,
    ttt_steps=3,
    checkpoint_every_s=1e-9,
    eval_every=4,
    lr=1e-3,
    optimiser="muon",
    average_share=0.5,
)


@pytest.fixture(scope="module")
def request_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], TrainRequest]:
    folder = tmp_path_factory.mktemp("inputs")
    target, rows = make_run_folder(folder)
    held_out = [
        EvalRow(id=str(i), set="h", prompt_ids=(40, 41, 42), response_ids=tuple(range(40, 60 + i))) for i in range(5)
    ]
    write_eval_rows(held_out, rows / "held_out.jsonl")
    return lambda out: TrainRequest(target=target, rows=rows, out=out, device="cpu")


def alone(request: TrainRequest) -> Trained:
    return train(request, CONFIG, plan_train(request, CONFIG, Silent()), Silent())


def on_two(request: TrainRequest) -> Trained:
    return train_on(2, request, CONFIG, plan_train(request, CONFIG, Silent()), Silent, threads=1)


@pytest.fixture(scope="module")
def whole(request_for, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The run of one process."""
    return alone(request_for(tmp_path_factory.mktemp("whole") / "whole"))


def start_by(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyas.train.run.launch_ranks.get_context", lambda _: multiprocessing.get_context(start))


def die_in_step(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rank is killed while the first one waits for it; for ranks that are forked from here."""
    whole = Trainer.start_step

    def start_step(self, rows, step):
        if self.ranks.rank == 1 and step == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, rows, step)

    monkeypatch.setattr(Trainer, "start_step", start_step)


def require_same_curve(one: Trained, two: Trained) -> None:
    for a, b in zip(one.metrics, two.metrics, strict=True):
        assert a["tokens"] == b["tokens"]
        assert a["num_targets"] == b["num_targets"]
        assert b["loss"] == pytest.approx(a["loss"], rel=TOLERANCE)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=TOLERANCE)
    assert [r["rounds"] for r in one.held_out] == [r["rounds"] for r in two.held_out]
    first, second = (load_file(trained.out / "model.safetensors") for trained in (one, two))
    for name in first:
        assert (first[name].float() - second[name].float()).abs().max() < 0.01


def test_a_killed_rank_ends_the_others_and_one_process_resumes(request_for, whole, tmp_path: Path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    request = request_for(tmp_path / "parts")
    start_by("fork", monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(RankDied) as caught:
        die_in_step(5, patch)
        on_two(request)

    assert "rank 1 ended" in str(caught.value)
    assert "SIGKILL" in str(caught.value)
    assert multiprocessing.active_children() == []
    assert list(temporary.iterdir()) == []
    assert 0 < json.loads((resume_folder(request.out) / STATE).read_text())["step"] <= 5
    require_same_curve(whole, alone(request))


def test_a_killed_parent_takes_its_ranks_along_and_leaves_nothing_behind(request_for, tmp_path: Path, monkeypatch):
    start_by("fork", monkeypatch)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    request = request_for(tmp_path / "d")
    config = replace(CONFIG, steps=100_000)
    parent = multiprocessing.get_context("fork").Process(
        target=train_on, args=(2, request, config, plan_train(request, config, Silent()), Silent, 1)
    )
    parent.start()
    while not (resume_folder(request.out) / STATE).exists():
        assert parent.is_alive()
        time.sleep(0.01)
    ranks = psutil.Process(parent.pid).children(recursive=True)
    assert len(ranks) >= 2
    parent.kill()
    parent.join()
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert [rank for rank in alive if rank.status() != psutil.STATUS_ZOMBIE] == []
    assert list(temporary.iterdir()) == []


def test_the_last_good_state_is_kept_before_the_ranks_are_ended(request_for, tmp_path: Path, monkeypatch):
    step, keep = Trainer.start_step, save_checkpoint

    def start_step(self, rows, number):
        if number == 2:
            self.draft.norm.weight.register_hook(lambda grad: grad * float("nan"))
        return step(self, rows, number)

    monkeypatch.setattr(Trainer, "start_step", start_step)
    # The other rank has nothing to write, and the parent ends all with the first bad news.
    monkeypatch.setattr("eyas.train.run.run_steps.save_checkpoint", lambda *given: time.sleep(0.3) or keep(*given))
    monkeypatch.setattr("eyas.train.run.launch_ranks._GRACE_S", 0.0)
    start_by("fork", monkeypatch)
    request, config = request_for(tmp_path / "d"), replace(CONFIG, checkpoint_every_s=1e6)
    with pytest.raises(TrainingDiverged) as caught:
        train_on(2, request, config, plan_train(request, config, Silent()), Silent, threads=1)

    good = resume_folder(request.out) / "draft"
    assert f"--init-from {good}" in caught.value.__notes__[1]
    assert json.loads((good / "eyas.json").read_text())["about"]["steps"] == 2


@pytest.mark.parametrize(
    ("shard", "start"), [(True, "fork"), (False, "fork"), pytest.param(True, "spawn", marks=pytest.mark.soak)]
)
def test_two_processes_go_on_from_one_and_give_the_curve_of_one(
    shard: bool, start: str, request_for, whole, tmp_path: Path, monkeypatch
):
    start_by(start, monkeypatch)
    request = replace(request_for(tmp_path / "parts"), shard=shard)

    class Stopped(Exception):
        pass

    def stop(*_: object, **__: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("eyas.train.run.train.write_draft", stop)
        patch.setattr("eyas.train.run.run_steps.save_checkpoint", _only_at(5))
        alone(request)
    assert json.loads((resume_folder(request.out) / STATE).read_text())["step"] == 5

    done = on_two(request)
    require_same_curve(whole, done)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_what_a_rank_is_given_reaches_a_process_that_shares_nothing(request_for, tmp_path: Path):
    request = request_for(tmp_path / "d")
    work = _Work(request=request, config=CONFIG, make_talk=Terminal, threads=1, parent=os.getpid())
    given = (_rank, RankPlace(rank=1, size=2, local_rank=1, meet_at="file:///tmp/meet"), work)
    assert pickle.loads(pickle.dumps(given)) == given  # noqa: S301 - our own bytes


def _only_at(step: int) -> Callable[..., None]:
    def save(folder, trainer, state, *rest):
        if state.step == step:
            save_checkpoint(folder, trainer, state, *rest)

    return save


@pytest.mark.parametrize(
    ("ends", "codes", "kind", "says"),
    [
        # a peer's broken connection is a consequence of the silent death
        (["Traceback\nRuntimeError: peer gone", None], [1, -9], RankDied, "rank 1 ended[\\s\\S]*SIGKILL"),
        ([TrainingDiverged("nan", "h", "y", "d"), "x"], [1, 1], TrainingDiverged, "nan"),
        ([None, "Traceback\nValueError: odd"], [None, 1], RankDied, "ValueError: odd, of 2 ranks"),
        ([None, None], [None, 7], RankDied, "exit code 7"),
    ],
)
def test_of_several_ends_the_cause_is_told(ends, codes, kind, says):
    with pytest.raises(kind, match=says):
        _raise_cause(ends, codes)


def test_more_gpus_than_there_are_is_refused_before_a_process_starts(request_for, tmp_path: Path):
    request = request_for(tmp_path / "d")
    plan = plan_train(request, CONFIG, Silent())
    request = replace(request, device="cuda")
    with pytest.raises(EnvironmentMissing):
        train_on(64, request, CONFIG, plan, Silent)
    with pytest.raises(TrainConfigInvalid, match="--device names one GPU, and --gpus asks for several"):
        train_on(2, replace(request, device="cuda:1"), CONFIG, plan, Silent)


@pytest.mark.soak
def test_a_checkpoint_in_parts_is_gone_on_with_in_parts_and_by_one_process(
    request_for, whole, tmp_path: Path, monkeypatch
):
    request = replace(request_for(tmp_path / "parts"), shard=True)
    start_by("fork", monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(RankDied):
        die_in_step(5, patch)
        on_two(request)

    assert (resume_folder(request.out) / "shards" / ".metadata").exists()
    between = tmp_path / "copy.resume"
    shutil.copytree(resume_folder(request.out), between)
    require_same_curve(whole, on_two(request))
    require_same_curve(whole, alone(request_for(tmp_path / "copy")))


@pytest.mark.soak
def test_torchrun_starts_the_same_run_and_one_rank_alone_talks(request_for, whole, tmp_path: Path):
    request = request_for(tmp_path / "d")
    arguments = [
        *["train", "--target", str(request.target), "--data", str(request.rows), "--out", str(request.out)],
        *["--steps", "12", "--batch-tokens", "150", "--draft-vocab-size", "32", "--ttt-steps", "3", "--device", "cpu"],
        *["--checkpoint-every-s", "0", "--eval-every", "4", "--lr", "1e-3", "--json"],
    ]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "eyas"]
    done = subprocess.run([*launcher, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (document,) = (json.loads(line) for line in done.stdout.splitlines())
    assert document["processes"] == 2
    assert done.stderr.count("loading the target") == 1
    metrics = [json.loads(line) for line in (request.out / METRICS).read_text().splitlines()]
    losses = [line["loss"] for line in metrics if "loss" in line]
    assert losses == pytest.approx([line["loss"] for line in whole.metrics], rel=TOLERANCE)
