"""The watcher's own state as a Prometheus textfile (node_exporter's textfile collector reads it). Written whole."""

from pathlib import Path

from eyas.records.atomic import write_text
from eyas.serve.facts.state import Snapshot, StateName


def render(snapshot: Snapshot) -> str:
    """The text: one gauge a fact, every state with 0 or 1."""
    labels = f'engine="{snapshot.engine}",version="{_escape(snapshot.version or "")}"'
    rows = ["# HELP eyas_watch_state The state of the watched server: 1 for the one that holds."]
    rows += ["# TYPE eyas_watch_state gauge"]
    rows += [f'eyas_watch_state{{{labels},state="{s}"}} {int(s is snapshot.state)}' for s in StateName]
    rows += _gauge("eyas_watch_seen_timestamp_seconds", "When the watcher last looked.", snapshot.at)
    rows += _gauge("eyas_watch_elapsed_seconds", "Since the watcher began.", snapshot.elapsed_s)
    rows += _gauge("eyas_watch_warnings", "Standing warnings.", len(snapshot.warnings))
    if snapshot.phase is not None:
        rows += [
            "# HELP eyas_watch_phase The start-up phase that holds.",
            "# TYPE eyas_watch_phase gauge",
            f'eyas_watch_phase{{{labels},phase="{snapshot.phase.id}",role="{snapshot.phase.role or ""}"}} 1',
        ]
        rows += _gauge("eyas_watch_quiet_seconds", "Since anything last moved.", snapshot.phase.quiet_s)
        rows += _gauge("eyas_watch_budget_seconds", "How long this phase may be quiet.", snapshot.phase.budget_s)
    if snapshot.proof is not None:
        rows += _gauge("eyas_watch_rounds", "Verify passes seen.", snapshot.proof.rounds)
        if snapshot.proof.accept_length is not None:
            rows += _gauge("eyas_watch_accept_length", "Tokens per verify pass.", snapshot.proof.accept_length)
    return "\n".join(rows) + "\n"


def write(path: Path, snapshot: Snapshot) -> None:
    """Write the file aside and rename it.

    Raises:
        WriteFailed: the folder cannot be written or the disk is full.
    """
    write_text(path, render(snapshot))


def _gauge(name: str, help_text: str, value: float) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {value:.10g}"]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
