"""Whole runs: what lies in the draft's folder, what a kill leaves, what a rerun does."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from byte_tokenizer import CHATML, save_target_with
from eyas.contract.open_draft import open_draft
from eyas.contract.target_spec import read_target
from eyas.models.load_draft import load_draft
from eyas.models.placement import place
from eyas.models.save_draft import DraftUnwritable
from eyas.models.target import Target
from eyas.records.atomic import OutputExists
from eyas.records.checkpoint import METRICS, STATE, resume_folder
from eyas.talk import Silent
from eyas.train.checkpoint import CheckpointDamaged, CheckpointForeign
from eyas.train.config import TrainConfig
from eyas.train.initialise import AuxBoundaryBeyondTarget
from eyas.train.plan import RowsOfAnotherTarget
from eyas.train.train import Trained, TrainRequest, plan_train, train
from eyas.train.trainer import Trainer
from tiny_draft import tiny_spec
from train_run_folder import make_run_folder

CONFIG = TrainConfig(steps=6, batch_tokens=150, draft_vocab_size=32, ttt_steps=3, checkpoint_every_s=1e-9)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run_folder(tmp_path_factory.mktemp("inputs"))


def request_for(inputs: tuple[Path, Path], out: Path, **more) -> TrainRequest:
    return TrainRequest(target=inputs[0], rows=inputs[1], out=out, device="cpu", **more)


def run(request: TrainRequest, config: TrainConfig = CONFIG) -> Trained:
    talk = Silent()
    return train(request, config, plan_train(request, config, talk), talk)


def curve(folder: Path) -> list[tuple[int, float, float]]:
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [(line["tokens"], line["loss"], line["grad_norm"]) for line in lines]


class Stopped(Exception):
    """Stands for whatever ends a process between two steps."""


def stop_before(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Trainer.train_step

    def train_step(self, rows, number):
        if number == step:
            raise Stopped
        return whole(self, rows, number)

    monkeypatch.setattr(Trainer, "train_step", train_step)


def test_the_draft_loads_says_what_it_is_and_has_its_metrics_beside_it(inputs, tmp_path: Path):
    run(request_for(inputs, tmp_path / "draft"))

    target = Target.load(inputs[0], place("float32", "cpu"))
    draft = load_draft(
        tmp_path / "draft",
        place("float32", "cpu"),
        target_spec=read_target(inputs[0]),
        target_embedding=target.parts.embedding,
    )
    assert draft.spec.draft_vocab_size == 32
    assert draft.spec.aux_boundaries == (1, 2, 3)
    sidecar = json.loads((tmp_path / "draft" / "eyas.json").read_text())
    rows = json.loads((inputs[1] / "manifest.json").read_text())
    assert sidecar["about"]["rows"]["fingerprint"] == rows["fingerprint"]
    assert sidecar["target"]["tokenizer_hash"] == rows["tokenizer"]
    assert sidecar["contract"]["trained_length"] == rows["longest"]
    assert sidecar["about"]["steps"] == 6
    metrics = [json.loads(line) for line in (tmp_path / "draft" / METRICS).read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    assert {line["schema"] for line in metrics} == {"eyas.metrics/1"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["draft"]


def test_the_same_seed_gives_the_same_draft_and_another_seed_another(inputs, tmp_path: Path):
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(request_for(inputs, tmp_path / name), replace(CONFIG, seed=seed, steps=2))
        weights.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["fc.weight"], weights[2]["fc.weight"])


def test_init_only_writes_a_draft_that_loads_and_has_seen_nothing(inputs, tmp_path: Path):
    done = run(request_for(inputs, tmp_path / "draft", init_only=True))
    assert list(done.metrics) == []
    assert json.loads((tmp_path / "draft" / "eyas.json").read_text())["about"]["tokens"] == 0
    assert not (tmp_path / "draft" / METRICS).exists()


def test_going_on_from_a_draft_keeps_its_vocabulary_map_and_its_weights(inputs, tmp_path: Path):
    run(request_for(inputs, tmp_path / "first"))
    slow = replace(CONFIG, lr=1e-9, steps=1, draft_vocab_size=64)
    run(request_for(inputs, tmp_path / "second", init_from=tmp_path / "first"), slow)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert torch.equal(first["d2t"], second["d2t"])
    assert torch.equal(first["lm_head.weight"], second["lm_head.weight"])


def test_given_boundaries_are_trained_written_and_read_back(inputs, tmp_path: Path):
    run(request_for(inputs, tmp_path / "draft"), replace(CONFIG, aux_boundaries=(1, 2, 4), steps=1))
    assert open_draft(tmp_path / "draft", read_target(inputs[0])).aux_boundaries == (1, 2, 4)


def test_boundaries_beyond_the_target_are_refused(inputs, tmp_path: Path):
    config = replace(CONFIG, aux_boundaries=(1, 2, 9))
    with pytest.raises(AuxBoundaryBeyondTarget, match="the target has 4 layers"):
        plan_train(request_for(inputs, tmp_path / "draft"), config, Silent())


def test_what_could_not_be_saved_is_refused_before_it_is_trained(inputs, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("eyas.train.plan.draft_spec_for", lambda *_, **__: tiny_spec(aux_boundaries=(0, 1, 2)))
    with pytest.raises(DraftUnwritable):
        plan_train(request_for(inputs, tmp_path / "draft"), CONFIG, Silent())


def test_a_frozen_head_stays_as_it_was_initialised(inputs, tmp_path: Path):
    frozen = replace(CONFIG, freeze_head=True, lr=0.1, steps=2)
    run(request_for(inputs, tmp_path / "before", init_only=True), frozen)
    run(request_for(inputs, tmp_path / "after"), frozen)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("before", "after"))
    assert torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    assert not torch.equal(before["fc.weight"], after["fc.weight"])


def test_a_run_stopped_and_resumed_is_bit_identical_to_one_that_was_not(inputs, tmp_path: Path, monkeypatch):
    run(request_for(inputs, tmp_path / "whole"))
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(3, patch)
        run(request_for(inputs, tmp_path / "parts"))
    assert not (tmp_path / "parts").exists()
    assert json.loads((resume_folder(tmp_path / "parts") / STATE).read_text())["step"] == 3
    run(request_for(inputs, tmp_path / "parts"))

    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert not resume_folder(tmp_path / "parts").exists()


def test_a_resumed_run_with_other_options_or_rows_is_refused_with_what_changed(inputs, tmp_path: Path, monkeypatch):
    request = request_for(inputs, tmp_path / "draft")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(2, patch)
        run(request)

    with pytest.raises(CheckpointForeign) as caught:
        run(request, replace(CONFIG, lr=0.5, seed=4))
    assert "--lr: None then, 0.5 now" in caught.value.why
    assert "--seed: 0 then, 4 now" in caught.value.why
    assert "rows" not in caught.value.why

    run(replace(request, restart=True), replace(CONFIG, seed=4))
    assert len(curve(tmp_path / "draft")) == 6


def test_a_damaged_checkpoint_is_told_apart_from_a_foreign_one(inputs, tmp_path: Path, monkeypatch):
    request = request_for(inputs, tmp_path / "draft")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(2, patch)
        run(request)
    weights = resume_folder(request.out) / "state.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointDamaged, match="--restart"):
        run(request)


def test_an_existing_draft_is_never_overwritten(inputs, tmp_path: Path):
    (tmp_path / "draft").mkdir()
    with pytest.raises(OutputExists):
        run(request_for(inputs, tmp_path / "draft"))


def test_rows_of_another_template_are_refused_before_anything_is_loaded(inputs, tmp_path: Path):
    other = save_target_with(tmp_path / "other", CHATML + " ")
    request = TrainRequest(target=other, rows=inputs[1], out=tmp_path / "draft")
    with pytest.raises(RowsOfAnotherTarget, match="chat template differ"):
        plan_train(request, CONFIG, Silent())


def test_too_few_distinct_tokens_for_the_draft_vocabulary_are_told(inputs, tmp_path: Path):
    talk = Silent()
    plan = plan_train(request_for(inputs, tmp_path / "d"), replace(CONFIG, draft_vocab_size=200), talk)
    assert plan.vocabulary is not None
    assert any(f"only {plan.vocabulary.num_seen} distinct tokens" in note for note in talk.notes)


@pytest.fixture
def one_thread():
    """Sums in one order in this process and in the child."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_kill_9_in_the_middle_leaves_no_draft_and_a_rerun_finishes_the_same_curve(inputs, tmp_path: Path):
    killed, config = tmp_path / "killed", replace(CONFIG, steps=20)
    arguments = [
        *[sys.executable, "-m", "eyas", "train", "--target", str(inputs[0]), "--data", str(inputs[1])],
        *["--batch-tokens", "150", "--draft-vocab-size", "32", "--ttt-steps", "3", "--checkpoint-every-s", "1e-9"],
        *["--device", "cpu", "--threads", "1", "--steps", "20", "--out", str(killed)],
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    victim = subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL)
    state = resume_folder(killed) / STATE
    while victim.poll() is None and not state.exists():
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL, "it was killed in the middle, not at its end"
    assert not killed.exists()
    assert 0 < json.loads(state.read_text())["step"] < 20

    run(request_for(inputs, killed), config)
    run(request_for(inputs, tmp_path / "whole"), replace(config, checkpoint_every_s=0.0))
    assert curve(killed) == curve(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed", "whole"]
