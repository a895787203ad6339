"""How long a process waited for a processor while other programs ran."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eyas.bench.processor_wait import BUSY_SHARE, ProcessorWait, is_busy

_SPIN = "while True: pass"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_a_program_on_the_same_processor_is_seen():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    other = subprocess.Popen([sys.executable, "-S", "-c", _SPIN])  # inherits the one processor
    try:
        time.sleep(0.1)
        wait = ProcessorWait()
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            pass
        share = wait.share()
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, before)
    if share is None:
        pytest.skip("this kernel does not count")
    assert share > 0.2
    assert is_busy(share)


def threads(folder: Path, **waited_ns: int) -> Path:
    for name, ns in waited_ns.items():
        (folder / name).mkdir(exist_ok=True, parents=True)
        (folder / name / "schedstat").write_text(f"5000 {ns} 7\n")
    return folder


def test_the_thread_that_waited_most_counts_and_what_was_before_does_not(tmp_path: Path):
    ticks = iter([10.0, 20.0])
    wait = ProcessorWait(tasks=threads(tmp_path, a=10**9, b=3 * 10**9), clock=lambda: next(ticks))

    threads(tmp_path, a=5 * 10**9, b=4 * 10**9, c=2 * 10**9)

    assert wait.share() == 0.4


@pytest.mark.parametrize("text", ["", "x y z", "1"])
def test_a_kernel_that_does_not_say_leaves_it_unknown(tmp_path: Path, text: str):
    (threads(tmp_path, a=1) / "a" / "schedstat").write_text(text)

    assert ProcessorWait(tasks=tmp_path).share() is None
    assert ProcessorWait(tasks=tmp_path / "none").share() is None
    assert not is_busy(None)
    assert not is_busy(BUSY_SHARE / 2)
