"""The files of a store's folder: which shards there are, finished or still growing, and what they hold.

manifest.json               `about`
.lock                       held while a writer looks for a number
w000.lock                   held by writer 0 as long as it lives, a kill included
w000-00000.safetensors      its first shard, finished (`layout`)
w000-00001.open, .journal   its shard that still grows: 4096 unused bytes, then states; its index (`journal`)
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from eyas.store.about import StoreAbout
from eyas.store.journal import Entry, read_journal
from eyas.store.layout import HEAD_BYTES, ShardIndex, damaged, index_of, read_index

FINISHED, OPEN, JOURNAL = ".safetensors", ".open", ".journal"
_NAME = re.compile(r"w(\d{3,6})-(\d{5,9})")
_TRIES = 20


@dataclass(frozen=True, slots=True)
class ShardName:
    """The `number`-th shard of a writer."""

    writer: int
    number: int

    def __str__(self) -> str:
        return f"w{self.writer:03d}-{self.number:05d}"

    def path(self, folder: Path, suffix: str) -> Path:
        """Its file of that kind."""
        return folder / f"{self}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A shard that can be read.

    Attributes:
        path: of the file with the states.
        index: what it holds.
        is_finished: it does not grow any more.
    """

    name: ShardName
    path: Path
    index: ShardIndex
    is_finished: bool


def shard_names(folder: Path, suffix: str) -> list[ShardName]:
    """Those of one kind, by writer and number."""
    found = [_NAME.fullmatch(path.name.removesuffix(suffix)) for path in folder.iterdir() if path.suffix == suffix]
    return sorted((ShardName(int(m[1]), int(m[2])) for m in found if m), key=lambda name: (name.writer, name.number))


def shards_of(folder: Path, about: StoreAbout, but: Collection[ShardName] = ()) -> Iterator[Shard]:
    """All shards except those of `but`, the finished ones and those that writers are at, by writer and number.

    Raises:
        StoreDamaged: one of the finished ones is.
    """
    names = {*shard_names(folder, FINISHED), *shard_names(folder, OPEN)}
    for name in sorted(names.difference(but), key=lambda name: (name.writer, name.number)):
        if (shard := load_shard(folder, name, about)) is not None:
            yield shard


def load_shard(folder: Path, name: ShardName, about: StoreAbout) -> Shard | None:
    """One shard; None where it was dropped meanwhile. Raises `StoreDamaged`."""
    for _ in range(_TRIES):  # a writer may finish it between our looks
        if (path := name.path(folder, FINISHED)).exists():
            return Shard(name=name, path=path, index=read_index(path, about), is_finished=True)
        path = name.path(folder, OPEN)
        try:
            entries = whole_entries(folder, name, about)
        except FileNotFoundError:
            if not path.exists() and not name.path(folder, FINISHED).exists():
                return None
            continue
        except OSError as error:
            raise damaged(path, str(error)) from error
        index = index_of([e.row for e in entries], [e.digest for e in entries], about, about.source)
        return Shard(name=name, path=path, index=index, is_finished=False)
    return None


def whole_entries(folder: Path, name: ShardName, about: StoreAbout) -> list[Entry]:
    """The journal's entries of an open shard whose states are all in its file."""
    free = name.path(folder, OPEN).stat().st_size - HEAD_BYTES
    entries = list[Entry]()
    for entry in read_journal(name.path(folder, JOURNAL), about):
        free -= len(entry.row.states) * about.width * about.numpy_dtype.itemsize
        if free < 0:
            break
        entries.append(entry)
    return entries
