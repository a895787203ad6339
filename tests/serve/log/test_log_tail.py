"""A log file that somebody else writes: times of old lines, rotation, size, odd bytes."""

import os
import time
from pathlib import Path

import pytest

from eyas.serve.log import log_tail
from eyas.serve.log.log_tail import LogTail

_AT = time.mktime((2026, 11, 29, 14, 0, 0, 0, 0, -1))


def stamped(second: int, text: str) -> str:
    return f"[2026-11-29 14:{second // 60:02d}:{second % 60:02d}] {text}\n"


def written(path: Path, text: str, at: float) -> LogTail:
    path.write_text(text)
    os.utime(path, (at, at))
    return LogTail(path)


def test_a_log_that_was_copied_minutes_later_keeps_its_durations(tmp_path: Path):
    text = stamped(0, "a") + stamped(90, "b")
    tail = written(tmp_path / "log", text, _AT + 90 + 540)

    first, last = tail.read(_AT + 5000)

    assert last.at - first.at == 90


def test_stamps_of_another_time_zone_are_moved_by_whole_quarters(tmp_path: Path):
    tail = written(tmp_path / "log", stamped(0, "a") + stamped(90, "b"), _AT + 90 + 7200)

    assert [line.at - _AT for line in tail.read(_AT + 9000)] == [7200, 7290]


def test_stamps_from_the_future_are_moved_back(tmp_path: Path):
    tail = written(tmp_path / "log", stamped(0, "a") + stamped(90, "b"), _AT + 90 - 3600)

    assert [line.at - _AT for line in tail.read(_AT + 9000)] == [-3600, -3510]


def dateless(second: int, text: str) -> str:
    return f"INFO 11-29 14:{second // 60:02d}:{second % 60:02d} [x.py:1] {text}\n"


def read_closed(tail: LogTail) -> list[float]:
    return [line.at - _AT for line in tail.read(_AT + 30 * 86400, is_open=False)]


@pytest.mark.parametrize("later_s", [9 * 86400, 13 * 3600 + 1000, 13.25 * 3600 - 3])
def test_a_copys_full_dates_are_its_times(tmp_path: Path, later_s: float):
    tail = written(tmp_path / "log", stamped(0, "a") + stamped(90, "b"), _AT + 90 + later_s)

    assert read_closed(tail) == [0, 90]
    assert (tail.is_copy, tail.has_age) == (True, True)


def test_a_copy_without_years_is_right_in_itself_and_has_no_age(tmp_path: Path):
    tail = written(tmp_path / "log", dateless(0, "a") + dateless(90, "b"), _AT + 9 * 86400)

    assert read_closed(tail) == [0, 90]
    assert (tail.is_copy, tail.has_age) == (True, False)


def test_a_log_without_stamps_may_be_a_copy_and_has_no_age(tmp_path: Path):
    tail = written(tmp_path / "log", "a\nb\n", _AT)

    assert read_closed(tail) == [0, 0]
    assert not tail.has_age


def test_stamps_far_in_the_future_end_when_the_file_was_written(tmp_path: Path):
    tail = written(tmp_path / "log", stamped(0, "a") + stamped(90, "b"), _AT - 9 * 86400)

    assert read_closed(tail) == [-9 * 86400 - 90, -9 * 86400]
    assert not tail.has_age


def test_a_closed_log_of_another_time_zone_has_an_age(tmp_path: Path):
    tail = written(tmp_path / "log", dateless(0, "a") + dateless(90, "b"), _AT + 91 + 7200)

    assert read_closed(tail) == [7200, 7290]
    assert (tail.is_copy, tail.has_age) == (False, True)


def test_a_log_that_is_open_is_no_copy_whatever_its_stamps(tmp_path: Path):
    tail = written(tmp_path / "log", stamped(0, "a") + stamped(90, "b"), _AT + 9 * 86400)

    assert [line.at - _AT for line in tail.read(_AT + 9 * 86400, is_open=True)] == [9 * 86400 - 90, 9 * 86400]
    assert not tail.is_copy


@pytest.fixture
def short_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_SLICE_BYTES", 1 << 14), ("_HEAD_BYTES", 1 << 16), ("_TAIL_BYTES", 1 << 17)):
        monkeypatch.setattr(log_tail, name, value)


@pytest.mark.soak
def test_a_log_of_200_mb_is_read_at_both_ends_only(tmp_path: Path):
    """Sparse on disk, as long as a server's of some weeks, and without a newline: the worst that can come."""
    path = tmp_path / "log"
    with open(path, "wb") as file:
        file.write(stamped(0, "first").encode())
        file.seek(200_000_000)
        file.write(b"\n" + stamped(90, "last").encode())
    tail = LogTail(path)

    begin = time.process_time()
    lines = tail.read(_AT + 100)

    assert time.process_time() - begin < 20
    assert (lines[0].message, lines[-1].message) == ("first", "last")
    assert tail.note.endswith("MiB in its middle were not read")
    assert all(len(line.raw) <= 1 << 16 for line in lines)


@pytest.mark.usefixtures("short_ends")
def test_lines_after_a_skipped_middle_have_an_editors_numbers(tmp_path: Path):
    text = "".join(f"line {n} {'x' * 200}\n" for n in range(1, 3001))
    tail = LogTail(written(tmp_path / "log", text, _AT).path)

    lines = tail.read(_AT)

    assert tail.skipped_bytes > 0
    assert lines[-1].message.startswith(f"line {lines[-1].number} ")
    assert lines[-1].number == 3000


def test_a_log_that_is_replaced_is_read_from_its_beginning(tmp_path: Path):
    path = tmp_path / "log"
    tail = written(path, "one\ntwo\n", _AT)
    tail.read(_AT)
    path.rename(tmp_path / "log.1")
    path.write_text("three\n")

    assert [line.message for line in tail.read(_AT)] == ["three"]


def test_a_log_that_is_cut_to_nothing_is_read_from_its_beginning(tmp_path: Path):
    path = tmp_path / "log"
    tail = written(path, "one\ntwo\n", _AT)
    tail.read(_AT)
    with open(path, "w") as file:
        file.write("3\n")

    assert [line.message for line in tail.read(_AT)] == ["3"]


def test_a_stamp_that_is_no_time_is_taken(tmp_path: Path):
    tail = written(tmp_path / "log", "[2026-13-45 99:99:99] a\nINFO 13-45 99:99:99 [x.py:1] b\n", _AT)

    assert [line.message for line in tail.read(_AT)] == ["a", "b"]


def test_an_old_last_line_without_a_newline_has_the_time_of_the_stamp_before_it(tmp_path: Path):
    tail = written(tmp_path / "log", stamped(0, "a") + stamped(90, "b") + "its last words", _AT + 90)
    _, before = tail.read(_AT + 7200)

    (last,) = tail.read(_AT + 7201)

    assert (last.message, last.at) == ("its last words", before.at)


def test_a_line_that_is_written_while_we_read_has_our_time(tmp_path: Path):
    tail = written(tmp_path / "log", stamped(0, "a"), _AT)
    tail.read(_AT + 7200)
    with open(tail.path, "a") as file:
        file.write("new\n")

    assert [line.at for line in tail.read(_AT + 7201)] == [_AT + 7201]


@pytest.mark.parametrize("what", ["a folder", "a pipe", "a device", "nothing that may be read"])
def test_a_log_that_is_no_file_any_more_is_said_and_waited_for(tmp_path: Path, what: str):
    tail = written(tmp_path / "log", stamped(1, "one"), _AT)
    assert len(tail.read(_AT)) == 1
    tail.path.unlink()
    if what == "a folder":
        tail.path.mkdir()
    elif what == "a pipe":
        os.mkfifo(tail.path)
    elif what == "a device":
        tail.path.symlink_to("/dev/zero")
    else:
        tail.path.symlink_to(tail.path.name)  # a link to itself

    assert tail.read(_AT + 1) == ()
    assert "cannot be read now" in tail.note

    tail.path.rmdir() if what == "a folder" else tail.path.unlink()
    tail.path.write_text(stamped(1, "one") + stamped(2, "two"))
    assert [line.message for line in tail.read(_AT + 2)][-1] == "two"
    assert tail.note == ""
