r"""Raw bytes of an engine's stdout and stderr to lines: split on \n and \r, prefixes taken off. Knows no meaning.

Progress bars (tqdm) rewrite their line with \r and never end it, so the text after the last \r is looked at too; and
an engine's log line may be glued to the end of a bar ("...it/s][2026-11-29 14:03:35] Capture ...").
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache

from eyas.serve.facts.evidence import Bar, LogLine
from eyas.serve.log.foreign_prefixes import ForeignPrefixes
from eyas.serve.log.tables import line_prefixes

_UVICORN_LEVEL = re.compile(r"^(?P<level>INFO|WARNING|ERROR|CRITICAL): +")
_PERCENT = re.compile(r"(\d{1,3})%")
_AMOUNT = r"(\d{1,15}(?:\.\d{1,15})?[kMG]?)"
_COUNT = re.compile(rf"\|\s*{_AMOUNT}/{_AMOUNT}\s*\[[\d:?]{{1,20}}<([\d:?]{{1,20}})")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MAX_LINE_BYTES = 1 << 14  # the rest of a longer line is left out: no line of an engine that means something is longer
_MAX_BAR_CHARACTERS = 2000
_LEVELS = {"F": "CRITICAL", "E": "ERROR", "W": "WARNING", "I": "INFO", "V": "DEBUG", "D": "DEBUG"}
_UNIT = {"k": 1e3, "M": 1e6, "G": 1e9}


class LineSplitter:
    """Bytes in, lines out, whatever the pieces they come in."""

    def __init__(self) -> None:
        self._rest = b""
        self._number = 1
        self._foreign = ForeignPrefixes()

    @property
    def pending(self) -> str:
        """The text that no \\n or \\r has ended yet: with tqdm, the newest state of the bar."""
        return self._foreign.strip(_clean(self._rest))

    def feed(self, data: bytes, at: float) -> Iterator[LogLine]:
        """The lines that `data` completes. Empty lines are counted and left out."""
        buffer = self._rest + data
        # A \r at the very end may be half of a \r\n: it waits for the next piece.
        held = b""
        if buffer.endswith(b"\r"):
            buffer, held = buffer[:-1], b"\r"
        pieces = re.split(rb"(\r?\n|\r)", buffer)
        self._rest = pieces.pop() + held
        for text, end in zip(pieces[::2], pieces[1::2], strict=True):
            if text:  # of \r alone there may be thousands
                yield from self._lines(text, at)
            if end.endswith(b"\n"):
                self._number += 1
        self._rest = self._rest[: 2 * _MAX_LINE_BYTES]  # the rest of an endless line is left out

    def _lines(self, data: bytes, at: float) -> Iterator[LogLine]:
        for text in self._foreign.lines(_clean(data)):
            yield from parse_lines(text, number=self._number, at=at)

    def skip(self, num_newlines: int, at: float) -> Iterator[LogLine]:
        """A part of the file is left out: end the line before it, count those in it."""
        yield from self.flush(at)
        self._number += num_newlines

    def flush(self, at: float) -> Iterator[LogLine]:
        """The unended rest, at the end of the file."""
        rest, self._rest = self._rest, b""
        yield from self._lines(rest, at)


def parse_lines(text: str, *, number: int, at: float) -> Iterator[LogLine]:
    """A piece between two line ends; more than one line if a log line is glued to a bar."""
    for part in _glue().split(text):
        if part.strip():
            yield parse_line(part, number=number, at=at)


def parse_line(text: str, *, number: int, at: float) -> LogLine:
    """One line with its prefixes taken off."""
    found: dict[str, str] = {}
    stamp, rest = None, text
    for prefix in _prefixes():
        if stamp is None and (match := prefix.pattern.match(rest)):
            rest = rest[match.end() :]
            found |= {name: value for name, value in match.groupdict().items() if value}
            stamp = prefix.time_of(found, at)
    return LogLine(
        number=number,
        at=at,
        label=found.get("process") or found.get("ranks", "").strip(),
        pid=int(found["pid"]) if "pid" in found else None,
        level=_LEVELS.get(found.get("level", ""), found.get("level", "")),
        stamp=stamp,
        message=rest.rstrip(),
        raw=text.rstrip(),
        bar=parse_bar(rest),
    )


@dataclass(frozen=True, slots=True)
class _Prefix:
    """One prefix of an engine's lines: its pattern, and the format of its time ("" if it has none)."""

    pattern: re.Pattern[str]
    format: str = ""

    def time_of(self, found: Mapping[str, str], at: float) -> float | None:
        """The unix time in it; of a stamp without a year, with the year that brings it nearest to `at`."""
        if not self.format or "stamp" not in found:
            return None
        text, year = found["stamp"], time.localtime(at).tm_year
        if "%Y" in self.format:
            return next(iter(_times((text,), self.format)), None)
        candidates = _times(tuple(f"{y}-{text}" for y in (year - 1, year, year + 1)), f"%Y-{self.format}")
        return min(candidates, key=lambda t: abs(t - at), default=None)


@cache
def _prefixes() -> tuple[_Prefix, ...]:
    own = (_Prefix(re.compile(row["pattern"]), row.get("stamp", "")) for row in line_prefixes())
    return (*own, _Prefix(_UVICORN_LEVEL))


@cache
def _glue() -> re.Pattern[str]:
    """Between the end of a progress bar and the log line that is glued to it."""
    return re.compile("|".join(f"(?<=[\\])])(?={row['glue']})" for row in line_prefixes() if "glue" in row))


def parse_bar(text: str) -> Bar | None:
    """The tqdm bar in `text`, or None."""
    if len(text) > _MAX_BAR_CHARACTERS or "[" not in text:
        return None
    percent = _PERCENT.search(text)
    count = _COUNT.search(text, percent.end()) if percent is not None else None
    if percent is None or count is None:
        return None
    return Bar(
        label=text[: percent.start()].strip().removesuffix(":").strip(),
        done=_amount(count[1]),
        total=_amount(count[2]),
        eta_s=_clock_seconds(count[3]),
    )


def _clean(data: bytes) -> str:
    return _ANSI.sub("", data[:_MAX_LINE_BYTES].decode("utf-8", errors="replace")).rstrip("\r\n")


def _amount(text: str) -> float:
    return float(text[:-1]) * _UNIT[text[-1]] if text[-1] in _UNIT else float(text)


def _clock_seconds(text: str) -> float | None:
    parts = text.split(":")
    if not (text.isascii() and all(part.isdigit() for part in parts)):
        return None
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds


@lru_cache(maxsize=64)
def _times(texts: tuple[str, ...], format: str) -> tuple[float, ...]:
    times = []
    for text in texts:
        with suppress(ValueError, OverflowError):  # 29 February, or digits that are not a time
            times.append(time.mktime(time.strptime(text, format)))
    return tuple(times)
