"""What a log alone says of its server, and what it cannot tell: the rules where nothing else is known."""

import math
from dataclasses import dataclass

from eyas.serve.facts.evidence import Observation
from eyas.serve.facts.state import Assessment, Engine, StateName
from eyas.serve.log.phases import PhaseTracker
from eyas.serve.log.tables import all_lives
from eyas.talk import seconds

_END_S = 5.0
_ENDS = {
    "over": "no process writes it any more",
    "closed": "its writer has closed it",
    "unfollowed": "read to its end and not followed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """What a log said up to now; `last_line_at` None = nothing, `quiet_s` = since its last progress."""

    engine: Engine
    tracker: PhaseTracker
    last_line_at: float | None
    quiet_s: float
    has_crash_evidence: bool

    @property
    def is_unknown(self) -> bool:
        """No line was one of an engine's."""
        return self.engine == "unknown" or not self.tracker.knows_a_line

    def are_past(self, seen: Observation) -> bool:
        """The log is over or reports the end: its events take the log's times, not the watch's."""
        tracker = self.tracker
        ended = tracker.finished_at is not None or tracker.dying_at is not None
        ended |= self.has_crash_evidence and tracker.ready_at is None
        return self.last_line_at is not None and (ended or seen.log_life != "written")


def log_assessment(seen: Observation, words: LastWords) -> Assessment | None:
    """Its end, or that it is not an engine's; None while it is written, and where it ends while the server is ready."""
    tracker, is_over = words.tracker, seen.log_life != "written"
    end = how_it_ends(seen, words.last_line_at)
    verdict = _goodbye(words, end, is_over=is_over)
    if verdict is not None:
        return verdict
    if words.is_unknown:
        # A log that may be another program's has neither a phase nor a stall.
        lives = [words.tracker.table.life] if words.engine != "unknown" else all_lives()
        *first, last = [f"{life.title}'s" for life in lives]
        name = f"{', '.join(first)} or {last}" if first else last
        what = "the log is empty" if words.last_line_at is None else f"no line of it is one of {name} that eyas knows"
        if is_over:
            return Assessment(state=StateName.NO_ENGINE, reason=f"{what} ({end})")
        return Assessment(state=StateName.STARTING, reason=f"{what} so far")
    title = tracker.title_of(tracker.current)
    if seen.log_life == "closed":
        reason = f"the writer of the log is gone, without a shutdown message; its last phase: {title}"
        return Assessment(state=StateName.CRASHED, reason=reason)
    if not is_over or tracker.ready_at is not None:
        return None
    state = StateName.WARMING_UP if tracker.current.id == "warm-up" else StateName.STARTING
    reason = f"the log ends during the start: {title} ({end}) and does not say whether the server died"
    following = tracker.table.phases[tracker.current.id].next
    reason += f"; next: {following}" if following else ""
    return Assessment(state=state, reason=reason)


def how_it_ends(seen: Observation, last_line_at: float | None) -> str:
    """ "no process writes it any more, its last line is 9 days old": the age only where its times are real ones."""
    age = "" if last_line_at is None else f"its last line is {seconds(seen.at - last_line_at)} old"
    return ", ".join(part for part in (_ENDS.get(seen.log_life, ""), age if seen.has_log_age else "") if part)


def _goodbye(words: LastWords, end: str, *, is_over: bool) -> Assessment | None:
    tracker = words.tracker
    quiet_s = math.inf if is_over else words.quiet_s
    has_finished = tracker.finished_at is not None
    dies = tracker.core_died and (has_finished or words.has_crash_evidence)
    if tracker.self_killed or dies or (tracker.dying_at is not None and is_over):
        return Assessment(state=StateName.CRASHED, reason="the log reports its death")
    if has_finished and tracker.draining_at is None and words.has_crash_evidence:
        return Assessment(state=StateName.CRASHED, reason="the log reports a fatal error, then the engine's end")
    if has_finished:
        return Assessment(state=StateName.STOPPED, reason="the log ends with the server's shutdown message")
    if words.has_crash_evidence and tracker.ready_at is None and quiet_s >= _END_S:
        return Assessment(state=StateName.CRASHED, reason=f"the log ends with a fatal error ({end})")
    if tracker.draining_at is not None and quiet_s >= tracker.table.phases["draining"].quiet_s:
        return Assessment(state=StateName.STOPPED, reason="the log ends while draining")
    return None
