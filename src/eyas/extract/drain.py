"""Moves rows out of a serving engine's spool into a store: `python -m eyas.extract.drain SPOOL STORE TARGET`.

`eyas serve --capture STORE` runs it beside the engine, in a process of its own. Rows whose names begin with `h-` are
those of a client that fetches them itself, and are left alone. A row is removed from the spool after the store holds
it: a kill at any moment loses nothing, and the row that was in both is known by its ids. Ends, after a last look, when
its standard input ends.
"""

import select
import sys
import time
from pathlib import Path

from eyas.contract.spec.target_spec import read_target
from eyas.errors import EyasError
from eyas.extract.plan import about_of_target
from eyas.extract.server_source import HANDED_OVER
from eyas.extract.source import SourceUnsupported
from eyas.extract.spool import Spool, open_spool, read_row
from eyas.store import StoreRow, StoreWriter

_POLL_S = 0.05
_FLUSH_S = 30.0


def drain(spool_folder: Path, store: Path, target: Path) -> None:
    """Move rows until standard input ends.

    Raises:
        StoreMismatch, WriteFailed: the store does not take them; they stay in the spool.
    """
    spool = _announced(spool_folder)
    if spool is None:
        return
    about = about_of_target(
        read_target(target),
        target,
        boundaries=spool.boundaries,
        last=spool.last,
        dtype=spool.dtype,
        source=spool.source,
    )
    with StoreWriter.open(store, about) as writer:
        flushed, is_over = time.monotonic(), False
        while not is_over:
            is_over = _has_ended(_POLL_S)
            move_rows(spool, writer)
            if time.monotonic() - flushed > _FLUSH_S:
                writer.flush()
                flushed = time.monotonic()


def move_rows(spool: Spool, writer: StoreWriter) -> int:
    """Move the rows that are there; how many."""
    paths = [path for path in sorted(spool.folder.glob("*.row")) if not path.name.startswith(HANDED_OVER)]
    for path in paths:
        states, token_ids = read_row(path, spool)
        writer.append(StoreRow(token_ids=token_ids, states=states))
        path.unlink()
    return len(paths)


def _announced(folder: Path) -> Spool | None:
    """The spool once the engine has loaded its target; None where standard input ends before."""
    while True:
        try:
            return open_spool(folder)
        except SourceUnsupported:
            if _has_ended(1.0):
                return None


def _has_ended(timeout_s: float) -> bool:
    """Whether standard input has ended; waits for `timeout_s` at most."""
    return bool(select.select([sys.stdin], [], [], timeout_s)[0]) and not sys.stdin.read(1)


def main() -> int:
    """The process: 0 when all rows are in the store, else an error on stderr and its exit code."""
    try:
        drain(*map(Path, sys.argv[1:4]))
    except EyasError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 - read by `serve`
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
