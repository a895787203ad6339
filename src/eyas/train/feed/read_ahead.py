"""Rows fetched ahead of their use by threads, in bounded memory, and handed out in the order in which they are used.

The order is the plan's, so what is learned does not depend on who fetched a row, or when. A place is a row's position
in that order. Each place is handed to one fetcher at a time; what a fetcher leaves undone when it fails goes to the
others, earliest place first. So the row that is used next is always being fetched, and memory cannot fill up without
it.
"""

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from eyas.errors import ExitCode, EyasError
from eyas.extract.source import SourceFailed
from eyas.talk import Silent, Talk

_POLL_S = 0.2  # how often a wait looks whether the run is asked to stop
_BACKOFF_S = (1.0, 30.0)  # before a fetcher that failed is tried again: at first, and at most
_MOST_FAILURES = 5  # of one row, by fetchers that answer when they are asked whether they can


class FeedStopped(Exception):
    """The run is asked to stop, and the row that it waits for has not come."""


class RowUnfetchable(EyasError):
    """The states of a row cannot be had, though those of others can."""

    code = "row-unfetchable"
    exit_code = ExitCode.ENVIRONMENT


class FetchedRow(Protocol):
    """States of one row, as a store or a source gives them."""

    @property
    def states(self) -> "NDArray[Any]": ...
    @property
    def scales(self) -> "NDArray[Any] | None": ...


class Fetcher(Protocol):
    """Fetches rows, and is called by one thread, or by several where `at_once` says so.

    Attributes:
        name: for messages.
        threads: that may call `fetch` at the same time.
        rows_at_once: of one call.
    """

    @property
    def name(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def rows_at_once(self) -> int: ...

    def fetch(self, numbers: Sequence[int]) -> Iterator[tuple[int, FetchedRow]]:
        """(place in `numbers`, row), each once, in any order.

        Raises:
            SourceFailed: those that have not come may be asked for again, here or elsewhere.
        """

    def require_ready(self) -> None:
        """Raise `SourceFailed` while it cannot fetch."""


@dataclass(slots=True)
class FetchFigures:
    """What one fetcher did.

    Attributes:
        num_bytes: fetched.
        busy_s: in which at least one of its threads was fetching, and not waiting for room.
        num_failures: how often it failed.
    """

    num_bytes: int = 0
    busy_s: float = 0.0
    num_failures: int = 0


@dataclass(slots=True)
class Figures:
    """What went through, for the report at the end.

    Attributes:
        num_rows, num_bytes: handed out.
        waited_s: that the trainer stood still for want of a row.
        most_held: bytes in memory at most.
        began: by the monotonic clock.
        fetchers: by name.
    """

    num_rows: int = 0
    num_bytes: int = 0
    waited_s: float = 0.0
    most_held: int = 0
    began: float = field(default_factory=time.monotonic)
    fetchers: dict[str, FetchFigures] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """A place in the order: where it is, whose row stands there, and its bytes."""

    at: int
    number: int
    num_bytes: int


class ReadAhead:
    """Use as a context manager: inside, threads fetch.

    Args:
        order: numbers of the rows as `take` will ask for them; gone through by the threads.
        bytes_of: of a row, in memory.
        fetchers: all give the same rows; each has a name of its own.
        prepare: makes of a fetched row what `take` gives, in the thread that fetched it.
        most_bytes: of rows asked for or waiting; one row may exceed it alone.
        is_asked: whether the run is asked to stop.
        talk: told when a fetcher fails, and when it is back.
    """

    def __init__(
        self,
        order: Iterable[int],
        bytes_of: Callable[[int], int],
        fetchers: Sequence[Fetcher],
        prepare: Callable[[FetchedRow], Any],
        *,
        most_bytes: int,
        is_asked: Callable[[], bool] = lambda: False,
        talk: Talk | None = None,
    ) -> None:
        self._order = (_Place(at, number, bytes_of(number)) for at, number in enumerate(order))
        self._prepare, self._most_bytes = prepare, most_bytes
        self._is_asked, self._talk = is_asked, talk or Silent()
        self._changed = threading.Condition()
        self._next = next(self._order, None)
        self._left: list[_Place] = []  # of fetchers that failed: a heap
        self._ready = dict[int, tuple[_Place, Any]]()
        self._failures = dict[int, int]()
        self._taken = self._held = 0
        self._error: BaseException | None = None
        self._is_over = False
        self._num_busy = dict.fromkeys((fetcher.name for fetcher in fetchers), 0)
        self._busy_since = dict[str, float]()
        self._threads = [
            threading.Thread(target=self._work, args=(fetcher,), name=f"fetch {fetcher.name}", daemon=True)
            for fetcher in fetchers
            for _ in range(fetcher.threads)
        ]
        self.figures = Figures(fetchers={fetcher.name: FetchFigures() for fetcher in fetchers})

    def __enter__(self) -> "ReadAhead":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        deadline = time.monotonic() + 1.0  # a request that hangs must not hold up the end; the threads are daemons
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def take(self, number: int) -> Any:
        """The next row of the order, which is row `number`.

        Raises:
            FeedStopped: the run is asked to stop.
            RowUnfetchable: fetchers that answer do not give the row.
            What a fetcher or `prepare` raised that is not `SourceFailed`.
        """
        begin = time.monotonic()
        with self._changed:
            while self._taken not in self._ready:
                if self._error is not None:
                    raise self._error
                if self._is_asked():
                    raise FeedStopped
                self._changed.wait(_POLL_S)
            place, row = self._ready.pop(self._taken)
            assert place.number == number, f"row {number} is asked for, the order has row {place.number}"
            self._taken += 1
            self._held -= place.num_bytes
            self.figures.num_rows += 1
            self.figures.num_bytes += place.num_bytes
            self.figures.waited_s += time.monotonic() - begin
            self._changed.notify_all()
        return row

    def _work(self, fetcher: Fetcher) -> None:
        """The life of a thread."""
        wait_s, is_told = _BACKOFF_S[0], False
        try:
            while places := self._claim(fetcher):
                try:
                    self._fetch(fetcher, places)
                    if is_told:
                        self._talk.line(f"{fetcher.name} gives states again")
                    wait_s, is_told = _BACKOFF_S[0], False
                except SourceFailed as error:
                    self.figures.fetchers[fetcher.name].num_failures += 1
                    if not is_told:
                        self._talk.note(f"{fetcher.name} stopped giving states: {error.why}; eyas keeps trying")
                    is_told = True
                    wait_s = self._wait_until_ready(fetcher, wait_s)
        except BaseException as error:  # noqa: BLE001 - told by `take`, in the thread that needs the row
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _claim(self, fetcher: Fetcher) -> list[_Place]:
        """Places for one call, earliest first; [] when there will be none."""
        places = list[_Place]()
        with self._changed:
            while not self._is_over and not places:
                while len(places) < fetcher.rows_at_once and (place := self._free(alone=not places)) is not None:
                    places.append(place)
                    if place.at in self._failures:
                        break
                is_all = self._next is None and not self._held
                if is_all:
                    break
                if not places:
                    self._changed.wait()
            if places:
                self._set_busy(fetcher.name, 1)
        return places

    def _free(self, *, alone: bool) -> _Place | None:
        """The earliest place that is not being fetched, if there is room for its row.

        A row that was first in line when a call failed is asked for alone: others must not fail with it.
        """
        if self._left:
            return heapq.heappop(self._left) if alone or self._left[0].at not in self._failures else None
        place = self._next
        if place is None or (self._held and self._held + place.num_bytes > self._most_bytes):
            return None
        self._held += place.num_bytes
        self.figures.most_held = max(self.figures.most_held, self._held)
        self._next = next(self._order, None)
        return place

    def _fetch(self, fetcher: Fetcher, places: Sequence[_Place]) -> None:
        """Fetch them; those that do not come are free again."""
        missing = dict(enumerate(places))
        try:
            for at, row in fetcher.fetch([place.number for place in places]):
                place, prepared = missing[at], self._prepare(row)
                with self._changed:
                    del missing[at]
                    self._ready[place.at] = (place, prepared)
                    self.figures.fetchers[fetcher.name].num_bytes += place.num_bytes
                    self._changed.notify_all()
                    if self._is_over:
                        return
            if missing:
                raise SourceFailed(f"{fetcher.name} left rows out", fetcher.name, f"{len(missing)} rows", "try again")
        finally:
            with self._changed:
                self._set_busy(fetcher.name, -1)
                for place in missing.values():
                    heapq.heappush(self._left, place)
                self._changed.notify_all()

    def _set_busy(self, name: str, change: int) -> None:
        now = time.monotonic()
        if self._num_busy[name] == 0:
            self._busy_since[name] = now
        self._num_busy[name] += change
        if self._num_busy[name] == 0:
            self.figures.fetchers[name].busy_s += now - self._busy_since[name]

    def _wait_until_ready(self, fetcher: Fetcher, wait_s: float) -> float:
        """Wait, and ask until it can fetch; gives how long to wait after the next failure.

        Raises:
            RowUnfetchable: it can, and yet the row that is needed first has failed again and again.
        """
        while not self._is_over:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over, wait_s)
            wait_s = min(2 * wait_s, _BACKOFF_S[1])
            try:
                fetcher.require_ready()
            except SourceFailed:
                continue
            self._count_failure(fetcher)
            break
        return wait_s

    def _count_failure(self, fetcher: Fetcher) -> None:
        with self._changed:
            if not self._left:
                return
            first = self._left[0]
            self._failures[first.at] = self._failures.get(first.at, 0) + 1
            if self._failures[first.at] < _MOST_FAILURES:
                return
        raise RowUnfetchable(
            f"the states of row {first.number} cannot be had",
            f"{fetcher.name}, row {first.number}",
            f"the server answers, but {_MOST_FAILURES} attempts at this row have failed",
            "look at the server's log; the run resumes from its checkpoint with the same command",
        )
