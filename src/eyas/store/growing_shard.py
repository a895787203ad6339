"""A shard that still grows: states in one file, their index in a journal, and how it becomes a finished one.

A row's states are written, then its entry in the journal: what a kill leaves is whole rows and a tail, which `resume`
cuts. A finished shard gets its index and its header, and a new name.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import IO

import numpy as np

from eyas.records.atomic import fsync_path
from eyas.store.about import StoreAbout
from eyas.store.journal import Entry, entry_bytes
from eyas.store.layout import HEAD_BYTES, index_bytes, index_of
from eyas.store.row import StoreRow
from eyas.store.shards import FINISHED, JOURNAL, OPEN, ShardName, whole_entries

_SLICE = 1 << 26


class GrowingShard:
    """Appends rows to one shard. Every method raises `OSError` where the disk does not take it.

    Args:
        folder: of the store.
        entries: of the rows that its files hold already.
        repaired: what was cut from its files, in words.
    """

    def __init__(self, folder: Path, name: ShardName, about: StoreAbout, entries: Sequence[Entry] = ()) -> None:
        self.name, self.repaired = name, list[str]()
        self._folder, self._about = folder, about
        self._rows, self._digests = [entry.row for entry in entries], [entry.digest for entry in entries]
        # the journal first: states without one belong to nothing and are removed
        self._journal = open(name.path(folder, JOURNAL), "ab", buffering=0)  # noqa: SIM115 - until it is finished
        self._states = open(name.path(folder, OPEN), "ab", buffering=0)  # noqa: SIM115
        positions = sum(len(row.states) for row in self._rows)
        self._size = HEAD_BYTES + positions * about.width * about.numpy_dtype.itemsize
        self._journal_size = entries[-1].end if entries else 0
        for file, size in ((self._states, self._size), (self._journal, self._journal_size)):
            if (extra := os.fstat(file.fileno()).st_size - size) > 0:
                self.repaired.append(f"{Path(file.name).name}: {extra} bytes of an unfinished row cut")
            file.truncate(size)

    @classmethod
    def resume(cls, folder: Path, name: ShardName, about: StoreAbout) -> "GrowingShard":
        """The shard as a kill or a power cut left it, with what is torn cut off."""
        entries = whole_entries(folder, name, about)
        num_sound = _num_sound(name.path(folder, OPEN), entries, about)
        shard = cls(folder, name, about, entries[:num_sound])
        if lost := len(entries) - num_sound:
            shard.repaired.append(f"{name}: {lost} rows cut whose states were not on the disk")
        return shard

    @property
    def num_bytes(self) -> int:
        """Of the states."""
        return self._size - HEAD_BYTES

    def append(self, row: StoreRow, hasher: Executor) -> None:
        """Write `row`; where that fails, the files are as before."""
        try:
            hashed = hasher.submit(row.digest)  # beside the copy: each runs at 1.5 to 3 GB/s
            _write_all(self._states, np.ascontiguousarray(row.states).reshape(-1).view(np.uint8).data)
            entry = entry_bytes(row, digest := hashed.result())
            _write_all(self._journal, memoryview(entry))
        except BaseException:
            self._journal.truncate(self._journal_size)
            self._states.truncate(self._size)
            raise
        self._size, self._journal_size = self._size + row.states.nbytes, self._journal_size + len(entry)
        self._rows.append(_without_states(row))
        self._digests.append(digest)

    def sync(self) -> None:
        """Make it survive a power cut."""
        os.fsync(self._states.fileno())
        os.fsync(self._journal.fileno())

    def finish(self) -> None:
        """Turn it into a finished shard, or remove it if it is empty; where that fails, it still grows."""
        opened, journal = self._name_of(OPEN), self._name_of(JOURNAL)
        if self._rows:
            index = index_of(self._rows, self._digests, self._about, self._about.source)
            head, tail = index_bytes(index, self._about)
            try:
                _write_all(self._states, memoryview(tail))
                _write_head(opened, head)
            except OSError:
                self._states.truncate(self._size)
                raise
            os.rename(opened, self._name_of(FINISHED))
        else:
            opened.unlink()
        self.close()
        fsync_path(self._folder)
        journal.unlink()

    def close(self) -> None:
        """Leave its files as they are."""
        self._states.close()
        self._journal.close()

    def _name_of(self, suffix: str) -> Path:
        return self.name.path(self._folder, suffix)


def _num_sound(path: Path, entries: Sequence[Entry], about: StoreAbout) -> int:
    """How many rows of the file hold the states that were written."""
    at = HEAD_BYTES
    for number, entry in enumerate(entries):
        shape = (len(entry.row.states), about.width)
        states = np.fromfile(path, about.numpy_dtype, shape[0] * shape[1], offset=at).reshape(shape)
        whole = StoreRow(token_ids=entry.row.token_ids, states=states, scales=entry.row.scales)
        if whole.digest() != entry.digest:
            return number
        at += states.nbytes
    return len(entries)


def _without_states(row: StoreRow) -> StoreRow:
    """What the index needs of `row`, in memory of its own."""
    return StoreRow(
        token_ids=row.token_ids.copy(),
        states=np.zeros((len(row.states), 0), row.states.dtype),
        first=row.first,
        is_supervised=None if row.is_supervised is None else row.is_supervised.copy(),
        scales=None if row.scales is None else row.scales.copy(),
    )


def _write_all(file: IO[bytes], data: memoryview) -> None:
    at = 0
    while at < len(data):
        at += file.write(data[at : at + _SLICE])


def _write_head(path: Path, head: bytes) -> None:
    """Write the header in front, after all that it describes is on the disk."""
    with open(path, "r+b", buffering=0) as file:
        os.fsync(file.fileno())
        file.write(head)
        os.fsync(file.fileno())
