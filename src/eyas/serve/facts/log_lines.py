r"""Raw bytes of an engine's stdout and stderr to lines: split on \n and \r, prefixes taken off. Knows no meaning.

Progress bars (tqdm) rewrite their line with \r and never end it, so the text after the last \r is looked at too; and
an engine's log line may be glued to the end of a bar ("...it/s][2026-11-29 14:03:35] Capture ...").
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

# SGLang: configure_logger in srt/utils/common.py: "[%(asctime)s{prefix}] %(message)s", prefix " DP0 PP0 TP0 EP0".
_SGLANG = re.compile(r"^\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?(?P<ranks>(?: [A-Z_]+\d+)*)\] ?")
# vLLM: decorate_logs in utils/system_utils.py and its log format.
_VLLM_PROCESS = re.compile(r"^\((?P<process>[\w.:-]+) pid=(?P<pid>\d+)\) ?")
_VLLM_LEVEL = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?(?: \[[^\]]*\])? ?"
)
_UVICORN_LEVEL = re.compile(r"^(?P<level>INFO|WARNING|ERROR|CRITICAL): +")
_GLUE = re.compile(
    r"(?<=\])(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
    r"|(?<=[\])])(?=\([A-Z]\w* pid=\d+\) )"
    r"|(?<=\])(?=(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d )"
)
_BAR = re.compile(
    r"^(?P<label>.*?):?\s*(?P<percent>\d{1,3})%.*?\|\s*(?P<done>[\d.]+[kMG]?)/(?P<total>[\d.]+[kMG]?)\s*\[(?P<spent>[\d:?]+)<"
    r"(?P<eta>[\d:?]+)"
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MAX_LINE_BYTES = 1 << 16  # what is longer is cut into several: no line of an engine that means something is
_MAX_BAR_CHARACTERS = 2000
_UNIT = {"k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A progress bar as tqdm prints it; `eta_s` None while it says "?"."""

    label: str
    done: float
    total: float
    eta_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line.

    Attributes:
        number: line number in the file as an editor counts it, from 1 (a bar's states share one).
        at: unix time when it was printed, or seen; filled by who read it.
        label: process or rank: "TP0", "DP1 TP0", "EngineCore", "Worker_TP1"; "" if the line has none.
        pid: the process, if printed.
        level: "INFO", "ERROR", ... or "" if none is printed.
        stamp: the time as printed, unix seconds in this machine's zone (the year is ours if it has none), or None.
        message: the text without its prefixes. raw: the text with them.
        bar: the progress bar in it, if one.
    """

    number: int
    at: float
    label: str
    pid: int | None
    level: str
    stamp: float | None
    message: str
    raw: str
    bar: Bar | None = None

    @property
    def has_full_date(self) -> bool:
        """Stamped with its year, as SGLang does; vLLM, which prints a level too, leaves it out."""
        return self.stamp is not None and not self.level


class LineSplitter:
    """Bytes in, lines out, whatever the pieces they come in."""

    def __init__(self) -> None:
        self._rest = b""
        self._number = 1

    @property
    def pending(self) -> str:
        """The text that no \\n or \\r has ended yet: with tqdm, the newest state of the bar."""
        return _clean(self._rest)

    def feed(self, data: bytes, at: float) -> Iterator[LogLine]:
        """The lines that `data` completes. Empty lines are counted and left out."""
        buffer = self._rest + data
        # A \r at the very end may be half of a \r\n: it waits for the next piece.
        held = b""
        if buffer.endswith(b"\r"):
            buffer, held = buffer[:-1], b"\r"
        pieces = re.split(rb"(\r+\n|\n|\r)", buffer)
        self._rest = pieces.pop() + held
        for text, end in zip(pieces[::2], pieces[1::2], strict=True):
            for begin in range(0, len(text), _MAX_LINE_BYTES):
                yield from parse_lines(_clean(text[begin : begin + _MAX_LINE_BYTES]), number=self._number, at=at)
            if end.endswith(b"\n"):
                self._number += 1
        while len(self._rest) > _MAX_LINE_BYTES:
            long, self._rest = self._rest[:_MAX_LINE_BYTES], self._rest[_MAX_LINE_BYTES:]
            yield from parse_lines(_clean(long), number=self._number, at=at)

    def skip(self, num_newlines: int, at: float) -> Iterator[LogLine]:
        """A part of the file is left out: end the line before it, count those in it."""
        yield from self.flush(at)
        self._number += num_newlines

    def flush(self, at: float) -> Iterator[LogLine]:
        """The unended rest, at the end of the file."""
        rest, self._rest = self._rest, b""
        yield from parse_lines(_clean(rest), number=self._number, at=at)


def parse_lines(text: str, *, number: int, at: float) -> Iterator[LogLine]:
    """A piece between two line ends; more than one line if a log line is glued to a bar."""
    for part in _GLUE.split(text):
        if part.strip():
            yield parse_line(part, number=number, at=at)


def parse_line(text: str, *, number: int, at: float) -> LogLine:
    """One line with its prefixes taken off."""
    label, pid, level, stamp, rest = "", None, "", None, text
    if match := _SGLANG.match(rest):
        label, stamp, rest = match["ranks"].strip(), _sglang_time(match["stamp"]), rest[match.end() :]
    else:
        if match := _VLLM_PROCESS.match(rest):
            label, pid, rest = match["process"], int(match["pid"]), rest[match.end() :]
        if match := _VLLM_LEVEL.match(rest):
            level, stamp, rest = match["level"], _vllm_time(match["stamp"], at), rest[match.end() :]
        elif match := _UVICORN_LEVEL.match(rest):
            level, rest = match["level"], rest[match.end() :]
    return LogLine(
        number=number,
        at=at,
        label=label,
        pid=pid,
        level=level,
        stamp=stamp,
        message=rest.rstrip(),
        raw=text.rstrip(),
        bar=parse_bar(rest),
    )


def parse_bar(text: str) -> Bar | None:
    """The tqdm bar in `text`, or None."""
    if len(text) > _MAX_BAR_CHARACTERS or "%" not in text or "[" not in text:
        return None  # the pattern is slow on what is no bar
    match = _BAR.match(text.strip())
    if match is None:
        return None
    return Bar(
        label=match["label"].strip(),
        done=_amount(match["done"]),
        total=_amount(match["total"]),
        eta_s=_clock_seconds(match["eta"]),
    )


def _clean(data: bytes) -> str:
    return _ANSI.sub("", data.decode("utf-8", errors="replace")).rstrip("\r\n")


def _amount(text: str) -> float:
    return float(text[:-1]) * _UNIT[text[-1]] if text[-1] in _UNIT else float(text)


def _clock_seconds(text: str) -> float | None:
    parts = text.split(":")
    if not all(part.isdigit() for part in parts):
        return None
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds


@lru_cache(maxsize=64)
def _sglang_time(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):  # digits, but no time
        return None


def _vllm_time(text: str, at: float) -> float | None:
    """vLLM prints no year: the one that brings the stamp nearest to `at`."""
    return min(_vllm_times(text, time.localtime(at).tm_year), key=lambda t: abs(t - at), default=None)


@lru_cache(maxsize=64)
def _vllm_times(text: str, year: int) -> tuple[float, ...]:
    candidates = []
    for y in (year - 1, year, year + 1):
        try:
            candidates.append(time.mktime(time.strptime(f"{y}-{text}", "%Y-%m-%d %H:%M:%S")))
        except ValueError:  # 29 February, or no time at all
            continue
    return tuple(candidates)
