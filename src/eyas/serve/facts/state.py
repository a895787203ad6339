"""The states of a server and their evidence: the types that all of `serve` and `watch` share.

Knows names and shapes only: no probing, no judging, no printing. `Snapshot.as_document()` is the JSON that
`eyas watch --json` ends with; `Event.as_document()` is one line of its event stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from eyas.diagnostic import Diagnostic

SNAPSHOT_SCHEMA = "eyas.watch/1"
EVENT_SCHEMA = "eyas.watch.event/1"

Engine = str  # a name in the registry, "eyas" or "unknown"
ModelRole = Literal["target", "draft"]


class StateName(StrEnum):
    """The states of a server. The order is the `n` of `eyas watch --until`'s exit code 10 + n: append only."""

    STARTING = "starting"
    WARMING_UP = "warming-up"
    READY = "ready"
    PROVEN = "proven"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    STALLED = "stalled"
    CRASHED = "crashed"
    STOPPED = "stopped"
    UNREACHABLE = "unreachable"
    NO_ENGINE = "no-engine"

    @property
    def exit_code(self) -> int:
        """10 + n: what `--until` exits with when it ends on this state instead of the wanted one."""
        return 10 + list(StateName).index(self)

    @property
    def is_final(self) -> bool:
        """Nothing further will happen by itself."""
        return self in (StateName.CRASHED, StateName.STOPPED)

    @property
    def is_serving(self) -> bool:
        """Requests are answered."""
        return self in (StateName.READY, StateName.PROVEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A state and why; `suspects_stall` = nothing moves beyond the budget, the stacks decide."""

    state: StateName
    reason: str
    suspects_stall: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseProgress:
    """How far a phase is: `done` of `total` (None = unknown) in `unit`; the text is what the engine printed."""

    done: float
    total: float | None
    unit: str
    text: str = ""

    @property
    def share(self) -> float | None:
        """0..1, or None when the total is unknown."""
        return min(self.done / self.total, 1.0) if self.total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseView:
    """The phase a start-up is in.

    Attributes:
        id: "weights", "graphs-verify", ...: the ids of `markers.toml`.
        title: the same for a person, e.g. "loading the draft's weights".
        role: which model it is about, if one.
        progress: as printed by the engine, if it does.
        elapsed_s: since the phase began.
        eta_s: till the phase ends: by its own progress, else by the remembered duration; None = unknown.
        quiet_s: since anything last moved.
        budget_s: how long nothing may move here before "stalled".
    """

    id: str
    title: str
    role: ModelRole | None
    progress: PhaseProgress | None
    elapsed_s: float
    eta_s: float | None
    quiet_s: float
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """A phase as a row of the live view; `typical_s` is the remembered duration, `share` 0..1 of its progress bar."""

    title: str
    duration_s: float
    share: float | None
    is_current: bool
    typical_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a server died: the first root cause, of the process where it arose.

    Attributes:
        diagnostic: a code of `failures.toml`, or "crash-unknown"; `what` is one line, such as the exception;
            `where` names process or rank, phase, and log line number (from 1).
        exit_text: the exit code in words ("137: killed itself after ...").
        traceback: the lines of the first traceback, unprefixed; empty if there was none.
    """

    diagnostic: Diagnostic
    exit_text: str = ""
    traceback: tuple[str, ...] = ()

    def as_document(self) -> dict[str, Any]:
        """The cause as a JSON object."""
        found = self.diagnostic
        words = {"what": found.what, "where": found.where, "why": found.why, "do": found.advice}
        return {"code": found.code, **words, "exit_text": self.exit_text, "traceback": list(self.traceback)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One variable changed at a time: `flags` to add (and `env`), and what the outcome would tell."""

    id: str
    title: str
    add_flags: tuple[str, ...] = ()
    add_env: Mapping[str, str] = field(default_factory=dict)
    tells: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Where a server stands still.

    Attributes:
        kind: "nccl-init", "collective", "graph-capture", "weight-load", "tokenizer", "jit", "frozen", "gil",
            "scheduler", "core-silent", "unknown".
        what: one line.
        evidence: what did not move, each with how long.
        asymmetry: which ranks wait for which ("ranks 0-2 in all_reduce; rank 3 in load_weights"), or "".
        experiments: what to try next, cheapest first.
        stack_files: where the stacks lie (run folder), empty if they are only in `stacks`.
        stacks: rank label -> the last stack's frames, innermost first.
        notes: what could not be had and why (ptrace forbidden, py-spy absent).
        is_confirmed: two samples 10 s apart agree; False while the second is awaited.
    """

    kind: str
    what: str
    evidence: tuple[str, ...] = ()
    asymmetry: str = ""
    experiments: tuple[Experiment, ...] = ()
    stack_files: tuple[str, ...] = ()
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_confirmed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the first-minute verdict (or the watched counters) say of speculation.

    Attributes:
        ok: speculation runs and accepts; losslessness held where it could be compared.
        text: the words for a person.
        rounds: verify passes counted. accept_length: bonus included; None if not known.
    """

    ok: bool
    text: str
    rounds: int = 0
    accept_length: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One process of the server: `label` such as "TP0" or "EngineCore", with what it uses now."""

    label: str
    pid: int
    status: str
    rss_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """One GPU: utilisation in percent, memory in bytes."""

    index: int
    utilisation: int
    used_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the server is doing at one moment, with the evidence.

    Attributes:
        at: unix time in seconds. elapsed_s: since the supervisor began.
        reason: why this state and no other, in one line of evidence.
        ready_eta_s: till ready, from remembered durations; None = not known.
        accept_lengths: data-parallel rank -> accept length since its start, or as last reported; {} if not told.
        warnings: standing ones (acceptance alarm, "idle: not proven alive", missing probes), each once.
        last_line: the last log line, for the live view.
    """

    at: float
    elapsed_s: float
    engine: Engine
    version: str | None
    state: StateName
    reason: str
    phase: PhaseView | None = None
    ready_eta_s: float | None = None
    cause: Cause | None = None
    stall: Stall | None = None
    proof: Proof | None = None
    accept_lengths: Mapping[str, float] = field(default_factory=dict)
    ranks: tuple[RankView, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    endpoints: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    last_line: str = ""

    def as_document(self) -> dict[str, Any]:
        """The snapshot as the object of schema eyas.watch/1."""
        return {"schema": SNAPSHOT_SCHEMA, **_plain(self)}


EventKind = Literal["state", "phase", "progress", "warning", "stacks", "proof", "stop", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened; what a timeline is made of and what `--json` streams, one object a line.

    Attributes:
        at: unix time in seconds. elapsed_s: since the supervisor began.
        kind: "state" (a change of state), "phase" (a phase began), "progress" (at most one per 5 s), "warning",
            "stacks" (taken or refused), "proof", "stop", "note".
        data: further fields by kind; JSON-able.
    """

    at: float
    elapsed_s: float
    kind: EventKind
    state: StateName
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        """The event as the object of schema eyas.watch.event/1."""
        return {"schema": EVENT_SCHEMA, **_plain(self)}


def _plain(value: Any) -> Any:
    """Dataclasses, mappings, tuples and enums as JSON values."""
    if isinstance(value, Cause):
        return value.as_document()
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, StrEnum):
        return str(value)
    return value
