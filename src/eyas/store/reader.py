"""`StoreReader`: the rows of a store, from memory maps. Writers may be at the folder meanwhile."""

import mmap
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.errors import EyasError
from eyas.store.about import StoreAbout, read_about
from eyas.store.layout import HEAD_BYTES, damaged
from eyas.store.row import StoreRow
from eyas.store.shards import FINISHED, Shard, shards_of

_MOST_MAPPED = 256  # each map holds a file descriptor; a process has 1024 of them
_Map = tuple[mmap.mmap, "NDArray[Any]"]


class StoreLacksBoundary(EyasError):
    """The store does not hold a state that the draft reads."""

    code = "store-lacks-boundary"


class StoreReader:
    """The rows that were in the store when it was opened, each once.

    Attributes:
        about: of the store.
        shards: in the order of rows.
        num_repeated: rows that stood in several shards and are counted once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.about = folder, read_about(folder)
        self.shards: Sequence[Shard] = list(shards_of(folder, self.about))
        self.num_repeated = 0
        self._places, self._number_of = list[tuple[int, int]](), dict[str, int]()
        for at, shard in enumerate(self.shards):
            for number, key in enumerate(shard.index.key_list()):
                if key in self._number_of:
                    self.num_repeated += 1
                    continue
                self._number_of[key] = len(self._places)
                self._places.append((at, number))
        self._starts = [shard.index.state_starts() for shard in self.shards]
        self._maps: OrderedDict[int, _Map] = OrderedDict()

    @classmethod
    def open(cls, folder: Path) -> "StoreReader":
        """The store in `folder`.

        Raises:
            StoreUnreadable: it is not a store.
            StoreDamaged: a shard's header or index is damaged; states are checked by `upkeep.verify` only.
        """
        return cls(folder)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def lengths(self) -> "NDArray[np.int64]":
        """Tokens of each row."""
        by_shard = [shard.index.lengths for shard in self.shards]
        return np.array([by_shard[at][number] for at, number in self._places], np.int64)

    @property
    def keys(self) -> Sequence[str]:
        """The name of each row, see `row_key`."""
        return list(self._number_of)

    def find(self, key: str) -> int | None:
        """The number of the row with that key."""
        return self._number_of.get(key)

    def row(self, number: int) -> StoreRow:
        """One row; its states are a view of the file, not yet read."""
        at, inside = self._places[number]
        begin, end = self._starts[at][inside : inside + 2].tolist()
        return self.shards[at].index.row(inside, begin, self._map(at)[1][begin:end])

    def prefetch(self, number: int) -> None:
        """Let the system read a row's states in the background; `row` then finds them in memory."""
        at, inside = self._places[number]
        mapped, states = self._map(at)
        row_bytes = states.strides[0] if len(states) else 0
        begin, end = (HEAD_BYTES + int(start) * row_bytes for start in self._starts[at][inside : inside + 2])
        begin -= begin % mmap.PAGESIZE
        if hasattr(mmap, "MADV_WILLNEED"):
            mapped.madvise(mmap.MADV_WILLNEED, begin, end - begin)

    def columns(self, boundaries: Sequence[int]) -> list[slice]:
        """Where the states of these boundaries stand in `StoreRow.states`; the last state is the last Ht columns.

        Raises:
            StoreLacksBoundary: the store does not hold one of them.
        """
        width, held = self.about.hidden_size, self.about.boundaries
        if missing := [boundary for boundary in boundaries if boundary not in held]:
            raise StoreLacksBoundary(
                f"the store has no states at boundary {missing[0]}",
                f"{self.folder}: boundaries {list(held)}, wanted {list(boundaries)}",
                "the draft reads other target states than those that were extracted",
                f"extract them: `eyas extract ... --boundaries {' '.join(map(str, boundaries))}` into another store",
            )
        return [slice(held.index(b) * width, (held.index(b) + 1) * width) for b in boundaries]

    def _map(self, at: int) -> _Map:
        if (found := self._maps.get(at)) is None:
            found = self._maps[at] = map_states(self.shards[at], self.about)
            if len(self._maps) > _MOST_MAPPED:
                self._maps.popitem(last=False)  # closed once no row of it is held any more
        self._maps.move_to_end(at)
        return found


def map_states(shard: Shard, about: StoreAbout) -> _Map:
    """The file of a shard and in it its states [P, (A + 1) * Ht]. Raises `StoreDamaged` where it is not there."""
    positions = int(shard.index.state_starts()[-1])
    # a shard that grew when it was looked for may be finished by now
    for path in (shard.path, shard.path.with_suffix(FINISHED)):
        try:
            with open(path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            states = np.frombuffer(mapped, about.numpy_dtype, positions * about.width, HEAD_BYTES)
            return mapped, states.reshape(positions, about.width)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise damaged(path, f"{type(error).__name__}: {error}") from error
    raise damaged(shard.path, "it was there a moment ago")
