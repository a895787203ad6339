from pathlib import Path

import pytest

from eyas.records.atomic import WriteFailed
from eyas.train.device_peaks import peak_flops
from eyas.train.sinks import require_sinks, scalars_of


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
