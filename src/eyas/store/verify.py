"""Whether a store is as it was written: every row is read and compared with its hash."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.store.about import StoreAbout, read_about
from eyas.store.layout import StoreDamaged
from eyas.store.reader import map_states
from eyas.store.row import StoreRow
from eyas.store.shards import FINISHED, OPEN, Shard, ShardName, load_shard, shard_names
from eyas.talk import Progress, Talk

_THREADS = 4  # hash at 1.5 to 2 GB/s each
_MOST_NAMED = 1000
_MOST_GAP = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something in a store that is not as it was written.

    Attributes:
        shard: its name.
        row: number in the shard; None for the whole shard.
        key: of the row.
        why: what was found.
    """

    shard: str
    row: int | None = None
    key: str | None = None
    why: str

    def __str__(self) -> str:
        return (
            f"{self.shard}: {self.why}"
            if self.row is None
            else f"{self.shard}, row {self.row} ({self.key}): {self.why}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What `verify` read.

    Attributes:
        num_rows, num_bytes: whose hashes were computed.
        faults: at most 1000.
        num_faults: all.
    """

    num_rows: int
    num_bytes: int
    faults: Sequence[Fault]
    num_faults: int

    def as_document(self) -> dict[str, Any]:
        """As a JSON object."""
        faults = [{"shard": f.shard, "row": f.row, "key": f.key, "why": f.why} for f in self.faults]
        counts = {"rows": self.num_rows, "bytes": self.num_bytes, "num_faults": self.num_faults}
        return {"schema": "eyas.store-verify/1", **counts, "faults": faults}


def verify(folder: Path, talk: Talk) -> Verified:
    """Read the whole store and compare every row with its hash.

    Raises:
        StoreUnreadable: it is not a store.
    """
    about = read_about(folder)
    faults, num_faults, num_rows, num_bytes = list[Fault](), 0, 0, 0
    names = all_names(folder)
    total = sum(path.stat().st_size for name in names if (path := _states_path(folder, name)) is not None)
    with talk.progress("verify", total, "bytes") as bar:
        for name in names:
            found = list(_faults_of(folder, name, about, bar))
            num_faults += sum(isinstance(item, Fault) for item in found)
            num_rows += sum(isinstance(item, int) for item in found)
            num_bytes += sum(item for item in found if isinstance(item, int))
            faults += [item for item in found if isinstance(item, Fault)][: _MOST_NAMED - len(faults)]
    return Verified(num_rows=num_rows, num_bytes=num_bytes, faults=faults, num_faults=num_faults)


def all_names(folder: Path) -> list[ShardName]:
    """Those that are there and those that must have been: a writer's numbers have no gaps."""
    there = {*shard_names(folder, FINISHED), *shard_names(folder, OPEN)}
    names = there | {
        ShardName(name.writer, number) for name in there for number in range(min(name.number, _MOST_GAP) + 1)
    }
    return sorted(names, key=lambda name: (name.writer, name.number))


def _states_path(folder: Path, name: ShardName) -> Path | None:
    return next((path for suffix in (FINISHED, OPEN) if (path := name.path(folder, suffix)).exists()), None)


def _faults_of(folder: Path, name: ShardName, about: StoreAbout, bar: Progress) -> Iterator[Fault | int]:
    """Faults of a shard, and the bytes of each row that has none."""
    try:
        shard = load_shard(folder, name, about)
        if shard is None:
            yield Fault(shard=str(name), why="its file is missing")
            return
        rows = rows_of(shard, about)
    except StoreDamaged as error:
        yield Fault(shard=str(name), why=error.why)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        for number, (row, digest) in enumerate(zip(rows, pool.map(StoreRow.digest, rows), strict=True)):
            bar.advance(row.states.nbytes)
            if digest != bytes(shard.index.row_digests[number]):
                why = "its states are not those that were written"
                yield Fault(shard=str(name), row=number, key=row.key, why=why)
            else:
                yield row.states.nbytes


def rows_of(shard: Shard, about: StoreAbout) -> list[StoreRow]:
    """All rows of a shard, in order, with views of their states. Raises `StoreDamaged`."""
    states, starts = map_states(shard, about)[1], shard.index.state_starts().tolist()
    return [shard.index.row(n, starts[n], states[starts[n] : starts[n + 1]]) for n in range(shard.index.num_rows)]
