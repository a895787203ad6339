"""`StoreWriter`: appends rows to a store. Several may write one folder at once, each into shards of its own."""

import fcntl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from eyas.errors import ExitCode, EyasError
from eyas.records.atomic import OutputExists, require_ordinary, require_place, write_failed
from eyas.store.about import MANIFEST, StoreAbout, read_about, write_about
from eyas.store.growing_shard import GrowingShard
from eyas.store.row import StoreRow
from eyas.store.shards import FINISHED, JOURNAL, OPEN, ShardName, shard_names, shards_of

SHARD_BYTES = 1 << 30
_MOST_WRITERS = 1000
_LOCK = ".lock"


class StoreInUse(EyasError):
    """Other processes write the store, where none may, or more than a store takes."""

    code = "store-in-use"
    exit_code = ExitCode.ENVIRONMENT


class StoreWriter:
    """Appends rows. Use `open`; a context manager, whose good end finishes the shard that still grows.

    Attributes:
        about: of the store.
        number: of this writer, from 0; no other living one has it.
        repaired: what was cut from an earlier writer's files, in words, to be told once.
    """

    def __init__(self, folder: Path, about: StoreAbout, number: int, lock: IO[bytes], shard_bytes: int) -> None:
        self.about, self.number = about, number
        self._folder, self._lock, self._shard_bytes = folder, lock, shard_bytes
        self._hasher = ThreadPoolExecutor(1)
        self._known, self._learned = set[str](), set[ShardName]()
        self._name, self._shard = _resume(folder, about, number)
        self.repaired = [] if self._shard is None else self._shard.repaired
        self._learn()

    @classmethod
    def open(cls, folder: Path, about: StoreAbout, *, shard_bytes: int = SHARD_BYTES) -> "StoreWriter":
        """A writer into `folder`, which is made, or resumed where it holds a store of the same kind.

        Args:
            shard_bytes: a shard with that many bytes of states is finished.

        Raises:
            StoreMismatch: the folder is a store of other states.
            OutputExists: the folder is not empty and not a store.
            StoreDamaged: a finished shard of it is damaged.
            StoreInUse: too many writers.
            WriteFailed: the folder cannot be written.
        """
        require_place(folder, folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / MANIFEST).exists() and {path.name for path in folder.iterdir()} - {_LOCK}:
                why = "it holds files and is not a store: writing into it could damage other work"
                raise OutputExists(f"{folder} is there already", str(folder), why, "choose another folder")
            with locked(folder):
                if (folder / MANIFEST).exists():
                    read_about(folder).require_same(about, folder, "give the same options, or another folder")
                else:
                    write_about(about, folder)
                return cls(folder, about, *_take_number(folder), shard_bytes)
        except OSError as error:
            raise write_failed(folder, error) from error

    def has(self, key: str) -> bool:
        """Whether the store held the row when this writer was opened or last flushed, or it was appended here."""
        return key in self._known

    @property
    def num_known(self) -> int:
        """Rows that `has` knows."""
        return len(self._known)

    def append(self, row: StoreRow) -> bool:
        """Append `row`; False where the store has it already. From here on it survives a kill of this process.

        Raises:
            WriteFailed: the disk is full; the rows before it are kept.
        """
        row.require_fits(self.about)
        if (key := row.key) in self._known:
            return False
        self._write(lambda: self._append(row))
        self._known.add(key)
        if self._shard is not None and self._shard.num_bytes >= self._shard_bytes:
            self._write(self._finish)
        return True

    def flush(self) -> None:
        """Make all rows survive a power cut, and learn of the rows that other writers have appended."""
        if self._shard is not None:
            self._write(self._shard.sync)
        self._learn()

    def close(self) -> None:
        """Finish the shard that still grows, and leave the store to others."""
        try:
            self._write(self._finish)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave the store without finishing a shard: as after a kill, the next writer appends to it."""
        if self._shard is not None:
            self._shard.close()
        self._shard = None
        self._lock.close()
        self._hasher.shutdown()

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _write(self, do: Callable[[], Any]) -> None:
        try:
            do()
        except OSError as error:
            raise write_failed(self._name.path(self._folder, OPEN), error) from error

    def _append(self, row: StoreRow) -> None:
        if self._shard is None:
            self._shard = GrowingShard(self._folder, self._name, self.about)
        self._shard.append(row, self._hasher)

    def _finish(self) -> None:
        if self._shard is not None:
            self._shard.finish()
            self._shard, self._name = None, ShardName(self._name.writer, self._name.number + 1)

    def _learn(self) -> None:
        for shard in shards_of(self._folder, self.about, but=self._learned):
            self._known.update(shard.index.key_list())
            if shard.is_finished:
                self._learned.add(shard.name)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """No other process takes a writer's number of the store meanwhile."""
    with _lock_file(folder / _LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def require_unwritten(folder: Path) -> None:
    """Raise `StoreInUse` where a writer is at the store; hold `locked` so that none comes."""
    for path in folder.glob("w*.lock"):
        with _lock_file(path) as file:
            if not _is_taken(file):
                why = "another process writes it, and what it writes would be lost"
                raise StoreInUse(f"{folder} is being written", str(path), why, "wait until it is done, or stop it")


def _resume(folder: Path, about: StoreAbout, number: int) -> tuple[ShardName, GrowingShard | None]:
    """Where writer `number` appends: its open shard, or the next name; what is left of a finished one is removed."""
    numbers = {
        suffix: {name.number for name in shard_names(folder, suffix) if name.writer == number}
        for suffix in (FINISHED, OPEN, JOURNAL)
    }
    growing = (numbers[OPEN] & numbers[JOURNAL]) - numbers[FINISHED]
    for suffix in (OPEN, JOURNAL):
        for at in numbers[suffix] - growing:
            ShardName(number, at).path(folder, suffix).unlink()
    if growing:
        name = ShardName(number, max(growing))
        return name, GrowingShard.resume(folder, name, about)
    return ShardName(number, max(numbers[FINISHED], default=-1) + 1), None


def _take_number(folder: Path) -> tuple[int, IO[bytes]]:
    """The first number that no living writer holds, and its lock."""
    for number in range(_MOST_WRITERS):
        file = _lock_file(folder / f"w{number:03d}.lock")  # open as long as the writer lives
        if _is_taken(file):
            return number, file
        file.close()
    why = "each of them holds a lock of this folder"
    raise StoreInUse(f"{_MOST_WRITERS} writers are at {folder}", str(folder), why, "wait until some are done")


def _lock_file(path: Path) -> IO[bytes]:
    """Open it; a pipe in its place would keep us waiting for a reader."""
    require_ordinary(path)
    return open(path, "ab")


def _is_taken(file: IO[bytes]) -> bool:
    """Whether the lock of `file` is ours now; the system gives it back when the process ends, however it does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
