"""Slow is not hung: whoever still moves is never called stalled.

Times are fake seconds; the real supervisor is driven over `fake_world.World`.
"""

import pytest

from fake_world import Run, World, drive, gpu, sglang
from scenario_worlds import EAGLE3, SGLANG, VLLM, sglang_world, vllm_world


def test_a_slow_disk_is_loading_not_hanging():
    world = sglang_world(cpu=0.0)
    world.replay(EAGLE3, until=b"Load weight end")
    world.process(40, 200, "sglang::scheduler_TP0", parent=100, disk=30e6)
    run = drive(world, *SGLANG, until=1800)

    assert run.names == ["starting"]
    assert "MB/s read from disk" in run.last.phase.title  # type: ignore[union-attr]


def test_pages_read_in_are_progress_where_disk_reads_cannot_be_seen():
    world = sglang_world(cpu=0.0)
    world.replay(EAGLE3, until=b"Load weight end")
    world.process(40, 200, "sglang::scheduler_TP0", parent=100, page_ins=500)

    assert drive(world, *SGLANG, until=1200).names == ["starting"]


def test_compilers_at_work_are_jit_not_a_hang():
    """sglang#9867: 11-23 minutes of JIT."""
    world = sglang_world(cpu=0.0)
    world.replay(EAGLE3, until=b"Capture target verify CUDA graph begin")
    world.process(60, 400, "/usr/local/cuda/bin/nvcc -O3 kernel.cu", parent=200, cpu=0.0)
    world.process(60, 401, "cicc --arch compute_90", parent=400, cpu=1.0)
    run = drive(world, *SGLANG, until=1380)

    assert run.names == ["starting"]
    assert "compilers at work" in run.last.phase.title  # type: ignore[union-attr]


def test_autotune_has_a_longer_patience():
    world = sglang_world(cpu=0.0)
    end = world.replay(EAGLE3, until=b"Capture target prefill CUDA graph begin")
    world.log(end + 1, sglang(end + 1, "Running FlashInfer autotune with cache: /c"))

    assert drive(world, *SGLANG, until=end + 280).names == ["starting"]
    assert drive_again(end).names[-1] == "stalled"


def drive_again(end: float) -> Run:
    world = sglang_world(cpu=0.0)
    world.replay(EAGLE3, until=b"Capture target prefill CUDA graph begin")
    world.log(end + 1, sglang(end + 1, "Running FlashInfer autotune with cache: /c"))
    return drive(world, *SGLANG, until=end + 400)


def test_torch_compile_may_think_as_long_as_it_works():
    world = vllm_world(cpu=1.0)
    end = world.replay("vllm-0.25.1-eagle3.log", until=b"Cache the graph of compile range")

    assert drive(world, *VLLM, until=end + 900).names == ["starting"]


def test_imports_from_a_slow_file_system_are_starting():
    world = World()
    world.process(0, 100, "python -m sglang.launch_server", cpu=0.5)
    world.at(0, port="refused", health="refused")

    assert drive(world, *SGLANG, until=500).names == ["starting"]


def test_gpu_memory_that_grows_is_progress():
    world = sglang_world(cpu=0.0)
    end = world.replay(EAGLE3, until=b"Load weight end")
    for second in range(int(end), int(end) + 900, 60):
        world.at(second, gpus=gpu(1 + second / 100))

    assert drive(world, *SGLANG, until=end + 880).names == ["starting"]


def test_stacks_that_change_mean_slow():
    world = sglang_world(cpu=0.0)
    end = world.replay(EAGLE3, until=b"Capture target verify CUDA graph end")
    world.stack_frames = lambda second: {"TP0": (f"capture_one_batch_size (x.py:{int(second)})",)}
    run = drive(world, *SGLANG, until=end + 150)

    assert "stalled" not in run.names
    assert any("slow, not hung" in s.reason for s in run.snapshots)


def test_an_eta_comes_from_the_bar():
    world = sglang_world()
    end = world.replay(EAGLE3, until=b"Load weight end")
    world.log(end + 1, b"\rMulti-thread loading shards:  25%| | 16/64 [02:00<06:00, 7.5s/it]")
    run = drive(world, *SGLANG, until=end + 10)

    phase = run.last.phase
    assert phase is not None
    assert phase.progress is not None
    assert (phase.progress.done, phase.progress.total) == (16, 64)
    assert phase.eta_s == pytest.approx(360, abs=15)
