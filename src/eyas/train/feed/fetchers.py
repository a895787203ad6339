"""Where a run's rows get their states: out of a store, or out of servers that compute them while the draft trains."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from eyas.client.address import ServerRefused, ServerUnreachable
from eyas.data.text.tokenise import TokenRow
from eyas.extract.source import AskedRow, ExtractedRow, ExtractSource, SourceFailed, SourceUnsupported
from eyas.store import StoreReader, StoreRow
from eyas.train.feed.read_ahead import FetchedRow

_STORE_THREADS = 3  # each copies at some GB/s; one alone is waited for while it reads from the disk
_STREAM_THREADS = 2  # while one call of a server ends, the next is already under way
_STREAM_ROWS = 64


class _RowSequence(Protocol):
    def __getitem__(self, index: int, /) -> TokenRow: ...


class StoreFetcher:
    """Rows of a store.

    Args:
        reader: of the store.
        places: number of a row in training -> its number in the store.
    """

    threads, rows_at_once = _STORE_THREADS, 1

    def __init__(self, reader: StoreReader, places: Sequence[int]) -> None:
        self.name, self._reader, self._places = str(reader.folder), reader, places
        self._lock = threading.Lock()

    def fetch(self, numbers: Sequence[int]) -> Iterator[tuple[int, StoreRow]]:
        """See `Fetcher`; the states are views of the file."""
        for at, number in enumerate(numbers):
            with self._lock:
                row = self._reader.row(self._places[number])
            yield at, row

    def require_ready(self) -> None:
        """A store is always ready."""


class StreamFetcher:
    """Rows that a source computes when they are asked for.

    Args:
        name: of the source, as the user gave it.
        open_source: opens it; called again after each failure, since a server that was started again is another one.
        rows: of the run, whose token ids the source reads.

    Raises:
        What `open_source` and `probe` raise.
    """

    threads, rows_at_once = _STREAM_THREADS, _STREAM_ROWS

    def __init__(self, name: str, open_source: Callable[[], ExtractSource], rows: _RowSequence) -> None:
        self.name, self._open, self._rows = name, open_source, rows
        self._lock, self.source = threading.Lock(), open_source()
        self.notes = self.source.probe()
        self.kind = (self.source.dtype, self.source.last)

    def over(self, rows: _RowSequence) -> "StreamFetcher":
        """The same source, for other rows."""
        return StreamFetcher(self.name, self._open, rows)

    def fetch(self, numbers: Sequence[int]) -> Iterator[tuple[int, FetchedRow]]:
        """See `Fetcher`."""
        asked = [AskedRow(token_ids=self._rows[number].token_ids) for number in numbers]
        try:
            for row in self.source.states(asked):
                yield row.number, self._checked(row, asked[row.number])
        except (ServerRefused, ServerUnreachable, OSError) as error:
            why = error.why if isinstance(error, ServerRefused | ServerUnreachable) else str(error)
            raise SourceFailed(f"{self.name} gives no states", self.name, why, "look at the server's log") from error

    def require_ready(self) -> None:
        """Open the source again; raises `SourceFailed` while it cannot be."""
        try:
            opened = self._open()
            opened.probe()
        except (SourceUnsupported, ServerUnreachable, ServerRefused, OSError) as error:
            raise SourceFailed(f"{self.name} does not answer", self.name, str(error), "start it again") from error
        if (opened.dtype, opened.last) != self.kind:
            raise SourceUnsupported(
                f"{self.name} gives other states than before",
                self.name,
                f"{opened.dtype}, {opened.last}; before {', '.join(self.kind)}",
                "start it as it was; the run resumes with the same command",
            )
        with self._lock:
            self.source = opened

    def _checked(self, row: ExtractedRow, asked: AskedRow) -> ExtractedRow:
        if row.first or len(row.states) != len(asked.token_ids):
            why = f"{len(row.states)} states from position {row.first} for {len(asked.token_ids)} tokens"
            raise SourceFailed(f"{self.name} gave states of another length", self.name, why, "look at the server's log")
        return row
