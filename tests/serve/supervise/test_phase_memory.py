"""Remembered durations and the ETA that comes of them; the timeline that they come from."""

from pathlib import Path

import pytest

from eyas.serve.supervise.phase_times import PhaseMemory, StartKey
from fake_world import drive
from scenario_worlds import SGLANG, ready, sglang_world

KEY = StartKey(engine="sglang", version="0.5.15.post1", target="smol", draft="d135", hardware="H200")


def test_the_median_of_the_remembered_starts_is_given(tmp_path: Path):
    memory = PhaseMemory(tmp_path)
    for seconds in (10.0, 30.0, 20.0):
        memory.remember(KEY, {"weights:target": seconds})

    assert memory.typical(KEY) == {"weights:target": 20.0}


def test_another_model_has_a_memory_of_its_own(tmp_path: Path):
    memory = PhaseMemory(tmp_path)
    memory.remember(KEY, {"weights:target": 10.0})

    assert memory.typical(StartKey(engine="sglang", version="0.5.15.post1", target="other")) == {}


def test_only_the_last_ten_starts_count(tmp_path: Path):
    memory = PhaseMemory(tmp_path)
    for seconds in [1000.0] * 5 + [10.0] * 10:
        memory.remember(KEY, {"weights:target": seconds})

    assert memory.typical(KEY) == {"weights:target": 10.0}


def test_a_damaged_memory_is_no_memory(tmp_path: Path):
    memory = PhaseMemory(tmp_path)
    memory.remember(KEY, {"weights:target": 10.0})
    next(tmp_path.glob("*.json")).write_text("{not json")

    assert memory.typical(KEY) == {}


def test_a_second_start_knows_when_it_will_be_ready(tmp_path: Path):
    memory = PhaseMemory(tmp_path)
    first = sglang_world()
    end = ready(first)
    drive(first, *SGLANG, until=end + 3, memory=memory, key=KEY)
    second = sglang_world()
    ready(second)
    run = drive(second, *SGLANG, until=end + 3, memory=memory, key=KEY)

    half_way = run.at(end / 2)
    assert half_way.ready_eta_s == pytest.approx(end / 2, abs=3)
    assert run.at(2).ready_eta_s is not None


def test_the_timelines_phases_fill_the_start_without_gaps():
    world = sglang_world()
    end = ready(world)
    document = drive(world, *SGLANG, until=end + 3).supervisor.timeline_document()
    phases = document["phases"]

    assert document["schema"] == "eyas.timeline/1"
    assert document["ready_after_s"] == pytest.approx(end, abs=1.5)
    assert sum(phase["duration_s"] for phase in phases[:-1]) == pytest.approx(document["ready_after_s"], abs=0.01)
    assert phases[-1]["duration_s"] is None
    assert [row["state"] for row in document["states"]] == ["starting", "warming-up", "ready"]
