"""What others put before each line of an engine's log, taken off: compose, Docker, CRI, journald, kubectl, Ray, srun.

Known forms are taken off wherever they stand. Any other prefix (a constant, a time) is learned from the first line
in which it stands before an engine's own prefix. In a log whose first engine line begins with the engine's own prefix,
other prefixes are not looked for: a user's text that quotes such a line stays a text.
"""

import json
import re
from functools import cache

from eyas.serve.log.tables import line_prefixes

TRACEBACK = "Traceback (most recent call last):"

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_KNOWN = re.compile(
    "|".join(
        (
            rf"{_STAMP} std(?:out|err) [FP] ",  # CRI: containerd, CRI-O
            rf"(?:{_STAMP}|[A-Z][a-z][a-z] [ \d]\d \d\d:\d\d:\d\d) [\w.-]+ [\w.@/-]+(?:\[\d+\])?: ",  # journald, syslog
            rf"{_STAMP} ",  # docker logs -t, kubectl logs --timestamps
            r"\[pod/[^\]\s]{1,300}\] ",  # kubectl logs --prefix
            r"[A-Za-z][\w.-]{0,100} +\| ",  # compose
            r"\((?:\w[\w.:]{0,100} )?pid=\d{1,10}, ip=[0-9a-fA-F.:]{1,50}\) ",  # Ray
            r" {0,6}\d{1,6}: ",  # srun -l
        )
    )
)
_LEVEL = r"(?:INFO|WARNING|ERROR|CRITICAL): {1,5}"  # uvicorn's
_ENDS = " :|>\t"  # not "]": a line that is glued to the end of a progress bar
_MAX_PREFIX, _MAX_LEARNED, _MAX_NESTED = 200, 16, 4


class ForeignPrefixes:
    """The prefixes seen so far in one log."""

    def __init__(self) -> None:
        self._learned: list[re.Pattern[str]] = []
        self._is_bare: bool | None = None

    @property
    def _has_room(self) -> bool:
        return len(self._learned) < _MAX_LEARNED

    def lines(self, text: str) -> list[str]:
        """The engine's own line or lines (Docker's JSON holds several states of a progress bar in one) in `text`."""
        if text.startswith("{") and (inner := _docker_json(text)) is not None:
            return [part for part in re.split(r"[\r\n]", inner) if part.strip()]
        return [self.strip(text)]

    def strip(self, text: str) -> str:
        """`text` from where the engine's own line begins."""
        text = _without(text)
        for learned in self._learned:
            if match := learned.match(text):
                return text[match.end() :]
        if self._is_bare:
            return text
        begin = _begin_of_engine(text[: 2 * _MAX_PREFIX])
        if begin == 0:
            self._is_bare = self._is_bare is None
        elif begin is not None and begin <= _MAX_PREFIX and text[begin - 1] in _ENDS and self._has_room:
            self._is_bare = False
            self._learned.append(_shape(text[:begin]))
            return text[begin:]
        return text


def _without(text: str) -> str:
    for _ in range(_MAX_NESTED):
        match = _KNOWN.match(text)
        if match is None:
            break
        text = text[match.end() :]
    return text


def _begin_of_engine(text: str) -> int | None:
    """Where the first engine prefix begins; one right before another engine's whole prefix is Ray's and is skipped."""
    first = _own().search(text)
    if first is None:
        begin = text.find(TRACEBACK)  # an import that fails is all that some logs hold
        return begin if begin > 0 and text.endswith(TRACEBACK) else None
    return first.end() if _whole().match(text, first.end()) else first.start()


@cache
def _own() -> re.Pattern[str]:
    return re.compile("|".join([*(row["glue"] for row in line_prefixes() if "glue" in row), _LEVEL]))


@cache
def _whole() -> re.Pattern[str]:
    """Prefixes that an engine prints first: never after another of its own."""
    return re.compile("|".join(row["glue"] for row in line_prefixes() if row.get("is_first")))


def _shape(prefix: str) -> re.Pattern[str]:
    """The prefix with any numbers and any padding; its end as it is: what follows may be indented."""
    *parts, last = re.findall(r"\d+| +|.", prefix)
    kinds = (r"\d{1,20}" if part.isdigit() else " {1,200}" if part.isspace() else re.escape(part) for part in parts)
    return re.compile("".join(kinds) + re.escape(last))


def _docker_json(text: str) -> str | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    log = value.get("log") if isinstance(value, dict) else None
    return log if isinstance(log, str) else None
