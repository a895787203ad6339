"""How a launch is run and how it went: plain values, shared by the flow, the commands and the benchmarks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import ExitCode
from eyas.serve.facts.state import Experiment, Snapshot, StateName
from eyas.serve.launch.stop import StopOutcome
from eyas.serve.supervise.state_rules import Patience
from eyas.serve.verdict.canary_run import CanaryOptions
from eyas.serve.verdict.losslessness import ExpectedAnswer
from eyas.serve.verdict.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """How to run a plan.

    Attributes:
        runs: folder that gets one folder per launch.
        cache: eyas' cache folder (remembered phase durations).
        canary: how much the verdict asks; None = no verdict.
        expected: the target's own answers, for losslessness.
        stop_after_verdict: end the server after the verdict (or at a stall), instead of serving on.
        parity: replay the server's answers after the canaries, where a pack or a small target is at hand.
        probe: the pack.
        poll_s: seconds between two looks.
        patience: how long to wait before something is called a stall.
        say: told what happens to the writer of a capturing server's store.
    """

    runs: Path
    cache: Path
    canary: CanaryOptions | None = CanaryOptions()  # noqa: RUF009 - frozen
    expected: tuple[ExpectedAnswer, ...] = ()
    stop_after_verdict: bool = False
    parity: bool = False
    probe: Path | None = None
    poll_s: float = 1.0
    request_timeout_s: float = 60.0
    patience: Patience = Patience()  # noqa: RUF009 - frozen
    say: Callable[[str], None] = lambda text: None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOutcome:
    """How a launch went.

    Attributes:
        folder: its evidence.
        snapshot: the last state before it was stopped.
        ready_s: from start to ready; None if it never was.
        verdict: None if there was none.
        stopped: how it was ended; None if it ended by itself.
        experiment: what was changed against the first try; None for the first.
    """

    folder: Path
    snapshot: Snapshot
    ready_s: float | None
    verdict: Verdict | None
    stopped: StopOutcome | None
    experiment: Experiment | None = None

    @property
    def exit_code(self) -> int:
        """0 when the server did well until it was asked to stop."""
        failed = self.snapshot.state in (StateName.CRASHED, StateName.STALLED)
        return int(ExitCode.FINDINGS if failed or (self.verdict is not None and not self.verdict.ok) else ExitCode.GOOD)

    def as_document(self) -> dict[str, Any]:
        """The outcome as the object of schema eyas.serve/1."""
        return {
            "schema": "eyas.serve/1",
            "folder": str(self.folder),
            "ready_s": self.ready_s,
            "snapshot": self.snapshot.as_document(),
            "verdict": self.verdict.as_document() if self.verdict else None,
            "stopped": self.stopped.as_document() if self.stopped else None,
            "experiment": self.experiment.id if self.experiment else None,
        }
