import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eyas.records.atomic import OutputExists, WriteFailed, atomic_file, atomic_folder, write_text


def test_a_file_appears_only_when_the_block_ends_well(tmp_path: Path):
    path = tmp_path / "deep" / "a.json"
    with pytest.raises(RuntimeError), atomic_file(path) as file:
        file.write(b"half")
        raise RuntimeError

    assert list(path.parent.iterdir()) == []

    write_text(path, "whole")
    assert path.read_text() == "whole"
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_failed_rewrite_keeps_the_old_file(tmp_path: Path):
    path = tmp_path / "a"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), atomic_file(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt

    assert path.read_text() == "old"


def test_a_folder_is_whole_or_absent(tmp_path: Path):
    out = tmp_path / "out"
    with pytest.raises(ValueError), atomic_folder(out) as folder:
        (folder / "x").write_text("1")
        raise ValueError

    assert list(tmp_path.iterdir()) == []
    with atomic_folder(out) as folder:
        (folder / "x").write_text("1")
        assert not out.exists()
    assert (out / "x").read_text() == "1"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_existing_folder_is_refused_unless_it_is_to_be_replaced(tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("work")
    with pytest.raises(OutputExists) as caught, atomic_folder(out):
        pass
    assert str(caught.value).startswith(f"error[output-exists]: {out} is there already")
    assert (out / "mine").read_text() == "work"

    with atomic_folder(out, replace=True) as folder:
        (folder / "new").write_text("1")
    assert [p.name for p in out.iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path: Path):
    with pytest.raises(WriteFailed) as caught, atomic_file(tmp_path / "a") as file:
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"x")
        file.write(b"never")
    assert "No space left on device" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


_KILLED = """
import sys, time
from pathlib import Path
from eyas.records.atomic import atomic_folder
with atomic_folder(Path(sys.argv[1])) as folder:
    (folder / "big").write_bytes(b"x" * 100000)
    print("inside", flush=True)
    time.sleep(60)
"""


def test_kill_nine_leaves_no_folder_and_the_next_run_sweeps_the_leavings(tmp_path: Path):
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", _KILLED, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "inside\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    time.sleep(0.05)

    assert not out.exists()
    assert len(list(tmp_path.iterdir())) == 1, "the hidden leaving of the killed run"
    with atomic_folder(out) as folder:
        (folder / "x").write_text("1")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
