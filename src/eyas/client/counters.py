"""A running server's own counters, read over HTTP: tokens made, requests, acceptance. By engine and version.

SGLang gives lifetime averages only (`/server_info`, per data-parallel rank, warm-up and probes included, added up at
log ticks only); per-position counts come with each answer (`sglang_counts`). vLLM gives per-position lifetime counters
per rank in `/metrics` (`vllm_counts`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eyas.client import vllm_counts
from eyas.client.address import ServerAddress, ServerRefused, get_json, get_text, open_http
from eyas.client.prometheus import Sample, parse, total
from eyas.client.versions import at_least
from eyas.decode.accept_length import Acceptance

if TYPE_CHECKING:
    import httpx

# Anything here that changes means that the engine did something. SGLang counts generated tokens when an answer ends,
# but the number of inter-token latencies grows with every chunk.
_PROGRESS = {
    "sglang": (
        "sglang:generation_tokens",
        "sglang:prompt_tokens",
        "sglang:realtime_tokens",
        "sglang:inter_token_latency_seconds_count",
        "sglang:time_to_first_token_seconds_count",
        "sglang:num_used_tokens",
    ),
    "vllm": ("vllm:generation_tokens", "vllm:prompt_tokens", "vllm:iteration_tokens_total_count"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """One reading.

    Attributes:
        generated_tokens: since start, all ranks; None if not told. SGLang adds an answer's tokens when it ends.
        running, waiting: requests now; None if not told.
        speculates: whether the server says that it does; None if it does not say.
        acceptance: rank -> lifetime counts (vLLM); {} where the engine has none.
        accept_lengths: rank -> lifetime average as the engine gives it, bonus included (SGLang); for a look only.
        num_ranks: data-parallel ranks; None if not told.
        progress_mark: numbers of which at least one changes when the engine does anything; () if there are none.
        notes: what could not be read, and why.
    """

    generated_tokens: float | None = None
    running: int | None = None
    waiting: int | None = None
    speculates: bool | None = None
    acceptance: Mapping[str, Acceptance] = field(default_factory=dict)
    accept_lengths: Mapping[str, float] = field(default_factory=dict)
    num_ranks: int | None = None
    progress_mark: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


def read(
    url: str,
    engine: str,
    version: str | None = None,
    *,
    api_key: str | None = None,
    http: "httpx.Client | None" = None,
    timeout_s: float = 5.0,
    with_server_info: bool = True,
) -> Counters:
    """Read the counters once.

    Args:
        url: the server's base URL.
        engine: "sglang" or "vllm"; others have no counters and give an empty reading with a note.
        version: the engine's, for names that moved; None = newest.
        http: a client to reuse; otherwise one is made and closed.
        with_server_info: ask SGLang's scheduler too (it answers at batch boundaries; off for a quick look).

    Raises:
        ServerUnreachable: refused, or no answer within `timeout_s` (a stuck engine may still answer /metrics).
        ServerRefused: an HTTP error other than "no such route".
    """
    kind = engine if engine in ("sglang", "vllm", "eyas") else "openai"
    address = ServerAddress(url=url, kind=kind, version=version, api_key=api_key)  # type: ignore[arg-type]
    if http is not None:
        return _read(http, address, with_server_info)
    with open_http(address, timeout_s=timeout_s) as own:
        return _read(own, address, with_server_info)


def _read(http: "httpx.Client", address: ServerAddress, with_server_info: bool) -> Counters:
    page = get_text(http, address, "/metrics")
    samples = parse(page) if page else ()
    if address.kind == "vllm":
        return of_vllm(samples)
    if address.kind == "sglang":
        info, notes = _server_info(http, address) if with_server_info else (None, ())
        return of_sglang(samples, info, notes)
    return Counters(notes=(f"{address.kind} servers have no counters that are known here",))


def of_vllm(samples: Iterable[Sample]) -> Counters:
    """A reading from vLLM's /metrics."""
    samples = tuple(samples)
    acceptance = vllm_counts.of_metrics(samples)
    engines = {s.labels["engine"] for s in samples if s.name.startswith("vllm:") and "engine" in s.labels}
    return Counters(
        generated_tokens=total(samples, "vllm:generation_tokens"),
        running=_whole(total(samples, "vllm:num_requests_running")),
        waiting=_whole(total(samples, "vllm:num_requests_waiting")),
        speculates=acceptance is not None if samples else None,
        acceptance=acceptance or {},
        num_ranks=len(engines) or None,
        progress_mark=_mark(samples, "vllm"),
        notes=() if samples else ("no /metrics: was the server started with --disable-log-stats?",),
    )


def of_sglang(samples: Iterable[Sample], info: Mapping[str, Any] | None, notes: tuple[str, ...] = ()) -> Counters:
    """A reading from SGLang's /metrics (empty without --enable-metrics) and /server_info (None if not asked)."""
    samples = tuple(samples)
    told = (info or {}).get("internal_states")
    states = [s for s in told if isinstance(s, Mapping)] if isinstance(told, list) else []
    lengths = {
        str(rank): float(state["avg_spec_accept_length"])
        for rank, state in enumerate(states)
        if isinstance(state.get("avg_spec_accept_length"), int | float)
    }
    speculates: bool | None = None
    if info is not None:
        algorithm = info.get("speculative_algorithm") or next((s.get("speculative_algorithm") for s in states), None)
        speculates = bool(algorithm) or bool(lengths)
    elif samples:
        speculates = True if total(samples, "sglang:spec_verify_calls") else None
    missing = () if samples else ("no /metrics: start SGLang with --enable-metrics for token progress",)
    return Counters(
        generated_tokens=total(samples, "sglang:generation_tokens"),
        running=_whole(total(samples, "sglang:num_running_reqs")),
        waiting=_whole(total(samples, "sglang:num_queue_reqs")),
        speculates=speculates,
        accept_lengths=lengths,
        num_ranks=len(states) or None,
        progress_mark=_mark(samples, "sglang"),
        notes=missing + notes,
    )


def _server_info(http: "httpx.Client", address: ServerAddress) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    routes = ["/server_info", "/get_server_info"] if at_least(address.version, "0.5.8") else ["/get_server_info"]
    for route in routes:
        try:
            info = get_json(http, address, route)
        except ServerRefused as error:
            return None, (f"{route}: {error.what}",)
        if info is not None:
            return info, ()
    return None, ("no /server_info",)


def _mark(samples: Iterable[Sample], engine: str) -> tuple[float, ...]:
    samples = tuple(samples)
    return tuple(v for name in _PROGRESS[engine] if (v := total(samples, name)) is not None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
