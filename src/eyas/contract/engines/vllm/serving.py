"""vLLM's HTTP: counters and acceptance counts, as `ServerApi`.

What the names mean (read in the source of 0.25.1, 0.32.0 and 0.33.0, where they are the same):
- `spec_decode_num_drafts` = verify passes of single requests with at least one draft token; `…num_accepted_tokens` and
  `…_per_pos{position=k}` exclude the bonus token; drafts past the end of the answer are counted; drafts thrown out by a
  grammar are taken off `…num_draft_tokens`. The counters do not exist when speculation is off. They count since the
  start, per rank.
- `metrics.speculative_decoding` of one answer exists since 0.32 with --per-request-spec-decode-metrics.
- `token_ids` of a choice (`return_token_ids`) holds the token that ended the answer; `stop_reason` is null for the
  model's own end, else the token id or string of the request. `/tokenize` takes a `prompt` or `messages`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eyas.client.address import ServerAddress, get_text
from eyas.client.counters import consistent, progress_mark, whole_total
from eyas.client.prometheus import Sample, by_label, parse, total
from eyas.client.server_api import (
    MOST_POSITIONS,
    Counters,
    RequestCounts,
    ServerApi,
    ServerLimits,
    TokenRoutes,
)
from eyas.decode.accept_length import Acceptance

if TYPE_CHECKING:
    import httpx

_PREFIX = "vllm:spec_decode_num_"
# By default the model's generation_config.json sets top_k, min_p and a repetition penalty.
_EXACT = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}
_MOST_RANKS = 1024  # that are read apart
_PROGRESS = ("vllm:generation_tokens", "vllm:prompt_tokens", "vllm:iteration_tokens_total_count")


def read_counters(http: "httpx.Client", address: ServerAddress, with_server_info: bool) -> Counters:
    """/metrics holds all."""
    page = get_text(http, address, "/metrics")
    return counters_of(parse(page) if page else ())


def counters_of(samples: Sequence[Sample]) -> Counters:
    """A reading from /metrics."""
    acceptance = of_metrics(samples)
    engines = {s.labels["engine"] for s in samples if s.name.startswith("vllm:") and "engine" in s.labels}
    return Counters(
        generated_tokens=total(samples, "vllm:generation_tokens"),
        running=whole_total(samples, "vllm:num_requests_running"),
        waiting=whole_total(samples, "vllm:num_requests_waiting"),
        speculates=acceptance is not None if samples else None,
        acceptance=acceptance or {},
        num_ranks=min(len(engines), _MOST_RANKS) or None,
        progress_mark=progress_mark(samples, _PROGRESS),
        notes=() if samples else ("no /metrics: was the server started with --disable-log-stats?",),
    )


def read_limits(http: "httpx.Client", address: ServerAddress) -> ServerLimits:
    """`/server_info` exists in development mode only; `rejection_sample_method` "synthetic" accepts by a given rate."""
    page = get_text(http, address, "/server_info") or ""
    found = re.search(r"rejection_sample_method\W{1,6}synthetic", page)
    return ServerLimits(simulates=found[0] if found else "")


def of_metrics(samples: Sequence[Sample]) -> dict[str, Acceptance] | None:
    """Lifetime counts per engine (data-parallel rank, label `engine`) from /metrics; None if speculation is off."""
    drafts = by_label(samples, f"{_PREFIX}drafts", "engine")
    if not drafts:
        return None
    proposed = by_label(samples, f"{_PREFIX}draft_tokens", "engine")
    accepted = _per_position(samples)
    return {
        engine: _acceptance(int(rounds), int(proposed.get(engine, 0)), accepted.get(engine, []))
        for engine, rounds in list(drafts.items())[:_MOST_RANKS]
    }


def counts_of(metrics: Mapping[str, Any], depth: int | None = None) -> RequestCounts:
    """Counts of one request from its answer's `metrics` object (0.32 and newer, if asked for)."""
    details = metrics.get("speculative_decoding")
    if not isinstance(details, Mapping):
        return RequestCounts(acceptance=None)
    histogram = details.get("acceptance_histogram")
    if not isinstance(histogram, list) or not 0 < len(histogram) <= MOST_POSITIONS:
        return RequestCounts(acceptance=None, notes=("metrics.speculative_decoding without a histogram of acceptance",))
    histogram = [int(count) for count in histogram]
    rounds = sum(histogram)
    per_position = [sum(histogram[k + 1 :]) for k in range(len(histogram) - 1)]
    return RequestCounts(acceptance=_acceptance(rounds, int(details.get("num_draft_tokens", 0)), per_position))


def _per_position(samples: Sequence[Sample]) -> dict[str, list[int]]:
    """Engine -> accepted drafts by position."""
    name, positions = f"{_PREFIX}accepted_tokens_per_pos", {str(k): k for k in range(MOST_POSITIONS)}
    out: dict[str, list[int]] = {}
    for sample in samples:
        position = positions.get(sample.labels.get("position", ""))
        if sample.name in (name, f"{name}_total") and position is not None:
            counts = out.setdefault(sample.labels.get("engine", ""), [])
            counts += [0] * (position + 1 - len(counts))
            counts[position] += int(sample.value)
    return out


def _acceptance(rounds: int, drafted: int, accepted: list[int]) -> Acceptance:
    # vLLM says how many drafts there were, not at which positions (the last pass of an answer may draft fewer): filled
    # from the front, which leaves the accept rate exact.
    proposed: list[int] = []
    for _ in accepted:
        proposed.append(min(rounds, drafted - sum(proposed)))
    return consistent(rounds, accepted, proposed)


SERVING = ServerApi(
    name="vllm",
    owners=("vllm",),
    has_version=True,
    extra_body={"return_token_ids": True},
    exact_fields=_EXACT,
    takes_stop_ids=True,
    tokens=TokenRoutes(takes_messages=lambda version: True, text_field="prompt"),
    extras_of=lambda event: event.get("metrics"),
    counts_of=counts_of,
    read_counters=read_counters,
    read_limits=read_limits,
    has_lifetime_counts=True,
    words=lambda version, k, length, rate: (
        "vLLM's Mean acceptance length: tokens per verify pass, bonus included; as here",
        "vLLM's Avg Draft acceptance rate: accepted drafts / proposed drafts, all positions together; as here",
        "vLLM's Per-position acceptance rate: share of all passes, not of those that got there; as here",
    ),
    promql="1 + sum by (engine) (rate(vllm:spec_decode_num_accepted_tokens_total[5m]))"
    " / sum by (engine) (rate(vllm:spec_decode_num_drafts_total[5m]))",
)
