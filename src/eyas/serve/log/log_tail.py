"""Follows a log that another program writes: new bytes to lines, with times; truncation and rotation are seen."""

import errno
import math
import os
import select
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from eyas.errors import ExitCode, EyasError
from eyas.serve.facts.evidence import Bar, LogLine
from eyas.serve.log.log_lines import LineSplitter, parse_bar

_SLICE_BYTES = 1 << 20
_HEAD_BYTES = 4 << 20  # the start-up of eight ranks takes less
_TAIL_BYTES = 8 << 20
_MOST_COUNTED_BYTES = 1 << 30  # of a longer middle the first lines are not counted: line numbers are then too low
_FIRST_WAIT_MS, _NEXT_WAIT_MS = 1000, 100
_ZONE_STEP_S = 900.0  # time zones differ by quarters of an hour
_WIDEST_ZONES_S = 26 * 3600.0  # from UTC-12 to UTC+14
_CLOCKS_APART_S = 5.0  # a file server's clock against the one that stamps the lines
_EARLY_S, _LATE_S = 2.0, 5.0  # of a stamp against the time when its line reached the file


class LogUnreadable(EyasError):
    """A log that cannot be opened."""

    code = "log-unreadable"
    exit_code = ExitCode.USAGE


class LogTail:
    """One file. A log that exists already is old: its lines keep the times printed in them.

    Args:
        path: the file; without `must_exist` it may come into being later, and all of it is new.

    Raises:
        LogUnreadable: it cannot be read, or is not there although it must be.
    """

    def __init__(self, path: Path, *, must_exist: bool = True) -> None:
        self.path = Path(path)
        self._splitter = LineSplitter()
        self._offset = 0
        self._inode: int | None = None
        self._is_first = must_exist
        self._found: _LogTime | None = None  # while nothing has been written since we came
        self.is_copy = False
        self.has_age = True
        self.written_at: float | None = None
        self.skipped_bytes = 0
        self._problem = ""
        if must_exist:
            try:
                self._open().close()
            except OSError as error:
                raise LogUnreadable(
                    f"cannot read {path}",
                    str(path),
                    error.strerror or str(error),
                    "give the file that the engine's stdout and stderr go to, its PID, or its URL",
                ) from error

    def _open(self) -> IO[bytes]:
        """The file, opened without waiting: what is a file now may be a pipe or a device at the next look."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return open(descriptor, "rb")
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file: it cannot be read again from its beginning")

    def read(self, now: float, *, is_open: bool = True) -> tuple[LogLine, ...]:
        """What was written since the last time; `is_open` = a process writes it, so it is not a copy."""
        self._problem = ""
        try:
            with self._open() as file:
                return self._read(file, now, is_open=is_open)
        except FileNotFoundError:
            return ()
        except OSError as error:
            self._problem = f"{self.path} cannot be read now: {error.strerror or error}"
            return ()

    def _read(self, file: IO[bytes], now: float, *, is_open: bool) -> tuple[LogLine, ...]:
        status = os.fstat(file.fileno())
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._inode, self._offset, self._splitter = status.st_ino, 0, LineSplitter()
        file.seek(self._offset)
        lines: list[LogLine] = []
        before, num_bytes = self._offset, 0
        while data := file.read(_SLICE_BYTES):
            self._offset += len(data)
            lines += self._splitter.feed(data, now)
            if self._offset - before == _HEAD_BYTES:
                lines += self._skip_middle(file, status.st_size, now)
            num_bytes += len(data)
            if num_bytes > _HEAD_BYTES + 2 * _TAIL_BYTES:
                break  # it grows faster than it is read: the rest at the next look
        if self._offset != before:
            self._found, self.is_copy, self.has_age = None, False, True
        elif self._splitter.pending and self.pending_bar is None:
            # The last line ended without a newline, as the last words of a process do.
            lines += self._splitter.flush(now)
        if self._is_first and lines:
            self._is_first = False
            self._found = _LogTime.of(lines, min(status.st_mtime, now), is_open=is_open)
            self.is_copy, self.has_age = self._found.is_copy, self._found.is_known
            self.written_at = None if self.is_copy else self._found.last_at
        return self._found.dated(lines) if self._found is not None else tuple(lines)

    def _skip_middle(self, file: IO[bytes], size: int, now: float) -> Iterator[LogLine]:
        """Of a log that is too long for one look, the beginning and the end are read; lines between are counted."""
        end = size - _TAIL_BYTES
        num_newlines = 0
        if end - self._offset > _MOST_COUNTED_BYTES:
            self.skipped_bytes += end - self._offset - _MOST_COUNTED_BYTES
            self._offset = file.seek(end - _MOST_COUNTED_BYTES)
        while self._offset < end and (data := file.read(min(_SLICE_BYTES, end - self._offset))):
            self._offset += len(data)
            self.skipped_bytes += len(data)
            num_newlines += data.count(b"\n")
        if self.skipped_bytes:
            yield from self._splitter.skip(num_newlines, now)

    @property
    def note(self) -> str:
        """What was left out, or why it cannot be read now, or ""."""
        if self._problem or not self.skipped_bytes:
            return self._problem
        return f"{self.path.name} is long: {self.skipped_bytes >> 20} MiB in its middle were not read"

    @property
    def pending_bar(self) -> Bar | None:
        """The bar in the unended rest of the log."""
        return parse_bar(self._splitter.pending)


class LogStream:
    """A log that comes through a pipe: `eyas watch -`, or <(journalctl -f ...). What was read is gone, and it may end.

    Args:
        path: the pipe.

    Raises:
        LogUnreadable: it cannot be opened.
    """

    is_copy, has_age, written_at = False, True, None

    def __init__(self, path: Path) -> None:
        self.path = path
        self._splitter = LineSplitter()
        self._times: _LogTime | None = None
        self._is_first, self.has_ended = True, False
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.fstat(self._descriptor)
        except OSError as error:
            do = "give a file, or pipe the log in: ... | eyas watch -"
            raise LogUnreadable(f"cannot read {path}", str(path), error.strerror or str(error), do) from error

    def read(self, now: float, *, is_open: bool = True) -> tuple[LogLine, ...]:
        """What has come since the last read; the first read, and one after a full slice, waits a moment for more."""
        lines: list[LogLine] = []
        num_bytes, wait_ms = 0, _FIRST_WAIT_MS if self._is_first else 0
        while num_bytes < _HEAD_BYTES + _TAIL_BYTES and (data := self._next(wait_ms)):
            num_bytes += len(data)
            wait_ms = _NEXT_WAIT_MS
            lines += self._splitter.feed(data, now)
        if self.has_ended:
            lines += self._splitter.flush(now)
        if self._is_first and lines:
            self._is_first = False
            return _LogTime.of(lines, now, is_open=not self.has_ended).dated(lines)
        return tuple(lines)

    def _next(self, wait_ms: float) -> bytes:
        """A piece; b"" if none comes in time, or none comes any more."""
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLIN | select.POLLHUP)
        if self.has_ended or not waiting.poll(wait_ms):
            return b""
        data = os.read(self._descriptor, _SLICE_BYTES)
        self.has_ended = not data
        return data

    @property
    def note(self) -> str:
        """Nothing is left out."""
        return ""

    @property
    def pending_bar(self) -> Bar | None:
        """The bar in the unended rest."""
        return parse_bar(self._splitter.pending)


def open_log(path: Path, *, must_exist: bool = True) -> "LogTail | LogStream":
    """A log by its path: a file is followed, a pipe is read as it comes.

    Raises:
        LogUnreadable: it cannot be read.
    """
    return LogStream(path) if path.is_fifo() else LogTail(path, must_exist=must_exist)


@dataclass(slots=True)
class _LogTime:
    """Gives times to lines written before eyas looked: a line without a stamp takes the stamp of the line before it.

    `shift` corrects for a log printed in another time zone: stamps are moved by it, never past `last_at`. It is 0 if no
    time zone explains when the file was last written; the file is then a copy.

    Attributes:
        is_copy: the file was written long after its lines.
        is_known: the times are absolute; if False, only the differences between them are right.
    """

    shift: float
    at: float
    last_at: float
    is_copy: bool = False
    is_known: bool = True

    @classmethod
    def of(cls, lines: Sequence[LogLine], last_at: float, *, is_open: bool) -> "_LogTime":
        """The time of a log that was last written at `last_at`; all of it then, where no line has a stamp."""
        stamped = [line for line in lines if line.stamp is not None]
        if not stamped:
            return cls(0.0, last_at, last_at, is_known=is_open)
        first, last = stamped[0].stamp or 0.0, stamped[-1].stamp or 0.0
        apart = last_at - last
        zone = math.floor((apart + _CLOCKS_APART_S) / _ZONE_STEP_S) * _ZONE_STEP_S
        is_zone = abs(zone) <= _WIDEST_ZONES_S and (is_open or zone == 0 or -_EARLY_S <= apart - zone <= _LATE_S)
        shift = zone if is_zone else apart if apart < 0 or is_open else 0.0
        return cls(
            shift,
            first + shift,
            last_at,
            is_copy=not is_open and not is_zone and (lines[-1] is stamped[-1] or abs(zone) > _WIDEST_ZONES_S),
            is_known=is_zone or (apart >= 0 and stamped[-1].has_full_date),
        )

    def dated(self, lines: Sequence[LogLine]) -> tuple[LogLine, ...]:
        """The next lines with their times."""
        done: list[LogLine] = []
        for line in lines:
            if line.stamp is not None:
                self.at = max(self.at, line.stamp + self.shift)
            done.append(replace(line, at=min(self.at, self.last_at)))
        return tuple(done)
