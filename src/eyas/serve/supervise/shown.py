"""The parts of a snapshot that a person is shown: the phase, the start so far, the processes, the GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eyas.serve.facts.evidence import GpuFacts, ProcessFacts
from eyas.serve.facts.state import GpuView, PhaseRow, PhaseView, RankView
from eyas.serve.log.phases import DONE, PhaseTracker
from eyas.serve.supervise.phase_times import PhaseTimes
from eyas.serve.supervise.state_rules import StateRules
from eyas.talk import seconds

_PROGRESS_EVENT_S = 5.0


@dataclass(slots=True)
class ProgressTeller:
    """When and how the progress of a phase is told: every 5 s, and that time passes where it does not advance."""

    _told_at: float = 0.0
    _text: str = ""

    def due(self, tracker: PhaseTracker, now: float) -> tuple[str, dict[str, Any]] | None:
        """The words and the data of an event; None if there is nothing to tell now."""
        run, progress = tracker.current, tracker.current.progress
        if progress is None or run.ended_at is not None or now - self._told_at < _PROGRESS_EVENT_S:
            return None
        total = "?" if progress.total is None else f"{progress.total:g}"
        text = f"{tracker.title_of(run)}: {progress.done:g}/{total} {progress.unit}".rstrip()
        more = f", {seconds(now - run.began_at)} in this phase" if text == self._text else ""
        self._told_at, self._text = now, text
        return text + more, {"done": progress.done, "total": progress.total, "phase": run.key}


def phase_view(tracker: PhaseTracker, rules: StateRules, times: PhaseTimes, *, at: float, now: float) -> PhaseView:
    """The current phase.

    Args:
        at: the time that is told; of a log that is over, that of its last line. now: the time of the look.
    """
    run, activity = tracker.current, rules.activity(now)
    return PhaseView(
        id=run.id,
        title=tracker.title_of(run) + (f"; {activity}" if activity else ""),
        role=run.role,
        progress=run.progress,
        elapsed_s=at - run.began_at,
        eta_s=times.phase_eta_s(run, at),
        quiet_s=rules.quiet_s(at),
        budget_s=rules.budget_s(now),
    )


def phase_rows(tracker: PhaseTracker, times: PhaseTimes, at: float) -> tuple[PhaseRow, ...]:
    """Every phase so far, with its seconds and its progress."""
    ends = [run.began_at for run in tracker.runs[1:]] + [at]
    return tuple(
        PhaseRow(
            title=tracker.title_of(run).removesuffix(DONE),
            duration_s=end - run.began_at,
            share=run.progress.share if run.progress is not None else None,
            is_current=run is tracker.current,
            typical_s=times.typical.get(run.key),
        )
        for run, end in zip(tracker.runs, ends, strict=True)
    )


def rank_view(process: ProcessFacts) -> RankView:
    """A process by its label, or its program's name."""
    label = process.label or process.name
    return RankView(label=label, pid=process.pid, status=process.status, rss_bytes=process.rss_bytes)


def gpu_views(gpus: Sequence[GpuFacts]) -> tuple[GpuView, ...]:
    """The server's GPUs (all, where it is not known which are its own)."""
    shown = [g for g in gpus if g.is_mine] or gpus
    return tuple(
        GpuView(index=g.index, utilisation=g.utilisation, used_bytes=g.used_bytes, total_bytes=g.total_bytes)
        for g in shown
    )
