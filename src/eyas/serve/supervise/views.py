"""What others see of a watch: a live view on a terminal, plain lines elsewhere, JSON events, a Prometheus textfile.

The text itself comes from `lines_of` and `final_text`; the views only place it. Rich is imported when a terminal asks.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from eyas.records.atomic import write_text
from eyas.serve.facts.state import Event, PhaseRow, Snapshot, StateName
from eyas.talk import gigabytes, printable, seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_BAR_CELLS = 20
_MOST_RANKS = 16
_COLOURS = {
    StateName.READY: "green",
    StateName.PROVEN: "green",
    StateName.STALLED: "red",
    StateName.CRASHED: "red",
    StateName.UNHEALTHY: "yellow",
    StateName.UNREACHABLE: "yellow",
    StateName.NO_ENGINE: "yellow",
}


class View(Protocol):
    """Shows a watch."""

    def show(self, snapshot: Snapshot, rows: tuple[PhaseRow, ...]) -> None:
        """The newest snapshot, some times a second."""

    def event(self, event: Event) -> None:
        """Something happened."""

    def close(self) -> None:
        """Nothing more comes."""


class PlainView:
    """One line an event: for logs and pipes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last_progress = -1e9

    def show(self, snapshot: Snapshot, rows: tuple[PhaseRow, ...]) -> None:
        """Nothing: events tell all that changes."""

    def event(self, event: Event) -> None:
        """One line; progress at most every ten seconds."""
        if event.kind == "progress":
            if event.at - self._last_progress < 10:
                return
            self._last_progress = event.at
        self._say(event_line(event))

    def close(self) -> None:
        """Nothing to put back."""


class JsonView:
    """One JSON object a line (schema eyas.watch.event/1)."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell

    def show(self, snapshot: Snapshot, rows: tuple[PhaseRow, ...]) -> None:
        """Nothing: the last snapshot is the command's document."""

    def event(self, event: Event) -> None:
        """Tell the event at once."""
        self._tell(event.as_document())

    def close(self) -> None:
        """Nothing to put back."""


class RichView:
    """A live picture: state, phases with bars and durations, ranks, GPUs, the last log line."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live

        # No refreshing thread: it would die with a traceback where the terminal is gone.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._console = console
        self._live.start()

    def show(self, snapshot: Snapshot, rows: tuple[PhaseRow, ...]) -> None:
        """Draw it again."""
        self._live.update(_picture(snapshot, rows), refresh=True)

    def event(self, event: Event) -> None:
        """States, warnings and stacks stay above the picture."""
        if event.kind in ("state", "warning", "stacks", "proof", "note", "stop"):
            self._console.print(printable(event_line(event)), markup=False, highlight=False, style="dim")

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def event_line(event: Event) -> str:
    """ "2:05 min  ready: /health answers 200": a state by its name, everything else by its kind."""
    what = event.state if event.kind == "state" else event.kind
    return f"{seconds(event.elapsed_s):>9}  {what}: {event.text}"


def head_line(snapshot: Snapshot) -> str:
    """ "starting: capturing CUDA graphs of the draft (decode) 12/51 batch sizes, 8 s, ready in about 20 s"."""
    text = f"{snapshot.state}"
    phase = snapshot.phase
    if phase is None:
        return f"{text}: {snapshot.reason}"
    text += f": {phase.title}"
    if phase.progress is not None:
        total = "" if phase.progress.total is None else f"/{phase.progress.total:g}"
        text += f" {phase.progress.done:g}{total} {phase.progress.unit}".rstrip()
    text += f", {seconds(phase.elapsed_s)}"
    if phase.eta_s is not None:
        text += f", {seconds(phase.eta_s)} left"
    if snapshot.ready_eta_s is not None:
        text += f"; ready in about {seconds(snapshot.ready_eta_s)}"
    if phase.quiet_s >= 10:
        text += f"; quiet for {seconds(phase.quiet_s)} of {seconds(phase.budget_s)}"
    return text


def lines_of(snapshot: Snapshot, rows: tuple[PhaseRow, ...]) -> list[str]:
    """The whole picture as plain lines."""
    lines = [head_line(snapshot), *(_row_line(row) for row in rows)]
    if snapshot.ranks:
        alike = Counter(f"{r.label}[{r.status}]" for r in snapshot.ranks)
        named = [f"{name} x {count}" if count > 1 else name for name, count in alike.items()]
        lines.append("processes: " + ", ".join(named[:16]))
    if snapshot.gpus:
        lines.append(
            "GPUs: "
            + ", ".join(
                f"{g.index}: {g.utilisation} %, {gigabytes(g.used_bytes)} of {gigabytes(g.total_bytes)}"
                for g in snapshot.gpus
            )
        )
    lines += _speculation(snapshot)
    lines += [f"warning: {warning}" for warning in snapshot.warnings]
    if snapshot.last_line:
        lines.append(f"log: {snapshot.last_line[:160]}")
    return lines


def final_text(snapshot: Snapshot, *, where: str = "") -> str:
    """The result for a person: the state, and for a crash or a stall what, where, why and what to do."""
    lines = [f"{snapshot.state}: {snapshot.reason}"]
    if snapshot.cause is not None:
        cause = snapshot.cause
        lines.append(cause.diagnostic.text("crashed"))
        lines += [f"  = exit code {cause.exit_text}"] if cause.exit_text else []
    if snapshot.stall is not None:
        lines += _stall_lines(snapshot)
    phase = snapshot.phase
    if phase is not None and snapshot.state is not StateName.UNREACHABLE:
        lines.append(f"phase: {phase.title}, {seconds(phase.elapsed_s)}")
        lines[-1] += f"; quiet for {seconds(phase.quiet_s)} of {seconds(phase.budget_s)}" if phase.quiet_s >= 10 else ""
        lines += [f"last line: {snapshot.last_line[:300]}"] if snapshot.last_line else []
    lines += _speculation(snapshot)
    lines += [f"warning: {warning}" for warning in snapshot.warnings]
    lines += [f"run folder: {where}"] if where else []
    return "\n".join(lines)


def _speculation(snapshot: Snapshot) -> list[str]:
    """What is accepted, and by which data-parallel rank where there are several."""
    lines = [f"speculation: {snapshot.proof.text}"] if snapshot.proof is not None else []
    lengths = snapshot.accept_lengths
    shown = ", ".join(f"{rank} {length:.2f}" for rank, length in list(lengths.items())[:_MOST_RANKS])
    return lines + ([f"accept length by rank: {shown}"] if len(lengths) > 1 else [])


def _stall_lines(snapshot: Snapshot) -> list[str]:
    stall = snapshot.stall
    assert stall is not None
    sure = "two samples of stacks agree" if stall.is_confirmed else "not confirmed by stacks"
    lines = [f"stalled[{stall.kind}]: {stall.what} ({sure})"]
    lines += [f"  = ranks: {stall.asymmetry}"] if stall.asymmetry else []
    lines += [f"  = not moving: {text}" for text in stall.evidence]
    for label, frames in list(stall.stacks.items())[:8]:
        lines.append(f"  = stack of {label}: {' < '.join(frames[:4])}")
    lines += [f"  = stacks: {path}" for path in stall.stack_files]
    lines += [f"  = note: {note}" for note in stall.notes]
    for number, experiment in enumerate(stall.experiments[:5], 1):
        change = " ".join([*experiment.add_flags, *(f"{k}={v}" for k, v in experiment.add_env.items())])
        lines.append(f"  = try {number}: {experiment.title}{': ' + change if change else ''}; {experiment.tells}")
    return lines


def _row_line(row: PhaseRow) -> str:
    mark = ">" if row.is_current else " "
    return f" {mark} {row.title:<58} {_bar(row):<{_BAR_CELLS}} {seconds(row.duration_s):>9}{_typical(row)}"


def _bar(row: PhaseRow) -> str:
    if row.share is None:
        return ""
    done = round(row.share * _BAR_CELLS)
    return "█" * done + "░" * (_BAR_CELLS - done)


def _typical(row: PhaseRow) -> str:
    return "" if row.typical_s is None else f"  (usually {seconds(row.typical_s)})"


def _picture(snapshot: Snapshot, rows: tuple[PhaseRow, ...]) -> "RenderableType":
    from rich.panel import Panel
    from rich.text import Text

    body: list[Any] = lines_of(snapshot, rows)
    colour = _COLOURS.get(snapshot.state, "blue")
    title = f"{snapshot.engine} {snapshot.version or ''}: {snapshot.state} after {seconds(snapshot.elapsed_s)}"
    text = Text(printable("\n".join(body)), overflow="ellipsis", no_wrap=True)
    return Panel(text, title=Text(printable(title)), border_style=colour)


def textfile_of(snapshot: Snapshot) -> str:
    """The text: one gauge a fact, every state with 0 or 1."""
    labels = f'engine="{_escape(snapshot.engine)}",version="{_escape(snapshot.version or "")}"'
    rows = ["# HELP eyas_watch_state The state of the watched server: 1 for the current one, 0 for the others."]
    rows += ["# TYPE eyas_watch_state gauge"]
    rows += [f'eyas_watch_state{{{labels},state="{s}"}} {int(s is snapshot.state)}' for s in StateName]
    rows += _gauge("eyas_watch_seen_timestamp_seconds", "When the watcher last looked.", snapshot.at)
    rows += _gauge("eyas_watch_elapsed_seconds", "Since the watcher began.", snapshot.elapsed_s)
    rows += _gauge("eyas_watch_warnings", "Standing warnings.", len(snapshot.warnings))
    if snapshot.phase is not None:
        rows += [
            "# HELP eyas_watch_phase The current start-up phase.",
            "# TYPE eyas_watch_phase gauge",
            f'eyas_watch_phase{{{labels},phase="{snapshot.phase.id}",role="{snapshot.phase.role or ""}"}} 1',
        ]
        rows += _gauge("eyas_watch_quiet_seconds", "Since anything last moved.", snapshot.phase.quiet_s)
        rows += _gauge("eyas_watch_budget_seconds", "How long this phase may be quiet.", snapshot.phase.budget_s)
    if len(snapshot.accept_lengths) > 1:
        rows += ["# HELP eyas_watch_rank_accept_length Tokens per verify pass of each data-parallel rank."]
        rows += ["# TYPE eyas_watch_rank_accept_length gauge"]
        lengths = snapshot.accept_lengths.items()
        rows += [f'eyas_watch_rank_accept_length{{rank="{_escape(rank)}"}} {length:.10g}' for rank, length in lengths]
    if snapshot.proof is not None:
        rows += _gauge("eyas_watch_rounds", "Verify passes seen.", snapshot.proof.rounds)
        if snapshot.proof.accept_length is not None:
            rows += _gauge("eyas_watch_accept_length", "Tokens per verify pass.", snapshot.proof.accept_length)
    return "\n".join(rows) + "\n"


def write_textfile(path: Path, snapshot: Snapshot) -> None:
    """Write the file aside and rename it.

    Raises:
        WriteFailed: the folder cannot be written or the disk is full.
    """
    write_text(path, textfile_of(snapshot))


def _gauge(name: str, help_text: str, value: float) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {value:.10g}"]


def _escape(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
