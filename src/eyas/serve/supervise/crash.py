"""Why a server died: the first root cause in the process where it arose, not the last traceback.

Reads log lines as they come (bounded memory) and answers when asked. An engine that dies prints many tracebacks: the
rank's, then each parent's ("Engine core initialization failed. See root cause above."), then the echoes of the other
ranks. Parents and echoes are known by their text; of the rest the first one counts.
"""

import re
from dataclasses import dataclass

from eyas.diagnostic import finding
from eyas.serve.facts.evidence import ExitFacts, LogLine
from eyas.serve.facts.state import Cause
from eyas.serve.log.tables import KnownFailure, Life, LogTable, failure_of
from eyas.serve.log.tracebacks import Traceback, TracebackReader

_SIGNAL_NAMES = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_MAX_FATAL_LINES = 200


@dataclass(frozen=True, slots=True)
class _FatalLine:
    line: LogLine
    row: KnownFailure
    match: re.Match[str]


class CrashReader:
    """Gathers what may be the cause while the log goes by."""

    def __init__(self, table: LogTable) -> None:
        self._table = table
        self._reader = TracebackReader()
        self._fatal: list[_FatalLine] = []
        self._echoes: dict[tuple[int, int], bool] = {}

    def feed(self, line: LogLine) -> None:
        """Take one line in."""
        if self._table.quotes_users(line.message):
            return
        if line.bar is not None or self._reader.feed(line) or len(self._fatal) >= _MAX_FATAL_LINES:
            return
        found = self._table.find_failure(line.message, anywhere=True)
        if found is not None and (line.level not in ("DEBUG", "WARNING") or found[0].collateral):
            self._fatal.append(_FatalLine(line, *found))

    @property
    def has_evidence(self) -> bool:
        """Whether anything fatal was printed: a root traceback, or a fatal line that is not an echo."""
        return self._root() is not None or any(not fatal.row.collateral for fatal in self._fatal)

    @property
    def echoes_a_death(self) -> bool:
        """Whether a parent or another rank reported a process's death."""
        return bool(self._fatal) or self._first_echo() is not None

    def cause(self, exit_facts: ExitFacts | None, *, phase: str, self_killed: bool, core_died: bool) -> Cause:
        """The first root cause.

        Args:
            exit_facts: how the subject ended, if that is known.
            phase: where the start-up was ("while capturing CUDA graphs of the draft (decode)").
            self_killed: the log says that the engine ended itself by SIGKILL.
            core_died: the log says that the engine's core or a worker died.
        """
        exit_text = explain_exit(exit_facts, self._table.life, self_killed=self_killed, core_died=core_died)
        root, fatal = self._root(), self._first_fatal()
        if root is not None and (fatal is None or fatal.row.collateral or root.number <= fatal.line.number):
            return self._of_traceback(root, phase, exit_text)
        if fatal is not None and not fatal.row.collateral:
            return _of_row(fatal.row, fatal.match, _where(fatal.line.label, fatal.line.number, phase), exit_text)
        silent = _silent_cause(exit_facts, self_killed=self_killed)
        if silent is not None:
            return _of_row(failure_of(silent), None, phase, exit_text)
        if fatal is not None:
            return _of_row(fatal.row, fatal.match, _where(fatal.line.label, fatal.line.number, phase), exit_text)
        echo = self._first_echo()
        if echo is not None:
            return self._of_traceback(echo, phase, exit_text)
        why = exit_text or "no traceback and no known message is in the log"
        do = "look at the end of the log; start again with the engine's log level at debug"
        unknown = finding("crash-unknown", "fatal", "the server ended without saying why", phase, why, do)
        return Cause(diagnostic=unknown, exit_text=exit_text)

    def _root(self) -> Traceback | None:
        """The first traceback that is not a parent's report, an echo or a logged warning."""
        own = [
            t for t in self._reader.tracebacks if t.exceptions and not t.is_logged_warning and not self._is_parent(t)
        ]
        first_hand = [t for t in own if not self._is_echo(t)]
        return min(first_hand, key=lambda t: t.number, default=None)

    def _first_echo(self) -> Traceback | None:
        told = [t for t in self._reader.tracebacks if t.exceptions and not t.is_logged_warning]
        own = [t for t in told if not self._is_parent(t)]
        # A parent that names the child's exit code is better than nothing.
        return next((t for t in own or told if own or self._table.find_failure(t.messages)), None)

    def _is_echo(self, traceback: Traceback) -> bool:
        key = (traceback.number, len(traceback.lines))
        if key not in self._echoes:
            found = self._table.find_failure(traceback.messages)
            self._echoes[key] = found is not None and found[0].collateral
        return self._echoes[key]

    def _is_parent(self, traceback: Traceback) -> bool:
        return self._table.parents.search(traceback.exceptions[0]) is not None

    def _owner(self, traceback: Traceback) -> str:
        """The process a traceback comes from, if the log says so: by its prefix, else by its heading."""
        if traceback.label:
            return traceback.label if traceback.pid is None else f"{traceback.label} (pid {traceback.pid})"
        owners = self._table.life.owners or {}
        return next((owner for word, owner in owners.items() if traceback.heading.startswith(word)), "")

    def _first_fatal(self) -> _FatalLine | None:
        first_hand = [f for f in self._fatal if not f.row.collateral]
        return first_hand[0] if first_hand else (self._fatal[0] if self._fatal else None)

    def _of_traceback(self, root: Traceback, phase: str, exit_text: str) -> Cause:
        where = _where(self._owner(root), root.number, phase)
        found = self._table.find_failure(root.messages) or self._table.find_failure(root.text)
        if found is not None:
            return _of_row(*found, where, exit_text, tuple(root.lines))
        first, last = root.told(0), root.told(-1)
        why = f"it led to: {last[:300]}" if last != first else "eyas does not know this failure"
        do = "read the traceback from its end upwards; search the engine's issues for the exception's text"
        unknown = finding("crash-unknown", "fatal", first[:500], where, why, do)
        return Cause(diagnostic=unknown, exit_text=exit_text, traceback=tuple(root.lines))


def explain_exit(facts: ExitFacts | None, life: Life, *, self_killed: bool, core_died: bool) -> str:
    """What an exit code means for these engines; "" when it is not known."""
    if facts is None or facts.code is None:
        return "not known (eyas did not start it)" if facts is not None else ""
    code = facts.code
    if code == 137 and self_killed:
        return f"137: {life.self_kill}"
    if code == 137 and _was_oom(facts):
        return f"137: SIGKILL by the kernel's OOM killer ({facts.oom_text or 'the cgroup counted an oom_kill'})"
    if code == 137:
        known = "no sign of the OOM killer" if facts.num_oom_kills == 0 else "the OOM killer's count could not be read"
        return f"137: SIGKILL from outside; {known}"
    if code == 0 and core_died:
        return f"0, which is not success here: {life.core_death}"
    if code > 128:
        return f"{code}: {_SIGNAL_NAMES.get(code - 128, f'signal {code - 128}')}"
    return str(code)


def _silent_cause(facts: ExitFacts | None, *, self_killed: bool) -> str | None:
    if facts is None or facts.code is None:
        return None
    if facts.code == 137 and not self_killed:
        return "killed-out-of-memory" if _was_oom(facts) else "killed-from-outside"
    return {139: "segmentation-fault", 134: "aborted"}.get(facts.code)


def _was_oom(facts: ExitFacts) -> bool:
    return bool(facts.num_oom_kills) or bool(facts.oom_text)


def _where(label: str, number: int, phase: str) -> str:
    return f"{label}{label and ', '}log line {number}, {phase}"


def _of_row(
    row: KnownFailure, match: re.Match[str] | None, where: str, exit_text: str, traceback: tuple[str, ...] = ()
) -> Cause:
    what, why, do = row.says(match)
    found = finding(row.code, "fatal", what, where, why, do)
    return Cause(diagnostic=found, exit_text=exit_text, traceback=traceback)
