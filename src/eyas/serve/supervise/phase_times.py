"""How long the phases of a start take: what earlier starts of the same kind took, and what that leaves of this one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from eyas.serve.log.phases import PhaseRun
from eyas.serve.supervise.phase_memory import PhaseMemory, StartKey
from eyas.serve.supervise.timeline import durations


@dataclass(slots=True)
class PhaseTimes:
    """One start against those that are remembered under `key`; without a memory nothing is known and nothing kept."""

    memory: PhaseMemory | None
    key: StartKey | None
    typical: dict[str, float] = field(init=False, default_factory=dict)
    _is_kept: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if self.memory is not None and self.key is not None:
            self.typical = self.memory.typical(self.key)

    def phase_eta_s(self, run: PhaseRun, at: float) -> float | None:
        """Till the phase ends: by its own progress bar, else by what it took before; None = not known."""
        if run.ended_at is not None:
            return None
        if run.bar_eta is not None:
            return max(run.bar_eta - (at - run.bar_at), 0.0)
        return max(self.typical[run.key] - (at - run.began_at), 0.0) if run.key in self.typical else None

    def ready_eta_s(self, run: PhaseRun, at: float) -> float | None:
        """What the remembered starts still had before them from this phase on; None = not known."""
        names = list(self.typical)
        if run.key not in names:
            return None
        rest = sum(self.typical[name] for name in names[names.index(run.key) + 1 :])
        return rest + max(self.typical[run.key] - (at - run.began_at), 0.0)

    def keep(self, runs: Sequence[PhaseRun]) -> None:
        """It is ready: remember this start, once."""
        if self.memory is not None and self.key is not None and not self._is_kept:
            self.memory.remember(self.key, durations(runs))
        self._is_kept = True
