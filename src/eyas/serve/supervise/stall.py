"""Where a server is stuck: from two samples of stacks to a kind, a model, and which rank waits for which.

`classify` is pure: stacks come in, a `Stall` goes out. `StallWatch` takes the two samples, some seconds apart. The
frame table is `frames.toml`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eyas.errors import EyasError
from eyas.serve.facts.clock import Clock
from eyas.serve.facts.evidence import ProcessFacts
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.facts.state import ModelRole, Stall
from eyas.serve.log.tables import all_lives, draft_frames, experiments_for, frame_kinds, kernel_waits
from eyas.serve.look.stacks import RankStack, StackSample, StackTaker, as_text, interesting

_HELPERS = ("main", "resource-tracker")
_KIND_OF_PHASE = {
    "distributed": "nccl-init",
    "weights": "weight-load",
    "download": "download",
    "compile": "compile",
    "jit": "jit",
    "autotune": "autotune",
    "graphs": "graph-capture",
    "ready": "core-silent",
}
_WORDS = {
    "nccl-init": "connecting the ranks",
    "collective": "in a collective between the ranks",
    "graph-capture": "capturing CUDA graphs",
    "weight-load": "loading weights",
    "download": "downloading",
    "tokenizer": "in the tokenizer",
    "jit": "compiling kernels",
    "autotune": "autotuning kernels",
    "compile": "in torch.compile",
    "import": "importing",
    "device-wait": "waiting for the GPU",
    "scheduler": "in the scheduler's loop",
    "frozen": "stopped by a signal",
    "disk": "waiting for the disk",
    "network-wait": "waiting for the network",
    "core-silent": "serving: requests are running and no token comes",
    "unknown": "somewhere unknown",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPosition:
    """Where one rank stands: `kind` (innermost that says something), `context` (further out), the frame, the model."""

    label: str
    pid: int
    kind: str
    context: tuple[str, ...]
    frame: str
    role: ModelRole | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StallContext:
    """What is known besides the stacks: the log's phase, the engine, and what did not move, in words."""

    phase: str
    phase_title: str
    role: ModelRole | None
    engine: str
    version: str | None
    unmoved: tuple[str, ...]


def classify(first: StackSample, second: StackSample | None, context: StallContext) -> Stall:
    """What two samples of stacks, taken some seconds apart, say; without a second one nothing is confirmed."""
    sample = second or first
    positions = [position_of(rank) for rank in ranks_of(sample)]
    kind, named_role = _overall(positions, context.phase)
    is_of_phase = kind == _KIND_OF_PHASE.get(context.phase) or kind in ("frozen", "unknown")
    role = named_role or (context.role if is_of_phase else None)
    return Stall(
        kind=kind,
        what=_what(kind, role, context.phase_title, positions),
        evidence=context.unmoved,
        asymmetry=asymmetry(positions),
        experiments=experiments_for(kind, role, context.engine, context.version),
        stacks={f"{rank.label} (pid {rank.pid})": interesting(rank.main)[:25] for rank in sample.ranks},
        notes=tuple(dict.fromkeys((*first.notes, *(second.notes if second else ())))),
        is_confirmed=second is not None and not stacks_moved(first, second),
    )


def stacks_moved(first: StackSample, second: StackSample) -> bool:
    """Whether a rank's Python frames changed between the samples: then it is slow, not hung."""
    before = {rank.pid: rank for rank in first.ranks}
    for rank in ranks_of(second):
        earlier = before.get(rank.pid)
        if earlier is None or rank.how == "/proc" or earlier.how == "/proc":
            continue
        if _python_frames(earlier.main) != _python_frames(rank.main):
            return True
    return False


def ranks_of(sample: StackSample) -> tuple[RankStack, ...]:
    """The processes that do the work; all of them where titles tell nothing."""
    helpers = (*_HELPERS, *(label for life in all_lives() for label in life.helpers))
    ranks = tuple(r for r in sample.ranks if r.label and not r.label.startswith(helpers))
    return ranks or sample.ranks


def position_of(rank: RankStack) -> RankPosition:
    """Classify one rank by its frames, innermost first."""
    frames = interesting(rank.main)
    if rank.status in ("T", "t"):
        return RankPosition(label=rank.label, pid=rank.pid, kind="frozen", context=(), frame="state T", role=None)
    if rank.how == "/proc":
        return _position_of_kernel(rank)
    found = [(kind, frame) for frame in frames if (kind := _kind_of(frame)) is not None]
    kinds = list(dict.fromkeys(kind for kind, _ in found))
    telling = [pair for pair in found if pair[0] not in ("device-wait", "scheduler", "import")] or found
    role: ModelRole | None = "draft" if any(draft_frames().search(frame) for frame in frames) else None
    kind, frame = telling[0] if telling else ("unknown", frames[0] if frames else "no frames")
    context = tuple(k for k in kinds if k != kind)
    if role is None and "graph-capture" in (kind, *context):
        role = "target"
    return RankPosition(label=rank.label, pid=rank.pid, kind=kind, context=context, frame=frame, role=role)


def asymmetry(positions: Sequence[RankPosition]) -> str:
    """Which ranks wait for which, or "" when all stand in the same place."""
    groups: dict[tuple[str, str], list[str]] = {}
    for position in positions:
        groups.setdefault((position.kind, position.frame.split(" (")[0]), []).append(position.label)
    if len(groups) < 2:
        return ""
    parts = [f"{', '.join(labels)} in {frame} ({_WORDS.get(kind, kind)})" for (kind, frame), labels in groups.items()]
    waiting = [label for (kind, _), labels in groups.items() if kind in ("collective", "nccl-init") for label in labels]
    missing = [
        label for (kind, _), labels in groups.items() if kind not in ("collective", "nccl-init") for label in labels
    ]
    if waiting and missing:
        parts.append(f"so {', '.join(waiting)} wait for {', '.join(missing)}")
    return "; ".join(parts)


def _overall(positions: Sequence[RankPosition], phase: str) -> tuple[str, ModelRole | None]:
    if not positions:
        return _KIND_OF_PHASE.get(phase, "unknown"), None
    if any(p.kind == "frozen" for p in positions):
        return "frozen", None
    role = next((p.role for p in positions if p.role is not None), None)
    if phase == "ready":
        return "core-silent", None
    if any("graph-capture" in (p.kind, *p.context) for p in positions):
        return "graph-capture", role
    laggards = [p for p in positions if p.kind not in ("collective", "nccl-init")]
    if laggards and len(laggards) < len(positions):
        return "collective", role
    kind = Counter(p.kind for p in positions).most_common(1)[0][0]
    if kind in ("unknown", "device-wait", "scheduler", "network-wait"):
        kind = _KIND_OF_PHASE.get(phase, kind)
    return kind, role


def _what(kind: str, role: ModelRole | None, phase_title: str, positions: Sequence[RankPosition]) -> str:
    text = f"it {'is' if kind == 'frozen' else 'stands still'} {_WORDS.get(kind, kind)}"
    if role is not None and kind in ("graph-capture", "weight-load", "compile"):
        text += f" of the {role}"
    if kind == "frozen":
        pids = ", ".join(f"{p.label or 'process'} (pid {p.pid})" for p in positions if p.kind == "frozen")
        text += f": {pids}"
    inner = {p.kind for p in positions} - {kind}
    if kind == "graph-capture" and "collective" in inner:
        text += ", inside a collective between the ranks"
    return f"{text}; the log's last phase: {phase_title}"


def _position_of_kernel(rank: RankStack) -> RankPosition:
    text = " ".join(rank.main)
    for kind, pattern in kernel_waits():
        if pattern.search(text):
            return RankPosition(label=rank.label, pid=rank.pid, kind=kind, context=(), frame=text[:120], role=None)
    return RankPosition(label=rank.label, pid=rank.pid, kind="unknown", context=(), frame=text[:120], role=None)


def _kind_of(frame: str) -> str | None:
    return next((kind for kind, pattern in frame_kinds() if pattern.search(frame)), None)


def _python_frames(frames: Sequence[str]) -> tuple[str, ...]:
    return tuple(frame for frame in frames if ".py:" in frame)


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
        """Take the next step: "waiting" for the second sample, "moving" (the stacks changed), or "stalled"."""
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
        stall = classify(first, second, context)
        if self.folder is None or not first.ranks:
            return stall
        text = as_text(first) + ("\n" + as_text(second) if second is not None else "")
        try:
            return replace(stall, stack_files=(str(self.folder.write_stacks(text)),))
        except EyasError as error:
            return replace(stall, notes=(*stall.notes, f"the stacks could not be written: {error.why}"))
