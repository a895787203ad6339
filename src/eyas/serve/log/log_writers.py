"""Whether a process still writes a log: which has it open, and when it last grew. Reads /proc; judges no line."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from eyas.serve.facts.evidence import LogLife

_PROC = Path("/proc")
_SCAN_S = 2.0
_CLOSED_S = 5.0  # who opens the file for each line is not seen between two of them
_UNSEEN_S = 60.0  # where other people's descriptors cannot be read: nothing was written for so long


@dataclass(slots=True)
class LogWriters:
    """One log's writers over time.

    Args:
        follow: True = it is taken as being written, False = as it is; None = found out.
    """

    path: Path
    follow: bool | None = None
    _size: int = -1
    _grew_at: float = -1e9
    _open_at: float | None = None
    _scanned_at: float = -1e9
    _sees_all: bool = True

    def is_open(self, now: float) -> bool:
        """Whether a process that eyas can see has it open for writing."""
        status = self._status()
        if self.follow is not None or status is None or not stat.S_ISREG(status.st_mode):
            return self.follow is not False
        if status.st_size != self._size:
            # A clock that is ahead of ours must not keep a log young for ever.
            self._grew_at = now if self._size >= 0 or status.st_mtime > now else status.st_mtime
            self._size = status.st_size
        if now - max(self._scanned_at, self._grew_at if self._open_at is not None else -1e9) >= _SCAN_S:
            self._scanned_at = now
            found, self._sees_all = has_writer(status)
            self._open_at = now if found else self._open_at
        return self._open_at == self._scanned_at

    def life(self, now: float, *, is_copy: bool) -> LogLife:
        """What is known of its end.

        Args:
            is_copy: its own times say that it was not written when the file was: no process writes it.
        """
        if self.is_open(now):
            return "written"
        if self.follow is False:
            return "unfollowed"
        if self._open_at is not None:
            return "closed" if now - max(self._open_at, self._grew_at) >= _CLOSED_S else "written"
        patience = 0.0 if is_copy else _CLOSED_S if self._sees_all else _UNSEEN_S
        return "over" if now - self._grew_at >= patience else "written"

    def _status(self) -> os.stat_result | None:
        try:
            return self.path.stat()
        except OSError:  # rotated away: the next one is still to come
            return None


def has_writer(file: os.stat_result, proc: Path = _PROC) -> tuple[bool, bool]:
    """Whether a process has the file open for writing; whether all processes' descriptors could be read."""
    sees_all = True
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            descriptors = list((process / "fd").iterdir())
        except PermissionError:
            sees_all = False
            continue
        except OSError:  # it has ended
            continue
        if any(_is_open_for_writing(process, descriptor, file) for descriptor in descriptors):
            return True, sees_all
    return False, sees_all


def _is_open_for_writing(process: Path, descriptor: Path, file: os.stat_result) -> bool:
    try:
        if not os.readlink(descriptor).startswith("/"):  # a pipe or a socket
            return False
        other = descriptor.stat()
        if (other.st_dev, other.st_ino) != (file.st_dev, file.st_ino):
            return False
        info = (process / "fdinfo" / descriptor.name).read_text(encoding="utf-8")
    except OSError:
        return False
    flags = next((int(line.split()[1], 8) for line in info.splitlines() if line.startswith("flags:")), 0)
    return flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
