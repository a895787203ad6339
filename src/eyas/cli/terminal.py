"""The real `Talk`: notes and progress on stderr; a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from eyas.talk import Progress, printable

_PLAIN_EVERY_S = 10.0  # a log file gets a line this often, not a bar


class Terminal:
    """A `Talk` on stderr; each note is printed once."""

    def __init__(self) -> None:
        self._noted: set[str] = set()

    def note(self, text: str) -> None:
        """Print `note: text` once."""
        if text not in self._noted:
            self._noted.add(text)
            print(printable(f"note: {text}"), file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        """Print an ordinary line."""
        print(printable(text), file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, label: str, total: float | None, unit: str) -> Iterator[Progress]:
        """A bar with ETA on a terminal; a line every ten seconds elsewhere."""
        if sys.stderr.isatty():
            with _rich_bar(label, total, unit) as bar:
                yield bar
        else:
            bar_lines = _PlainProgress(label, total, unit)
            yield bar_lines
            bar_lines.end()


@contextmanager
def _rich_bar(label: str, total: float | None, unit: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    with RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        console=Console(stderr=True),
    ) as bars:
        task = bars.add_task(printable(label), total=total, status="")

        class Bar:
            def advance(self, amount: float = 1.0) -> None:
                bars.advance(task, amount)

            def say(self, status: str) -> None:
                bars.update(task, status=printable(status))

        yield Bar()


class _PlainProgress:
    def __init__(self, label: str, total: float | None, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._done, self._status, self._start, self._last = 0.0, "", time.monotonic(), time.monotonic()
        # Time and amount of the first step: a resumed run begins with what an earlier one did.
        self._first: tuple[float, float] | None = None

    def advance(self, amount: float = 1.0) -> None:
        self._done += amount
        self._first = self._first or (time.monotonic(), self._done)
        if time.monotonic() - self._last >= _PLAIN_EVERY_S:
            self._last = time.monotonic()
            self._print()

    def say(self, status: str) -> None:
        self._status = status

    def end(self) -> None:
        if time.monotonic() - self._start >= 3.0:
            self._print(ended=True)

    def _print(self, *, ended: bool = False) -> None:
        spent = time.monotonic() - self._start
        text = f"{self._label}: {self._done:g}"
        if self._total is not None:
            text += f"/{self._total:g}"
        text += f" {self._unit}, {spent:.0f} s"
        if ended:
            text += ", done" if self._total is None or self._done >= self._total else ", stopped"
        elif self._total and self._first and self._done > self._first[1]:
            since, before = self._first
            left = (time.monotonic() - since) * (self._total - self._done) / (self._done - before)
            text += f", eta {left:.0f} s"
        print(printable(f"{text}  {self._status}".rstrip()), file=sys.stderr, flush=True)
