"""Who writes a log: real files, real descriptors, the time as an argument."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eyas.serve.log import log_writers
from eyas.serve.log.log_writers import LogWriters, has_writer


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text("a line\n")
    return path


@pytest.fixture
def all_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may not be allowed to read everybody's descriptors: only what is found counts here."""
    monkeypatch.setattr(log_writers, "has_writer", lambda status: (has_writer(status)[0], True))


def opened_by_another(path: Path, mode: str) -> subprocess.Popen[bytes]:
    code = "import sys; f = open(sys.argv[1], sys.argv[2]); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.fixture
def writer(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = opened_by_another(log, "a")
    yield process
    process.kill()
    process.communicate()


def test_who_has_it_open_for_writing_writes_it(log: Path, writer: subprocess.Popen[bytes]):
    assert has_writer(log.stat())[0]


def test_who_only_reads_it_does_not(log: Path):
    process = opened_by_another(log, "r")

    assert not has_writer(log.stat())[0]

    process.communicate()


def test_a_silent_log_that_is_open_is_being_written_however_old(log: Path, writer: subprocess.Popen[bytes]):
    os.utime(log, (0, 0))

    assert LogWriters(log).life(time.time(), is_copy=False) == "written"


@pytest.mark.usefixtures("all_seen")
def test_a_writer_that_was_seen_and_is_gone_has_closed_it(log: Path, writer: subprocess.Popen[bytes]):
    writers = LogWriters(log)
    writers.life(1000.0, is_copy=False)
    writer.kill()
    writer.communicate()

    assert [writers.life(1000.0 + s, is_copy=False) for s in (3, 6)] == ["written", "closed"]


@pytest.mark.usefixtures("all_seen")
def test_a_log_that_nobody_has_open_is_over(log: Path):
    os.utime(log, (900, 900))
    writers = LogWriters(log)

    assert [writers.life(now, is_copy=False) for now in (904.0, 906.0)] == ["written", "over"]


@pytest.mark.usefixtures("all_seen")
def test_a_copy_is_over_at_once(log: Path):
    assert LogWriters(log).life(log.stat().st_mtime, is_copy=True) == "over"


@pytest.mark.usefixtures("all_seen")
def test_a_log_that_grows_is_written_by_somebody_unseen(log: Path):
    os.utime(log, (900, 900))
    writers = LogWriters(log)
    writers.life(901.0, is_copy=False)
    with open(log, "a") as file:
        file.write("more\n")

    assert [writers.life(now, is_copy=False) for now in (950.0, 954.0, 956.0)] == ["written", "written", "over"]


def test_where_descriptors_cannot_be_read_a_minute_is_waited(log: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_writers, "has_writer", lambda status: (False, False))
    os.utime(log, (900, 900))
    writers = LogWriters(log)

    assert [writers.life(now, is_copy=False) for now in (955.0, 961.0)] == ["written", "over"]


@pytest.mark.usefixtures("all_seen")
def test_a_file_from_the_future_does_not_stay_young_for_ever(log: Path):
    os.utime(log, (9000, 9000))
    writers = LogWriters(log)

    assert [writers.life(now, is_copy=False) for now in (1000.0, 1006.0)] == ["written", "over"]


def test_a_pipe_is_always_followed(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")

    assert LogWriters(tmp_path / "pipe").life(1e10, is_copy=False) == "written"


def test_the_user_decides(log: Path, writer: subprocess.Popen[bytes]):
    assert LogWriters(log, follow=False).life(0.0, is_copy=False) == "unfollowed"
    assert LogWriters(log, follow=True).life(1e10, is_copy=True) == "written"
