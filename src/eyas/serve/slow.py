"""Why a server is slow although its drafts are accepted: from what its log says, and from what a round costs.

A round gains accept-length tokens a request. So its time follows from throughput, requests and accept length; where a
benchmark of the same target says what verifying and drafting take, the rest is sampling, scheduling and the host.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from eyas.serve.log.logged_acceptance import LoggedAcceptance
from eyas.serve.log.serving_log import ServingLog

_MOST_OFF = 0.1  # share of passes without a graph that needs no word
_FULL = 0.9  # of the most requests


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCause:
    """One thing that costs speed.

    Attributes:
        what, evidence, do: one sentence each.
    """

    code: str
    what: str
    evidence: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSplit:
    """A round of the server, in milliseconds.

    Attributes:
        round_ms: from throughput, requests and accept length. requests: in the batch.
        verify_ms, draft_ms: as a benchmark of the same target has them, K draft steps together; None = not at hand.
    """

    round_ms: float
    requests: int
    verify_ms: float | None = None
    draft_ms: float | None = None

    @property
    def rest_ms(self) -> float | None:
        """Sampling, scheduling and the host's gaps; None without a benchmark."""
        if self.verify_ms is None or self.draft_ms is None:
            return None
        return max(self.round_ms - self.verify_ms - self.draft_ms, 0.0)

    def __str__(self) -> str:
        text = f"a round takes {self.round_ms:.1f} ms with {self.requests} requests in the batch"
        if self.rest_ms is None:
            return f"{text}; a benchmark of the target (`eyas bench --out`) given with --bench would split it"
        parts = (
            f"verify {self.verify_ms:.1f}, draft {self.draft_ms:.1f}, sampling, scheduling and host {self.rest_ms:.1f}"
        )
        return f"{text}: {parts}"

    def as_document(self) -> dict[str, Any]:
        """The split as a JSON object."""
        return {**asdict(self), "rest_ms": self.rest_ms}


def slow_causes(log: ServingLog, bench: Mapping[str, Any] | None = None) -> tuple[SlowCause, ...]:
    """What costs speed by the log's own words; () where it says nothing of the kind.

    Args:
        bench: an `eyas.bench/1` of the same pair, for the batch from which speculation loses.
    """
    return (*_of_launch(log), *_of_lines(log), *_of_break_even(log, bench))


def round_split(
    lines: Sequence[LoggedAcceptance], num_draft_tokens: int | None, bench: Mapping[str, Any] | None = None
) -> RoundSplit | None:
    """The median round of the lines that state throughput and requests; None where none does."""
    told = [(one.running * one.length / one.throughput, one.running) for one in lines if one.running and one.throughput]
    if not told:
        return None
    seconds, requests = median(time for time, _ in told), int(median(running for _, running in told))
    ceiling = _ceiling(bench, num_draft_tokens) if requests == 1 else None  # a benchmark's parts are of one request
    if ceiling is None or num_draft_tokens is None:
        return RoundSplit(round_ms=1000 * seconds, requests=requests)
    draft_ms = num_draft_tokens * float(ceiling["draft_step_ms"])
    return RoundSplit(
        round_ms=1000 * seconds, requests=requests, verify_ms=float(ceiling["verify_ms"]), draft_ms=draft_ms
    )


# fact of a launch -> code, what, do
_SLOW_LAUNCHES = {
    "graphs_off": (
        "graphs-off",
        "CUDA graphs are switched off: every step is launched kernel by kernel",
        "start without the flag that disables them (eager execution)",
    ),
    "prefix_cache_off": (
        "prefix-cache-off",
        "the prefix cache is off: every turn reads its whole conversation again",
        "start with the prefix cache, unless it is off for a reason",
    ),
    "overlap_off": (
        "overlap-off",
        "the scheduler does not overlap with the GPU: each round waits for the host",
        "start without the flag that disables the overlapped scheduler",
    ),
}


def _of_launch(log: ServingLog) -> Iterator[SlowCause]:
    for fact, (code, what, do) in _SLOW_LAUNCHES.items():
        if fact in log.facts:
            yield SlowCause(code=code, what=what, evidence="the launch says so", do=do)


def _of_lines(log: ServingLog) -> Iterator[SlowCause]:
    graphs = [one.graphs for one in log.lines if one.graphs is not None]
    eager = graphs.count(False)
    if graphs and eager > _MOST_OFF * len(graphs) and "graphs_off" not in log.facts:
        yield SlowCause(
            code="graphs-missed",
            what="passes run without a CUDA graph: their batch is larger than the largest captured one",
            evidence=f"{eager} of {len(graphs)} lines about decoding",
            do="raise the largest captured batch, or lower the most running requests",
        )
    most, running = log.facts.get("max_running", ""), log.most_running
    if most.isdigit() and running is not None and running >= _FULL * int(most):
        capped = "capped" in log.facts
        why = f"speculation lowered it to {most}" if capped else f"the launch allows {most}"
        yield SlowCause(
            code="requests-capped",
            what=f"requests wait: {why} running requests",
            evidence=f"up to {running} run at once",
            do="raise the most running requests; the plain server of a comparison has another limit",
        )
    if log.topk > 1 and (running or 0) > 1:
        yield SlowCause(
            code="tree-wide",
            what=f"a tree of top-k {log.topk} is verified for every request of a batch",
            evidence=f"up to {running} run at once",
            do="use a chain (top-k 1) above one request at a time, or measure: eyas tune",
        )


def _of_break_even(log: ServingLog, bench: Mapping[str, Any] | None) -> Iterator[SlowCause]:
    losing = sorted(
        int(row["batch"])
        for row in (bench or {}).get("batches", ())
        if all(float(arm["speedup"]) < 1.0 for arm in row["arms"] if arm["num_draft_tokens"])
    )
    if losing and log.most_running is not None and log.most_running >= losing[0]:
        yield SlowCause(
            code="batch-above-break-even",
            what=f"the batch is one at which speculation loses: from {losing[0]} requests on, by the benchmark",
            evidence=f"up to {log.most_running} run at once",
            do="spread the requests, use fewer drafts, or serve plainly at this load: eyas tune",
        )


def _ceiling(bench: Mapping[str, Any] | None, num_draft_tokens: int | None) -> Mapping[str, Any] | None:
    rows = (bench or {}).get("comparisons", ())
    found = (row["ceiling"] for row in rows if row["set"] == "all" and row["num_draft_tokens"] == num_draft_tokens)
    return next((ceiling for ceiling in found if ceiling), None)
