"""Evidence in the shapes that people see: processes as ranks, GPUs, seconds and bytes as words."""

from collections.abc import Iterable

from eyas.serve.facts.evidence import GpuFacts, ProcessFacts
from eyas.serve.facts.state import GpuView, RankView


def rank_views(processes: Iterable[ProcessFacts]) -> tuple[RankView, ...]:
    """The processes that have a label, for a snapshot."""
    return tuple(
        RankView(
            label=p.label or p.title.split(" ")[0].rsplit("/", 1)[-1], pid=p.pid, status=p.status, rss_bytes=p.rss_bytes
        )
        for p in processes
    )


def gpu_views(gpus: Iterable[GpuFacts]) -> tuple[GpuView, ...]:
    """The server's GPUs (all, where it is not known which are its own)."""
    gpus = tuple(gpus)
    shown = [g for g in gpus if g.is_mine] or gpus
    return tuple(
        GpuView(index=g.index, utilisation=g.utilisation, used_bytes=g.used_bytes, total_bytes=g.total_bytes)
        for g in shown
    )


def seconds(value: float | None) -> str:
    """ "4 s", "2:07 min", "1:02 h", "9 days"; "?" for None."""
    if value is None:
        return "?"
    if value < 100:
        return f"{value:.0f} s"
    minutes, rest = divmod(int(value), 60)
    if minutes < 100:
        return f"{minutes}:{rest:02d} min"
    hours = minutes // 60
    return f"{hours}:{minutes % 60:02d} h" if hours < 72 else f"{hours // 24} days"


def gigabytes(value: float | None) -> str:
    """ "12.3 GB"; "?" for None."""
    return "?" if value is None else f"{value / 1e9:.1f} GB"
