"""Between "nothing moves" and "stalled": two samples of stacks, some seconds apart, that agree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eyas.errors import EyasError
from eyas.serve.facts.clock import Clock
from eyas.serve.facts.evidence import ProcessFacts
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.facts.state import ModelRole, Stall
from eyas.serve.look.stacks import StackSample, StackTaker, as_text
from eyas.serve.supervise.stall import classify, stacks_moved


@dataclass(frozen=True, slots=True, kw_only=True)
class StallContext:
    """What is known besides the stacks: the log's phase, the engine, what did not move."""

    phase: str
    phase_title: str
    role: ModelRole | None
    engine: str
    version: str | None
    unmoved: tuple[str, ...]


@dataclass(slots=True)
class StallWatch:
    """Follows one suspicion. `stall` is set once it is one; `note` says what was just done, for the journal.

    Args:
        stacks: None = stacks cannot be had (a URL, a log): the suspicion is then a stall at once, unconfirmed.
    """

    stacks: StackTaker | None
    clock: Clock
    folder: RunFolder | None
    apart_s: float
    stall: Stall | None = None
    note: str = ""
    _first: StackSample | None = None

    def suspect(self, processes: Sequence[ProcessFacts], context: StallContext, now: float) -> str:
        """Go one step on: "waiting" for the second sample, "moving" (the stacks changed), or "stalled"."""
        self.note = ""
        if self.stall is not None:
            return "stalled"
        if self.stacks is None or not processes:
            self.stall = self._classify(StackSample(at=now, ranks=()), None, context)
            return "stalled"
        if self._first is None:
            self._first = self.stacks.take(processes, now)
            self.note = f"nothing moves: first sample of stacks taken ({len(self._first.ranks)} processes)"
            return "waiting"
        if now - self._first.at < self.apart_s:
            return "waiting"
        second = self.stacks.take(processes, self.clock.now())
        if stacks_moved(self._first, second):
            self._first = None
            self.note = "the stacks of a rank changed between two samples: slow, not hung"
            return "moving"
        self.note = "second sample of stacks taken: it agrees"
        self.stall = self._classify(self._first, second, context)
        return "stalled"

    def calm(self) -> bool:
        """Something moves: forget the suspicion. True if it had become a stall."""
        had = self.stall is not None
        self.stall = self._first = None
        return had

    def _classify(self, first: StackSample, second: StackSample | None, context: StallContext) -> Stall:
        stall = classify(
            first,
            second,
            phase=context.phase,
            phase_title=context.phase_title,
            role=context.role,
            engine=context.engine,
            version=context.version,
            evidence=context.unmoved,
        )
        if self.folder is None or not first.ranks:
            return stall
        text = as_text(first) + ("\n" + as_text(second) if second is not None else "")
        try:
            return replace(stall, stack_files=(str(self.folder.write_stacks(text)),))
        except EyasError as error:
            return replace(stall, notes=(*stall.notes, f"the stacks could not be written: {error.why}"))
