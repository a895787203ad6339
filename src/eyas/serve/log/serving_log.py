"""A whole log read once for what it says of decoding: acceptance line by line, and what the launch said of itself."""

import re
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from eyas.contract.engines.registry import ENGINES
from eyas.serve.facts.evidence import LogLine
from eyas.serve.log.log_tail import LogStream, open_log
from eyas.serve.log.logged_acceptance import LoggedAcceptance, acceptance_of, number, values_of
from eyas.serve.log.tables import LogTable, engine_of_line, table_for

_MOST_LINES = 100_000  # about decoding, the newest
_LONGEST_SILENCE = 30  # seconds that a pipe may give nothing before it counts as over


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLog:
    """What a log says.

    Attributes:
        engine: "unknown" where no line tells.
        lines: about acceptance, oldest first.
        facts: what the launch said of itself, by the names of `Life.facts`.
        most_running: the largest batch that a line states; None = no line does.
        notes: what was left out.
    """

    engine: str
    lines: tuple[LoggedAcceptance, ...]
    facts: Mapping[str, str]
    most_running: int | None
    notes: tuple[str, ...] = ()

    @property
    def num_draft_tokens(self) -> int | None:
        """K of the launch."""
        return _whole(self.facts.get("num_draft_tokens"))

    @property
    def topk(self) -> int:
        """Branches per draft step; 1 where the launch does not say."""
        return _whole(self.facts.get("topk")) or 1


def read_serving_log(path: Path, *, engine: str = "unknown", version: str | None = None) -> ServingLog:
    """Read a log (of a long one its beginning and end), or a pipe until it is over.

    Raises:
        LogUnreadable: it cannot be read.
    """
    log = open_log(path)
    every = list(_all_lines(log))
    if engine == "unknown":
        named = Counter(name for line in every if (name := engine_of_line(line.message)) is not None)
        engine = max(named, key=lambda name: named[name], default="unknown")
    table = table_for(engine, version)
    facts = _facts(every, table)
    log_rounds = _whole(facts.get("log_rounds")) or table.life.log_rounds
    lines: deque[LoggedAcceptance] = deque(maxlen=_MOST_LINES)
    most_running: float | None = None
    for line in every:
        said = _said(line, table)
        if (running := number(said.get("running", ""))) is not None:
            most_running = max(running, most_running or 0)
        if (found := acceptance_of(said, log_rounds, at=line.at, label=line.label)) is not None:
            lines.append(replace(found, label=_rank(found.label)))
    return ServingLog(
        engine=engine if engine in ENGINES else "unknown",
        lines=tuple(lines),
        facts=facts,
        most_running=None if most_running is None else int(most_running),
        notes=(log.note,) if log.note else (),
    )


def _all_lines(log: "LogStream | object") -> Iterator[LogLine]:
    assert hasattr(log, "read")
    yield from log.read(time.time(), is_open=False)
    if isinstance(log, LogStream):
        silent_since = time.monotonic()
        while not log.has_ended and time.monotonic() - silent_since < _LONGEST_SILENCE:
            if lines := log.read(time.time()):
                silent_since = time.monotonic()
                yield from lines
            else:
                time.sleep(0.1)


def _said(line: LogLine, table: LogTable) -> Mapping[str, str]:
    """The values of a line about serving that the engine's own logger printed."""
    if (line.stamp is None and not line.level) or table.quotes_users(line.message):
        return {}
    found = table.find(line.message)
    return values_of(found[0], line.message) if found is not None and found[0].event == "serving" else {}


def _facts(lines: list[LogLine], table: LogTable) -> dict[str, str]:
    """The last start's: a later line of the same fact replaces an earlier one."""
    patterns = {name: re.compile(pattern) for name, pattern in table.life.facts.items()}
    found: dict[str, str] = {}
    for line in lines:
        if _said(line, table) or table.quotes_users(line.message):
            continue
        for name, pattern in patterns.items():
            if match := pattern.search(line.message):
                found[name] = match[1]
    return found


def _rank(label: str) -> str:
    """ "DP1" of "DP1 TP0": one line of a data-parallel rank stands for all of its processes."""
    parts = [part for part in label.split() if part.startswith("DP")]
    return parts[0] if parts else ""


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
