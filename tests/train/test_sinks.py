import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from eyas.records.atomic import WriteFailed
from eyas.train.device_peaks import peak_flops
from eyas.train.sinks import open_sinks, require_sinks, scalars_of


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
    with pytest.raises(WriteFailed, match="no folder"):
        require_sinks(tmp_path / "file" / below, None)


def test_wandb_gets_every_record_at_its_step(monkeypatch):
    told, wandb = list[Any](), ModuleType("wandb")
    run = SimpleNamespace(log=lambda scalars, step: told.append((step, scalars)), finish=lambda: told.append("finish"))
    wandb.init = lambda **about: told.append(about) or run  # type: ignore[attr-defined]
    wandb.__spec__ = ModuleSpec("wandb", None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)

    require_sinks(None, "hawks")
    (sink,) = open_sinks(None, "hawks", "draft", {"steps": 2})
    sink.write({"schema": "eyas.metrics/1", "step": 1, "loss": 0.5, "accuracy": [0.25]})
    sink.write({"schema": "eyas.held-out/1", "step": 1, "accept_length": 2.0})
    sink.close()

    assert told == [
        {"project": "hawks", "name": "draft", "config": {"steps": 2}},
        (1, {"loss": 0.5, "accuracy/step_0": 0.25}),
        (1, {"held_out/accept_length": 2.0}),
        "finish",
    ]
