"""A log file that somebody else writes: times of old lines, rotation, size, odd bytes."""

import os
import time
from pathlib import Path

from eyas.serve.log_tail import LogTail

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
