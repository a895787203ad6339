import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from eyas.errors import EnvironmentMissing
from eyas.records.atomic import WriteFailed
from eyas.talk import Silent
from eyas.train.config import TrainConfig
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.examine import plan_train
from eyas.train.preflight.hardware import peak_flops
from eyas.train.request import TrainRequest, require_sinks
from eyas.train.run.metrics_journal import open_sinks, scalars_of
from eyas.train.run.train import train
from train_run_folder import make_run_folder


def test_lists_are_told_apart_by_unrolled_step_and_what_is_no_number_is_left_out():
    record = {"schema": "eyas.metrics/1", "step": 3, "loss": 0.5, "mfu": None, "accuracy": [0.25, None]}
    assert scalars_of(record) == {"loss": 0.5, "accuracy/step_0": 0.25}


def test_replays_stand_apart_from_steps():
    record = {"schema": "eyas.held-out/1", "step": 3, "accept_length": 2.5, "is_best": True}
    assert scalars_of(record) == {"held_out/accept_length": 2.5}


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H20", 148.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10G", 125.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA GH200 480GB", 989.4),
    ],
)
def test_a_device_is_not_taken_for_another_whose_name_it_holds(name, tflops):
    assert peak_flops(name) == tflops * 1e12


def test_an_unknown_device_has_no_peak():
    assert peak_flops("Some Accelerator 1") is None


@pytest.mark.parametrize("below", ["", "runs", "runs/first"])
def test_a_folder_for_event_files_that_cannot_be_made_is_told_before_the_run(tmp_path: Path, below: str):
    require_sinks(tmp_path / "to" / "be", None)
    assert not (tmp_path / "to").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteFailed, match="not a folder"):
        require_sinks(tmp_path / "file" / below, None)


def stub_wandb(monkeypatch, told: list[Any], run_id: str = "abc") -> None:
    """A package that tells what it is told."""
    wandb = ModuleType("wandb")
    run = SimpleNamespace(
        id=run_id, log=lambda scalars, step: told.append((step, scalars)), finish=lambda: told.append("finish")
    )
    wandb.init = lambda **about: told.append(about) or run  # type: ignore[attr-defined]
    wandb.__spec__ = ModuleSpec("wandb", None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)


def test_wandb_gets_every_record_at_its_step(monkeypatch):
    told = list[Any]()
    stub_wandb(monkeypatch, told)

    require_sinks(None, "hawks")
    (sink,) = open_sinks(None, "hawks", "draft", {"steps": 2}, {})
    sink.write({"schema": "eyas.metrics/1", "step": 1, "loss": 0.5, "accuracy": [0.25]})
    sink.write({"schema": "eyas.held-out/1", "step": 1, "accept_length": 2.0})
    sink.close()

    assert told == [
        {"project": "hawks", "name": "draft", "config": {"steps": 2}},
        (1, {"loss": 0.5, "accuracy/step_0": 0.25}),
        (1, {"held_out/accept_length": 2.0}),
        "finish",
    ]


def test_a_wandb_that_nobody_is_logged_in_to_is_no_bug_of_ours(monkeypatch):
    stub_wandb(monkeypatch, [])
    wandb: Any = sys.modules["wandb"]
    wandb.Error = type("Error", (Exception,), {})

    def init(**_: object) -> None:
        raise wandb.Error("api_key not configured (no-tty)")

    wandb.init = init
    with pytest.raises(EnvironmentMissing, match=r"api_key not configured[\s\S]*WANDB_MODE=offline"):
        open_sinks(None, "hawks", "draft", {}, {})


def test_a_run_that_wandb_knows_is_gone_on_with_in_its_own_project_alone(monkeypatch):
    told = list[Any]()
    stub_wandb(monkeypatch, told)
    (sink,) = open_sinks(None, "hawks", "draft", {}, {"hawks": "abc", "owls": "xyz"})
    assert sink.runs() == {"hawks": "abc"}
    open_sinks(None, "kites", "draft", {}, {"hawks": "abc"})
    assert [(about.get("id"), about.get("resume")) for about in told] == [("abc", "allow"), (None, None)]


def test_a_resumed_training_is_one_run_of_wandb(tmp_path: Path, monkeypatch):
    target, rows = make_run_folder(tmp_path)
    request = TrainRequest(target=target, rows=rows, out=tmp_path / "d", device="cpu", wandb="hawks")
    config = TrainConfig(steps=3, batch_tokens=150, draft_vocab_size=32, ttt_steps=2, checkpoint_every_s=1e-9)
    told, whole = list[Any](), Trainer.start_step

    def stopped(self, batch, number):
        if number == 2:
            raise KeyboardInterrupt
        return whole(self, batch, number)

    stub_wandb(monkeypatch, told, "first")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "start_step", stopped)
        train(request, config, plan_train(request, config, Silent()), Silent())
    stub_wandb(monkeypatch, told, "first")
    train(request, config, plan_train(request, config, Silent()), Silent())

    begun = [about for about in told if isinstance(about, dict)]
    assert [about.get("id") for about in begun] == [None, "first"]
    assert [line[0] for line in told if isinstance(line, tuple)] == [1, 2, 3]
