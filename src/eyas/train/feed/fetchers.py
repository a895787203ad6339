"""Where a run's rows get their states: out of a store, or out of servers that compute them while the draft trains."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from eyas.client.address import ServerRefused, ServerUnreachable
from eyas.data.text.tokenise import TokenRow
from eyas.errors import EyasError
from eyas.extract.source import AskedRow, ExtractedRow, ExtractSource, SourceFailed, SourceUnsupported
from eyas.store import StoreReader, StoreRow
from eyas.store.about import StateDtype
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
    """Rows that a source computes when they are asked for. A source that is not there yet may come later.

    Args:
        name: of the source, as the user gave it.
        open_source: opens it, and proves it; called again after each failure, since a server that was started again is
            another one.
        rows: of the run, whose token ids the source reads.

    Attributes:
        source: None while it does not answer.
        kind: dtype and last state that it must give; None for those of the first source that answers.
    """

    threads, rows_at_once = _STREAM_THREADS, _STREAM_ROWS

    def __init__(self, name: str, open_source: Callable[[], ExtractSource], rows: _RowSequence) -> None:
        self.name, self._open, self._rows = name, open_source, rows
        self._lock = threading.Lock()
        self.source: ExtractSource | None = None
        self.kind: tuple[StateDtype, str] | None = None

    def over(self, rows: _RowSequence) -> "StreamFetcher":
        """The same source, for other rows."""
        other = StreamFetcher(self.name, self._open, rows)
        other.source, other.kind = self.source, self.kind
        return other

    def fetch(self, numbers: Sequence[int]) -> Iterator[tuple[int, FetchedRow]]:
        """See `Fetcher`."""
        source = self.source
        if source is None:
            raise SourceFailed(f"{self.name} does not answer", self.name, "it did not when it was asked", "start it")
        asked = [AskedRow(token_ids=self._rows[number].token_ids) for number in numbers]
        try:
            for row in source.states(asked):
                yield row.number, self._checked(row, asked[row.number])
        except (SourceFailed, ServerRefused, ServerUnreachable, OSError) as error:
            with self._lock:
                if self.source is source:  # else another thread has opened it again
                    self.source = None
            raise SourceFailed(f"{self.name} gives no states", self.name, _why(error), "look at its log") from error

    def require_ready(self) -> None:
        """Open the source again.

        Raises:
            SourceFailed: it does not answer.
            SourceUnsupported, StatesMismatch: it gives other states than it must.
        """
        with self._lock:  # one thread opens it for all
            if self.source is not None:
                return
            try:
                opened = self._open()
            except (ServerUnreachable, ServerRefused, OSError) as error:
                raise SourceFailed(f"{self.name} does not answer", self.name, _why(error), "start it again") from error
            kind = (opened.dtype, opened.last)
            if self.kind not in (None, kind):
                raise SourceUnsupported(
                    f"{self.name} gives states of another kind than the other servers, or than before",
                    self.name,
                    f"{', '.join(kind)}; wanted {', '.join(self.kind or ())}",
                    "start all servers with the same engine, version and dtype; the same command resumes the run",
                )
            self.source, self.kind = opened, kind

    def _checked(self, row: ExtractedRow, asked: AskedRow) -> ExtractedRow:
        if row.first or len(row.states) != len(asked.token_ids):
            why = f"{len(row.states)} states from position {row.first} for {len(asked.token_ids)} tokens"
            raise SourceFailed(f"{self.name} gave states of another length", self.name, why, "look at its log")
        return row


def _why(error: Exception) -> str:
    return error.why if isinstance(error, EyasError) else str(error)
