"""What is done to whole stores: stats, merge, drop."""

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eyas.records.atomic import atomic_file, atomic_folder, write_failed
from eyas.store.about import MANIFEST, StoreAbout, read_about, write_about
from eyas.store.growing_shard import GrowingShard
from eyas.store.layout import StoreDamaged, damaged, index_bytes, index_of
from eyas.store.row import StoreRow
from eyas.store.shards import FINISHED, JOURNAL, OPEN, ShardName, load_shard, shard_names, shards_of
from eyas.store.verify import all_names, rows_of
from eyas.store.writer import locked, require_unwritten
from eyas.talk import Talk


def stats(folder: Path) -> dict[str, Any]:
    """What a store holds, as a JSON object. Reads headers and indices only.

    Raises:
        StoreUnreadable: it is not a store.
        StoreDamaged: a shard's header or index is damaged.
    """
    about, shards = read_about(folder), list(shards_of(folder, read_about(folder)))
    lengths = np.concatenate([np.zeros(0, np.int64), *(shard.index.lengths for shard in shards)])
    firsts = np.concatenate([np.zeros(0, np.int64), *(shard.index.row_first for shard in shards)])
    keys = {key for shard in shards for key in shard.index.key_list()}
    by_source = Counter[str]()
    for shard in shards:
        by_source[shard.index.source] += shard.index.num_rows
    positions = int((lengths - firsts).sum())
    return {
        "schema": "eyas.store-stats/1",
        "about": about.as_document(),
        "shards": sum(shard.is_finished for shard in shards),
        "growing_shards": sum(not shard.is_finished for shard in shards),
        "rows": len(keys),
        "repeated_rows": len(lengths) - len(keys),
        "tokens": int(lengths.sum()),
        "supervised_tokens": int(sum(int((shard.index.is_supervised == 1).sum()) for shard in shards)),
        "positions": positions,
        "longest": int(lengths.max(initial=0)),
        "state_bytes": positions * about.position_bytes,
        "disk_bytes": sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
        "rows_by_source": dict(by_source),
    }


def merge(stores: Sequence[Path], out: Path) -> dict[str, Any]:
    """One store of all rows of several; the same disk space where `out` is on their file system.

    Finished shards are linked (copied to another file system); a shard that an earlier writer left unfinished is
    finished first. A row of several stores stays in each shard and is read once.

    Raises:
        StoreMismatch: they hold other states than the first of them.
        StoreInUse: one of them is being written.
        OutputExists, WriteFailed: see `atomic_folder`.
    """
    abouts = [read_about(store) for store in stores]
    for store, about in zip(stores[1:], abouts[1:], strict=True):
        do = "merge stores of the same target, boundaries and dtype"
        about.require_same(abouts[0], store, do, free=("rows", "source"))
    num_linked = 0
    with atomic_folder(out) as aside:
        write_about(_joined(abouts), aside)
        for number, (store, about) in enumerate(zip(stores, abouts, strict=True)):
            with locked(store):
                require_unwritten(store)
                _finish_left(store, about)
                for at, name in enumerate(shard_names(store, FINISHED)):
                    shard = load_shard(store, name, about)
                    assert shard is not None, "the store is ours"
                    _link(shard.path, ShardName(number, at).path(aside, FINISHED))
                    num_linked += 1
    found = stats(out)
    return {**found, "schema": "eyas.store-merge/1", "stores": list(map(str, stores)), "linked_shards": num_linked}


def drop(folder: Path, talk: Talk, *, damaged_rows: bool = False, repeated: bool = False) -> int:
    """Remove rows, and give back their disk space; each shard is written again without them, or stays.

    Args:
        damaged_rows: those whose states are not what was written, and shards whose index is damaged.
        repeated: those that stand in an earlier shard too.

    Returns:
        Number of rows removed; rows of a shard with a damaged index cannot be counted.

    Raises:
        StoreInUse: the store is being written.
        StoreDamaged: a shard is, and `damaged_rows` is off.
        WriteFailed: there is no room for one shard; that one stays as it was.
    """
    about, num_dropped, seen = read_about(folder), 0, set[str]()
    with locked(folder):
        require_unwritten(folder)
        _finish_left(folder, about)
        names = all_names(folder)
        with talk.progress("drop", len(names), "shards") as bar:
            for name in names:
                try:
                    num_dropped += _drop_of(folder, name, about, damaged_rows, seen if repeated else None)
                except StoreDamaged as error:
                    if not damaged_rows:
                        raise
                    talk.note(f"shard {name}: all rows dropped: {error.why}")
                    _rewrite(name.path(folder, FINISHED), about, about.source, [], [], [])
                bar.advance()
    return num_dropped


def drop_all(folder: Path) -> tuple[str, ...]:
    """Delete the store; files that are not its own stay, and are returned by name."""
    read_about(folder)  # a folder that is not a store is not deleted
    with locked(folder):
        require_unwritten(folder)
        for suffix in (FINISHED, OPEN, JOURNAL):
            for name in shard_names(folder, suffix):
                name.path(folder, suffix).unlink()
        for path in (*folder.glob("w*.lock"), folder / ".lock", folder / MANIFEST):
            path.unlink(missing_ok=True)
    left = tuple(sorted(path.name for path in folder.iterdir()))
    if not left:
        folder.rmdir()
    return left


def _drop_of(
    folder: Path,
    name: ShardName,
    about: StoreAbout,
    damaged_rows: bool,
    seen: set[str] | None,
) -> int:
    shard = load_shard(folder, name, about)
    if shard is None:
        raise damaged(name.path(folder, FINISHED), "it is missing")
    rows, digests = rows_of(shard, about), [bytes(digest) for digest in shard.index.row_digests]
    kept = list[int]()
    for number, row in enumerate(rows):
        is_repeated = seen is not None and row.key in seen
        if is_repeated or (damaged_rows and row.digest() != digests[number]):
            continue
        kept.append(number)
        if seen is not None:
            seen.add(row.key)
    if len(kept) < len(rows):
        _rewrite(shard.path, about, shard.index.source, rows, digests, kept)
    return len(rows) - len(kept)


def _rewrite(
    path: Path, about: StoreAbout, source: str, rows: Sequence[StoreRow], digests: Sequence[bytes], kept: Sequence[int]
) -> None:
    index = index_of([rows[n] for n in kept], [digests[n] for n in kept], about, source)
    head, tail = index_bytes(index, about)
    with atomic_file(path) as file:
        file.write(head)
        for number in kept:
            file.write(np.ascontiguousarray(rows[number].states).reshape(-1).view(np.uint8).data)
        file.write(tail)


def _finish_left(folder: Path, about: StoreAbout) -> None:
    """Finish the shards that earlier writers left; hold `locked`, and no writer lives."""
    for name in shard_names(folder, OPEN):
        if name in shard_names(folder, JOURNAL):
            GrowingShard.resume(folder, name, about).finish()


def _joined(abouts: Sequence[StoreAbout]) -> StoreAbout:
    rows = {about.rows for about in abouts}
    sources = dict.fromkeys(about.source for about in abouts)
    return replace(abouts[0], rows=rows.pop() if len(rows) == 1 else None, source=" + ".join(sources))


def _link(path: Path, to: Path) -> None:
    try:
        os.link(path.resolve(), to)
    except OSError:  # another file system, or one without links
        try:
            shutil.copyfile(path, to)
        except OSError as error:
            raise write_failed(to, error) from error
