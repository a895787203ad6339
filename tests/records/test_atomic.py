import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eyas.records import atomic
from eyas.records.atomic import OutputExists, WriteFailed, atomic_file, atomic_folder, require_ordinary, write_text


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


def test_a_disk_that_is_full_for_safetensors_is_the_same_error(tmp_path: Path):
    from safetensors.numpy import save_file

    (tmp_path / "a").mkdir()
    with (
        pytest.raises(WriteFailed, match="Is a directory; no partial"),
        atomic_folder(tmp_path / "b") as folder,
    ):
        save_file({}, tmp_path / "a")
    assert not folder.exists()


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


def test_a_folder_that_appeared_meanwhile_is_not_overwritten(tmp_path: Path):
    out = tmp_path / "out"
    with pytest.raises(OutputExists), atomic_folder(out) as folder:
        (folder / "x").write_text("second")
        with atomic_folder(out) as faster:
            (faster / "x").write_text("first")
    assert (out / "x").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_replace_takes_only_what_bears_the_marker_or_is_empty(tmp_path: Path):
    out = tmp_path / "out"
    for content, is_ours in (({"thesis.txt": "work"}, False), ({}, True), ({"eyas.json": "{}", "more": ""}, True)):
        out.mkdir(exist_ok=True)
        for name in os.listdir(out):
            (out / name).unlink()
        for name, text in content.items():
            (out / name).write_text(text)
        if is_ours:
            with atomic_folder(out, replace=True, marker="eyas.json") as folder:
                (folder / "new").write_text("1")
            assert os.listdir(out) == ["new"]
        else:
            with (
                pytest.raises(OutputExists, match=r"no eyas\.json in it"),
                atomic_folder(out, replace=True, marker="eyas.json"),
            ):
                raise AssertionError("the block must not run")
            assert (out / "thesis.txt").read_text() == "work"


def test_replace_takes_neither_a_file_nor_a_link(tmp_path: Path):
    (tmp_path / "file").write_text("work")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("file", "link", "dangling"):
        with pytest.raises(OutputExists), atomic_folder(tmp_path / name, replace=True):
            raise AssertionError("the block must not run")
    assert (tmp_path / "file").read_text() == "work"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_swap_that_fails_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_one_step: bool):
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("old")
    if not in_one_step:
        monkeypatch.setattr(atomic, "_exchange", lambda aside, path: False)
    with atomic_folder(out, replace=True) as folder:
        (folder / "new").write_text("1")
    assert os.listdir(out) == ["new"]
    real = os.rename

    def failing(source: Path, goal: Path) -> None:
        if Path(goal) == out and Path(source).name != "old":
            raise OSError(28, "No space left on device")
        real(source, goal)

    monkeypatch.setattr(atomic, "_exchange", lambda aside, path: False)
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(WriteFailed), atomic_folder(out, replace=True) as folder:
        (folder / "newer").write_text("1")
    assert os.listdir(out) == ["new"]
    assert os.listdir(tmp_path) == ["out"]


def test_a_folder_that_a_killed_run_had_moved_away_comes_back(tmp_path: Path):
    leaving = tmp_path / ".out[1].999999999.abc.old.part"
    (leaving / "old").mkdir(parents=True)
    (leaving / "old" / "x").write_text("work")
    with pytest.raises(OutputExists), atomic_folder(tmp_path / "out[1]"):
        raise AssertionError("the block must not run")
    assert (tmp_path / "out[1]" / "x").read_text() == "work"
    assert os.listdir(tmp_path) == ["out[1]"]


def test_a_link_is_written_through_and_a_device_or_folder_is_refused(tmp_path: Path):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_text(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"
    (tmp_path / "to-come").symlink_to("there.json")
    require_ordinary(tmp_path / "to-come")
    write_text(tmp_path / "to-come", "new")
    assert (tmp_path / "there.json").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(WriteFailed, match="not a file"):
            write_text(tmp_path / name, "x")
    assert (tmp_path / "pipe").is_fifo()


def test_a_name_too_long_for_the_file_system_is_a_clear_error(tmp_path: Path):
    for length in (300, 250):  # the second leaves no room for what is written aside
        with pytest.raises(WriteFailed, match="too long"):
            require_ordinary(tmp_path / ("a" * length))
    with pytest.raises(WriteFailed), atomic_folder(tmp_path / ("a" * 300)):
        raise AssertionError("the block must not run")
    with pytest.raises(WriteFailed):
        write_text(tmp_path / ("a" * 300), "x")


def test_half_a_surrogate_pair_is_escaped(tmp_path: Path):
    write_text(tmp_path / "a.json", '"\udcff"')
    assert (tmp_path / "a.json").read_text() == '"\\udcff"'


def test_what_is_written_is_synced_before_its_rename_and_the_rename_after(tmp_path: Path, monkeypatch):
    there: list[tuple[str, bool]] = []

    def note(path: Path):
        return lambda descriptor: there.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))

    monkeypatch.setattr(os, "fsync", note(tmp_path / "file"))
    write_text(tmp_path / "file", "1")

    assert [is_there for _, is_there in there] == [False, True]
    assert there[0][0].endswith(".part")
    assert there[1][0] == str(tmp_path)

    there.clear()
    monkeypatch.setattr(os, "fsync", note(tmp_path / "folder"))
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "x").write_text("1")

    synced = [(Path(path).name, is_there) for path, is_there in there]
    assert ("x", False) in synced
    assert ("deep", False) in synced
    assert synced[-1] == (tmp_path.name, True)


def test_what_a_run_in_another_container_writes_is_left_alone(tmp_path: Path):
    """Its process number may be free here while the run lives."""
    other, ours = tmp_path / ".f.999999999-1.abc.part", tmp_path / f".f.999999999-{atomic._pid_space()}.abc.part"
    for leaving in (other, ours):
        leaving.write_text("half")
    atomic.write_text(tmp_path / "f", "whole")

    assert other.exists()
    assert not ours.exists()
