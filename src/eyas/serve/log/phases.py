"""Where in the start-up the log says that the engine is: lines in, phases out. Looks at nothing but lines.

A phase is (id, role, detail), such as ("graphs", "draft", "decode"). With several ranks the first rank's begin counts
and a straggler's repetition does not move the phase back.
"""

import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from eyas.serve.facts.evidence import Bar, LogLine
from eyas.serve.facts.state import ModelRole, PhaseProgress
from eyas.serve.log.logged_acceptance import LoggedAcceptance, acceptance_of, number, values_of
from eyas.serve.log.tables import LogTable, Marker, ProgressRule

DONE = ": done, continuing"
_MAX_REPEATS = 50  # a line of the same form oftener than this in one phase is a heartbeat, not progress
_MAX_FORMS, _FORM_CHARACTERS = 5000, 300
_SERVING_LINES = 5
_UNPREFIXED = ("info", "hint", "end")  # what does no harm where it is only quoted
_DIGITS = re.compile(r"[\d.:]+")


@dataclass(slots=True, kw_only=True)
class PhaseRun:
    """A phase that was entered. Times are unix seconds; `ended_at` is set by its end marker or the next phase."""

    id: str
    role: ModelRole | None
    detail: str
    began_at: float
    ended_at: float | None = None
    progress: PhaseProgress | None = None
    bar_eta: float | None = None
    bar_at: float = 0.0

    @property
    def key(self) -> str:
        """What durations are remembered under: "graphs:draft:decode"."""
        return ":".join(part for part in (self.id, self.role or "", self.detail) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineMeaning:
    """What one line meant.

    Attributes:
        moved: kinds of evidence that something progresses: "log", "progress", "phase"; empty for a heartbeat.
        began: the phase that it began, if it did.
        says: a hint to show, or "".
        restarted: the line is the first of a new start in the same log.
    """

    moved: frozenset[str] = frozenset()
    began: PhaseRun | None = None
    says: str = ""
    restarted: bool = False


@dataclass(slots=True)
class PhaseTracker:
    """Follows one log. `runs` is the start-up so far, oldest first; the last one is current."""

    table: LogTable
    began_at: float
    first_phase: str = "launch"
    runs: list[PhaseRun] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    ready_at: float | None = None
    draining_at: float | None = None
    dying_at: float | None = None
    finished_at: float | None = None
    core_died: bool = False
    self_killed: bool = False
    serving: dict[str, float] = field(default_factory=dict)
    logged: deque[LoggedAcceptance] = field(default_factory=lambda: deque(maxlen=_SERVING_LINES))
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _forms: Counter[str] = field(default_factory=Counter)
    _last_done: tuple[str, float] = ("", -1.0)

    def __post_init__(self) -> None:
        self._begin(self.first_phase, None, "", self.began_at)

    @property
    def knows_a_line(self) -> bool:
        """Whether any line so far was an engine's (any program prints progress bars)."""
        return bool(self._counts)

    @property
    def current(self) -> PhaseRun:
        """The phase that was begun last."""
        return self.runs[-1]

    def feed(self, line: LogLine) -> LineMeaning:
        """Take one line in."""
        if line.bar is not None:
            return self._feed_bar(line, line.bar)
        if self.table.quotes_users(line.message):
            return LineMeaning()
        found = self.table.find(line.message)
        if found is not None and (line.has_prefix or found[0].event in _UNPREFIXED):
            return self._feed_marker(line, *found)
        if self.table.proves_nothing(line.message):
            return LineMeaning()
        form = f"{line.label}|{_DIGITS.sub('#', line.message[:_FORM_CHARACTERS])}"
        if len(self._forms) > _MAX_FORMS:
            self._forms.clear()
        self._forms[form] += 1
        return LineMeaning(moved=frozenset() if self._forms[form] > _MAX_REPEATS else frozenset({"log"}))

    def feed_pending(self, bar: Bar | None, at: float) -> frozenset[str]:
        """The unended rest of the log: with tqdm, the newest state of the bar."""
        return self._apply_bar(bar, at) if bar is not None else frozenset()

    def saw_http(self, *, ready: bool, at: float) -> PhaseRun | None:
        """What an endpoint showed: HTTP up (warm-up), or ready. The phase that this begins, if it does."""
        if ready:
            if self.ready_at is not None:
                return None
            self._become_ready(at)
            return self.current
        return self._begin("warm-up", None, "", at)

    @property
    def milestones(self) -> dict[str, float]:
        """Events in the log beside phases, as sentences, with the time of each."""
        told = {
            "the log says that it is ready": self.ready_at,
            "the log says that it was asked to end": self.draining_at,
            "the log says that it dies": self.dying_at,
        }
        return {words: at for words, at in told.items() if at is not None}

    def ranks_at(self, phase: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The ranks that printed an end of that phase, and those that have lines in the log and did not."""
        ends = {marker.id for marker in self.table.markers if marker.event == "end" and marker.phase == phase}
        ended = {label for label, marker in self._counts if label and marker in ends}
        return tuple(sorted(ended)), tuple(sorted({label for label, _ in self._counts if label} - ended))

    def title_of(self, run: PhaseRun) -> str:
        """The phase for a person: "capturing CUDA graphs of the draft (decode)"."""
        title = self.table.phases[run.id].title
        if run.role:
            title += f" of the {run.role}"
        if run.detail:
            title += f" ({run.detail})"
        return title + (DONE if run.ended_at is not None else "")

    # ------------------------------------------------------------------ markers

    def _feed_marker(self, line: LogLine, marker: Marker, match: re.Match[str]) -> LineMeaning:
        groups = {k: v for k, v in match.groupdict().items() if v is not None}
        if marker.sets:
            self.facts[marker.sets] = groups.get(marker.sets, line.message)
        restarted = marker.restarts and self._has_passed(marker.phase)
        if restarted:
            self._reset(line.at)
        meaning = self._events(line, marker, groups)
        self._counts[(line.label, marker.id)] += 1
        return replace(meaning, restarted=restarted)

    def _events(self, line: LogLine, marker: Marker, groups: Mapping[str, str]) -> LineMeaning:
        moved = frozenset() if self.table.proves_nothing(line.message) else frozenset({"log"})
        began = None
        if marker.event == "begin":
            began = self._begin(
                marker.phase,
                self._role(marker, line, groups),
                groups.get("detail", marker.detail).strip(),
                line.at,
            )
            moved |= {"phase"} if began is not None else set()
        elif marker.event == "end":
            self._end(marker.phase, line.at)
        elif marker.event == "ready":
            self._become_ready(line.at)
        elif marker.event == "serving":
            said = {**groups, **values_of(marker, line.message)}
            self.serving = {k: value for k, v in said.items() if (value := number(v)) is not None}
            if (logged := acceptance_of(said, self.table.life.log_rounds, at=line.at, label=line.label)) is not None:
                self.logged.append(logged)
            self._become_ready(line.at)
        elif marker.event == "draining":
            self.draining_at = self.draining_at or line.at
        elif marker.event in ("dying", "core-died"):
            self.dying_at = self.dying_at or line.at
            self.core_died |= marker.event == "core-died"
        elif marker.event == "kill-tree":
            self._killed_tree(groups, line.at)
        elif marker.event == "finished":
            self.finished_at = line.at
        return LineMeaning(moved=moved, began=began, says=marker.says)

    def _role(self, marker: Marker, line: LogLine, groups: Mapping[str, str]) -> ModelRole | None:
        role = groups.get("role", marker.role)
        if role == "by-count":
            return "draft" if self._counts[(line.label, marker.id)] else "target"
        if role.startswith("by-count-of:"):
            return "draft" if self._counts[(line.label, role.removeprefix("by-count-of:"))] else "target"
        return "target" if role == "target" else "draft" if role == "draft" else None

    def _killed_tree(self, said: Mapping[str, str], at: float) -> None:
        """SGLang's kill_process_tree: how it ends after a tidy drain, or the sign of a failure.

        An engine without a server has no drain: `Engine.shutdown` (entrypoints/engine.py) ends the children and spares
        itself (include_parent=False). Whether a failure came before that, the tracebacks know.
        """
        itself = said["parent"] == said["pid"]
        if self.draining_at is not None and self.dying_at is None:
            self.finished_at = at
        elif said["include"] == "True" and itself:
            self.dying_at = self.dying_at or at
            self.self_killed = True
        elif itself and self.dying_at is None:
            self.finished_at = at

    def _has_passed(self, phase: str) -> bool:
        order = self.table.order
        ended = self.dying_at is not None or self.finished_at is not None
        return ended or any(order.index(run.id) > order.index(phase) for run in self.runs)

    def _reset(self, at: float) -> None:
        self.runs.clear()
        self._counts.clear()
        self.ready_at = self.draining_at = self.dying_at = self.finished_at = None
        self.core_died = self.self_killed = False
        self.serving = {}
        self.logged.clear()
        self._begin(self.first_phase, None, "", at)

    # ------------------------------------------------------------------ phases

    def _begin(self, phase: str, role: ModelRole | None, detail: str, at: float) -> PhaseRun | None:
        run = PhaseRun(id=phase, role=role, detail=detail, began_at=at)
        if any(seen.key == run.key for seen in self.runs):
            return None
        if self.runs and self.current.ended_at is None:
            self.current.ended_at = at
        self.runs.append(run)
        self._forms.clear()
        self._last_done = ("", -1.0)
        return run

    def _end(self, phase: str, at: float) -> None:
        if self.current.id == phase:
            self.current.ended_at = at

    def _become_ready(self, at: float) -> None:
        if self.ready_at is None:
            self.ready_at = at
            self._begin("ready", None, "", at)

    # ------------------------------------------------------------------ bars

    def _feed_bar(self, line: LogLine, bar: Bar) -> LineMeaning:
        before = self.current
        moved = self._apply_bar(bar, line.at)
        return LineMeaning(moved=moved, began=self.current if self.current is not before else None)

    def _apply_bar(self, bar: Bar, at: float) -> frozenset[str]:
        rule, match = self._rule_of(bar)
        moved = {"progress"} if (bar.label, bar.done) != self._last_done else set()
        if rule is not None and match is not None and self._enter(rule, match, at):
            moved.add("phase")
        self._last_done = (bar.label, bar.done)
        if rule is not None and self.current.id == rule.phase:
            self.current.progress = PhaseProgress(done=bar.done, total=bar.total, unit=rule.unit, text=bar.label)
            self.current.bar_eta, self.current.bar_at = bar.eta_s, at
        return frozenset(moved)

    def _rule_of(self, bar: Bar) -> tuple[ProgressRule | None, re.Match[str] | None]:
        for rule in self.table.progress:
            match = rule.label.search(bar.label)
            if match is not None:
                return rule, match
        return None, None

    def _enter(self, rule: ProgressRule, match: re.Match[str], at: float) -> bool:
        """Begin the bar's phase if the current one is another (a bar can be the only sign of a phase)."""
        detail = match.groupdict().get("detail") or rule.detail
        current = self.current
        if current.id == rule.phase and current.ended_at is None and (not detail or detail == current.detail):
            return False
        if self.ready_at is not None:
            return False
        role: ModelRole | None = "target" if rule.role == "target" else "draft" if rule.role == "draft" else None
        return self._begin(rule.phase, role, detail, at) is not None
