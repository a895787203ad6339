"""Tracebacks out of an engine's log: gathered per process, chained ones together. Knows no engine's failures."""

import re
from dataclasses import dataclass, field

from eyas.serve.facts.evidence import LogLine
from eyas.serve.log.foreign_prefixes import TRACEBACK

_CHAIN = re.compile(
    r"^(During handling of the above exception, another exception occurred:"
    r"|The above exception was the direct cause of the following exception:)"
)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:: .*|:?)$")
_NO_CAUSE = ("For further information visit", "Possible solutions", "Open an issue")
_MAX_TOLD = 6  # further lines of an exception that are shown
_MAX_LINES = 400
_MAX_MESSAGE_LINES = 30


@dataclass(slots=True, kw_only=True)
class Traceback:
    """One traceback, with those that Python chained to it.

    Attributes:
        label, pid: the process that printed it. number: log line where it begins.
        lines: everything, unprefixed. exceptions: the exception lines in order: the first is where it began.
        details: the further lines of each exception's message.
        heading: the line that introduced it ("Scheduler hit an exception:", "WorkerProc failed to start.").
        level: as printed.
    """

    label: str
    pid: int | None
    number: int
    at: float
    lines: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)
    details: list[list[str]] = field(default_factory=list)
    heading: str = ""
    level: str = ""
    in_message: bool = False
    message_lines: int = 0
    awaits_chain: bool = False

    @property
    def is_logged_warning(self) -> bool:
        """Printed below ERROR: the program went on."""
        return self.level in ("DEBUG", "INFO", "WARNING")

    def told(self, index: int) -> str:
        """An exception with what its message says on further lines (pydantic and load_state_dict say why there)."""
        more = [line for line in self.details[index] if line and not line.startswith(_NO_CAUSE)]
        return " ".join([self.exceptions[index], *more[:_MAX_TOLD]])

    @property
    def text(self) -> str:
        """All lines, with the heading."""
        return "\n".join([self.heading, *self.lines])

    @property
    def messages(self) -> str:
        """The exceptions with their further message lines, without frames."""
        return "\n".join([self.heading, *(line for line in self.lines if not line.startswith((" ", "Traceback")))])


class TracebackReader:
    """Lines in, tracebacks out; at most `limit` are kept (the first ones matter)."""

    def __init__(self, limit: int = 60) -> None:
        self.tracebacks: list[Traceback] = []
        self._open: dict[tuple[str, int | None], Traceback] = {}
        self._bare: Traceback | None = None
        self._started: Traceback | None = None
        self._previous: dict[tuple[str, int | None], str] = {}
        self._limit = limit

    def feed(self, line: LogLine) -> bool:
        """Take a line in; True if it belongs to a traceback."""
        key = (line.label, line.pid)
        is_prefixed = line.has_prefix
        started, self._started = self._started, None
        if not is_prefixed and self._bare is None and started is not None and line.message.startswith("  File "):
            # TensorRT-LLM prefixes the first line of a message only
            self._open = {k: t for k, t in self._open.items() if t is not started}
            self._bare = started
        if line.message.endswith(TRACEBACK):  # a quoted one has more text after it
            self._start(key, line, is_prefixed)
            return True
        if is_prefixed:
            self._previous[key] = line.message
            if self._bare is not None and (self._bare.label, self._bare.pid) == key:
                self._bare = None
        current = self._open.get(key) if is_prefixed else self._bare
        if current is None:
            return False
        is_other = bool(line.level) and line.level != current.level
        if not is_other and self._continue(current, line.message):
            return True
        if is_prefixed:
            del self._open[key]
        else:
            self._bare = None
        return False

    def _start(self, key: tuple[str, int | None], line: LogLine, is_prefixed: bool) -> None:
        head, _, rest = line.message.partition(TRACEBACK)
        current = self._open.get(key) if is_prefixed else self._bare
        if current is not None and current.awaits_chain:
            current.awaits_chain, current.in_message = False, False
            current.lines.append(TRACEBACK + rest)
            return
        traceback = Traceback(
            label=line.label,
            pid=line.pid,
            number=line.number,
            at=line.at,
            lines=[TRACEBACK],
            heading=(head.strip() or (self._previous.get(key, "") if is_prefixed else "")),
            level=line.level,
        )
        if len(self.tracebacks) < self._limit:
            self.tracebacks.append(traceback)
        # vLLM prefixes every line of a traceback (its process, or level and time); SGLang and uvicorn only the first.
        if line.pid is not None or (line.level and line.stamp is not None):
            self._open[key] = self._started = traceback
        else:
            self._bare = traceback

    def _continue(self, current: Traceback, message: str) -> bool:
        if len(current.lines) >= _MAX_LINES:
            return False
        if _CHAIN.match(message):
            current.awaits_chain = True
            current.lines.append(message)
            return True
        if message.startswith((" ", "\t")) and not current.in_message:
            current.lines.append(message)
            return True
        if not current.in_message and _EXCEPTION.match(message):
            current.in_message, current.message_lines = True, 0
            current.exceptions.append(message)
            current.details.append([])
            current.lines.append(message)
            return True
        if current.in_message and current.message_lines < _MAX_MESSAGE_LINES:
            current.message_lines += 1
            current.details[-1].append(message.strip())
            current.lines.append(message)
            return True
        return current.awaits_chain
