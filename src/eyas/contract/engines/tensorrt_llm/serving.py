"""TensorRT-LLM's HTTP (`trtllm-serve`): counters in two forms, as `ServerApi`.

What the names mean (read in serve/openai_server.py, metrics/collector.py and the docs of iteration statistics):
- `/prometheus/metrics` (with `return_perf_metrics: true`) counts since the start, but not verify passes: the accept
  length there is a gauge of the last iteration.
- `/metrics` (with `enable_iter_perf_stats: true`) is a JSON list of the iterations since it was last asked: reading it
  takes them away from every other reader, so it is asked only where there is no page of the first form.
- `specDecodingStats` of an iteration: `numRequestsWithDraftTokens` = verify passes, `numAcceptedTokens` without the
  bonus; null while speculation is off or nothing is drafted.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eyas.client.address import ServerAddress, get_text
from eyas.client.counters import progress_mark, whole_total
from eyas.client.prometheus import Sample, parse, total
from eyas.client.server_api import Counters, ServerApi

if TYPE_CHECKING:
    import httpx

_DRAFTED = "trtllm_spec_decode_num_draft_tokens"
_PROGRESS = ("trtllm_generation_tokens", "trtllm_prompt_tokens", _DRAFTED)
_NO_COUNTERS = "no counters: write enable_iter_perf_stats: true (or return_perf_metrics: true) into the --config file"


def read_counters(http: "httpx.Client", address: ServerAddress, with_server_info: bool) -> Counters:
    """The Prometheus page; without one, the iterations since the last reading."""
    page = get_text(http, address, "/prometheus/metrics")
    if page and (samples := parse(page)):
        return counters_of_page(samples)
    return counters_of_iterations(iterations(get_text(http, address, "/metrics")))


def counters_of_page(samples: Sequence[Sample]) -> Counters:
    """A reading from /prometheus/metrics."""
    length = total(samples, "trtllm_spec_decode_acceptance_length")
    return Counters(
        generated_tokens=total(samples, "trtllm_generation_tokens"),
        running=whole_total(samples, "trtllm_num_requests_running"),
        waiting=whole_total(samples, "trtllm_num_requests_waiting"),
        speculates=True if total(samples, _DRAFTED) else None,
        accept_lengths={"0": length} if length else {},
        progress_mark=progress_mark(samples, _PROGRESS),
        notes=("the accept length is that of the last iteration only",) if length else (),
    )


def iterations(text: str | None) -> tuple[Mapping[str, Any], ...]:
    """The iterations of a /metrics answer, oldest first; () where it is anything else."""
    try:
        rows = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return ()
    return tuple(row for row in rows if isinstance(row, Mapping)) if isinstance(rows, list) else ()


def counters_of_iterations(rows: Sequence[Mapping[str, Any]]) -> Counters:
    """A reading from the iterations since the last one: the requests of the newest, the accept length of all."""
    if not rows:
        return Counters(notes=(f"nothing ran since the last look, or {_NO_COUNTERS}",))
    newest = rows[-1]
    drafting = [spec for row in rows if isinstance(spec := row.get("specDecodingStats"), Mapping)]
    passes = sum(_count(spec, "numRequestsWithDraftTokens") for spec in drafting)
    accepted = sum(_count(spec, "numAcceptedTokens") for spec in drafting)
    return Counters(
        running=_count(newest, "numActiveRequests"),
        waiting=_count(newest, "numQueuedRequests"),
        speculates=True if passes else None,
        accept_lengths={"0": 1 + accepted / passes} if passes else {},
        progress_mark=(float(max(_count(row, "iter") for row in rows)),),
        notes=("the accept length covers the time since the last reading",) if passes else (),
    )


def _count(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 60 else 0


SERVING = ServerApi(
    name="tensorrt-llm",
    owners=("tensorrt_llm",),
    has_version=True,
    read_counters=read_counters,
    promql="trtllm_spec_decode_acceptance_length",
    words=lambda version, k, length, rate: (
        "TensorRT-LLM's acceptance length: tokens per verify pass, bonus included, of the last iteration",
    ),
)
