"""SGLang's HTTP: `/generate`, `/tokenize`, counters and acceptance counts in each version's names, as `ServerApi`.

What the names mean (read in the source of 0.5.9, 0.5.12, 0.5.15.post1, 0.5.17, 0.5.20 and 0.5.23):
- The histogram's entry n counts verify passes that accepted n drafts, bonus excluded, in every version; drafts past the
  end of the answer are counted. It is named `spec_accept_histogram` in 0.5.9 and `spec_correct_drafts_histogram` since
  0.5.12 (0.5.12 to 0.5.20 also write the old name).
- `spec_accept_length` is completion tokens / verify passes: it counts the token that prefill yields and stops at the
  end of the answer, so it is not our accept length (up to 1 / passes too high). It is never used here.
- `spec_accept_rate` of a request is accepted drafts / (passes * (num_draft_tokens - 1)): with a tree that is per node.
  The log line's `accept rate` counted the bonus until 0.5.10 (`accept_rate_of_log_line`).
- `/server_info` gives lifetime averages only, per data-parallel rank, warm-up and probes included, added up at log
  ticks. Generated tokens are counted when an answer ends, but the number of inter-token latencies grows with every
  chunk.
- `/tokenize` takes `prompt`; since 0.5.12 also `messages`, `tools` and `chat_template_kwargs`, rendered as for a chat
  completion. `/detokenize` keeps special tokens where it is told to.
- `finish_reason.matched` is the token id or string that ended an answer; `output_ids` holds that token.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eyas.client.address import ServerAddress, ServerRefused, get_json, get_text
from eyas.client.counters import progress_mark, whole_total
from eyas.client.prometheus import Sample, by_label, parse, total
from eyas.client.server_api import (
    MOST_POSITIONS,
    Counters,
    GenerationOptions,
    Prompt,
    RequestCounts,
    ServerAnswer,
    ServerApi,
    ServerLimits,
    TokenRoutes,
)
from eyas.contract.engines.version import at_least
from eyas.decode.accept_length import Acceptance

if TYPE_CHECKING:
    import httpx

_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
# A server may be started with others: --preferred-sampling-params.
_EXACT = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}
_RECENT = "sglang:spec_accept_length"
_END = 1e15  # no count of one answer gets there
_PROGRESS = (
    "sglang:generation_tokens",
    "sglang:prompt_tokens",
    "sglang:realtime_tokens",
    "sglang:inter_token_latency_seconds_count",
    "sglang:time_to_first_token_seconds_count",
    "sglang:num_used_tokens",
)


class GenerateRoute:
    """`/generate` as `NativeRoute`."""

    path = "/generate"

    def body(self, prompt: Prompt, options: GenerationOptions) -> dict[str, Any]:
        """Text or token ids, and the sampling parameters in SGLang's words."""
        sampling: dict[str, Any] = {"temperature": options.temperature, "max_new_tokens": options.max_new_tokens}
        optional = {"top_p": options.top_p, "top_k": options.top_k, "sampling_seed": options.seed}
        sampling |= {name: value for name, value in optional.items() if value is not None}
        if options.ignore_eos:
            sampling["ignore_eos"] = True
        if options.stop_ids:
            sampling["stop_token_ids"] = list(options.stop_ids)
        if options.stop_strings:
            sampling["stop"] = list(options.stop_strings)
        if options.is_exact:
            sampling = {**_EXACT, **sampling}
        source = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
        return {**source, "sampling_params": sampling, "stream": True, **options.extra}

    def stream(self, depth: int | None) -> "GenerateStream":
        """What takes its events."""
        return GenerateStream(depth)

    def next_token_body(self, prefix: Sequence[int], top: int) -> dict[str, Any]:
        """One greedy token with the log-probabilities at its place."""
        sampling = {"temperature": 0.0, "max_new_tokens": 1}
        return {
            "input_ids": list(prefix),
            "sampling_params": sampling,
            "return_logprob": True,
            "top_logprobs_num": top,
        }

    def next_token_logprobs(self, answer: Mapping[str, Any]) -> dict[int, float]:
        """From `meta_info.output_top_logprobs`: rows of (log-probability, id, text)."""
        rows = (answer.get("meta_info") or {}).get("output_top_logprobs") or []
        return {int(entry[1]): float(entry[0]) for entry in (rows[0] if rows else [])}


class GenerateStream:
    """An event holds all text and ids so far, or with --incremental-streaming-output the new ones only."""

    def __init__(self, depth: int | None) -> None:
        self._depth = depth
        self._text, self._ids, self._meta = "", [], {}  # type: tuple[str, list[int], dict[str, Any]]
        self._times: list[float] = []
        self._tokens: list[int] = []

    def take(self, event: Mapping[str, Any], at_s: float) -> None:
        """Add one event that came `at_s` after the request."""
        self._meta = dict(event.get("meta_info") or self._meta)
        ids = [int(i) for i in event.get("output_ids") or ()]
        text = event.get("text") or ""
        completed = self._meta.get("completion_tokens")
        cumulative = completed is None or len(ids) >= int(completed) or len(self._ids) + len(ids) != int(completed)
        before = len(self._ids)
        if ids:
            self._ids = ids if cumulative else self._ids + ids
        if text:
            self._text = text if text.startswith(self._text) and cumulative else self._text + text
        if len(self._ids) > before:
            self._times.append(at_s)
            self._tokens.append(len(self._ids) - before)

    def result(self, total_s: float) -> ServerAnswer:
        """The answer, after the stream ended."""
        reason = self._meta.get("finish_reason")
        return ServerAnswer(
            text=self._text,
            output_ids=tuple(self._ids) if self._ids else None,
            num_prompt_tokens=self._meta.get("prompt_tokens"),
            num_output_tokens=self._meta.get("completion_tokens"),
            chunk_times_s=tuple(self._times),
            chunk_tokens=tuple(self._tokens),
            total_s=total_s,
            finish_reason=reason.get("type") if isinstance(reason, Mapping) else reason,
            counts=counts_of(self._meta, self._depth),
            stopped_by=reason.get("matched") if isinstance(reason, Mapping) else None,
        )


def choose_rank(rank: int, version: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The body's field for a data-parallel rank: renamed between 0.5.9 and 0.5.12."""
    return {"routed_dp_rank" if at_least(version, "0.5.12") else "data_parallel_rank": rank}, {}


def extras_of(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Speculation in an OpenAI event: `meta_info` of a choice, else `sglext.spec_tokens_details`."""
    details = (event.get("sglext") or {}).get("spec_tokens_details")
    found = [choice.get("meta_info") for choice in event.get("choices") or ()]
    found += details if isinstance(details, list) else [details]
    return next((extras for extras in found if isinstance(extras, Mapping)), None)


def counts_of(meta: Mapping[str, Any], depth: int | None = None) -> RequestCounts:
    """Counts of one request from its `meta_info` (`/generate`) or `sglext` details.

    Args:
        meta: the object as it came.
        depth: drafts per verify pass along one path (`--speculative-num-steps`); None = as long as the histogram shows
            or, without one, proposed drafts / passes.
    """
    rank = meta.get("dp_rank")
    dp_rank = rank if isinstance(rank, int) else None
    rounds = _count(meta.get("spec_verify_ct"))
    if not rounds:
        return RequestCounts(acceptance=None, dp_rank=dp_rank)
    histogram = _first_list(meta, _HISTOGRAM)
    accepted = _first_count(meta, _ACCEPTED)
    proposed = _first_count(meta, _PROPOSED)
    if histogram is None:
        return RequestCounts(
            acceptance=None,
            dp_rank=dp_rank,
            notes=(f"{rounds} verify passes but no histogram in meta_info: per-position counts are not known",),
        )
    notes: list[str] = []
    if sum(histogram) != rounds:
        notes.append(f"histogram holds {sum(histogram)} passes, spec_verify_ct says {rounds}: the histogram is used")
    counted = sum(n * passes for n, passes in enumerate(histogram))
    if accepted is not None and accepted != counted:
        notes.append(f"histogram holds {counted} accepted drafts, the counter says {accepted}: the histogram is used")
    width = max(len(histogram) - 1, depth or (round(proposed / rounds) if proposed else 0))
    width = min(width, MOST_POSITIONS)
    return RequestCounts(acceptance=of_histogram(histogram, width), notes=tuple(notes), dp_rank=dp_rank)


def of_histogram(histogram: Sequence[int], depth: int) -> Acceptance:
    """`Acceptance` from passes by number of accepted drafts (entry n = passes with n), every pass `depth` deep."""
    rounds = sum(histogram)
    return Acceptance(rounds, tuple(sum(histogram[k + 1 :]) for k in range(depth)), (rounds,) * depth)


def accept_rate_of_log_line(accept_len: float, num_draft_tokens: int, version: str) -> float:
    """What the log line's `accept rate` shows at an accept length: a dead draft shows 0.25, not 0, up to 0.5.10.

    Args:
        accept_len: tokens per verify pass, bonus included.
        num_draft_tokens: SGLang's own counting, root included (chain of K drafts: K + 1).
    """
    if at_least(version, "0.5.11"):
        return (accept_len - 1) / (num_draft_tokens - 1)
    return accept_len / num_draft_tokens


def read_counters(http: "httpx.Client", address: ServerAddress, with_server_info: bool) -> Counters:
    """/metrics, and the scheduler's lifetime averages where they are asked for."""
    page = get_text(http, address, "/metrics")
    info, notes = _server_info(http, address) if with_server_info else (None, ())
    return counters_of(parse(page) if page else (), info, notes)


def counters_of(samples: Sequence[Sample], info: Mapping[str, Any] | None, notes: tuple[str, ...] = ()) -> Counters:
    """A reading from /metrics (empty without --enable-metrics) and /server_info (None if not asked)."""
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
        running=whole_total(samples, "sglang:num_running_reqs"),
        waiting=whole_total(samples, "sglang:num_queue_reqs"),
        speculates=speculates,
        accept_lengths=lengths,
        recent_lengths={
            rank or "0": length for rank, length in by_label(samples, _RECENT, "dp_rank").items() if length > 0
        },
        num_ranks=len(states) or None,
        progress_mark=progress_mark(samples, _PROGRESS),
        notes=missing + notes,
    )


def read_limits(http: "httpx.Client", address: ServerAddress) -> ServerLimits:
    """With speculation SGLang runs at most 48 requests at once unless it was told another number (server_args.py)."""
    info, _ = _server_info(http, address)
    told = (info or {}).get("internal_states")
    states = [s for s in told if isinstance(s, Mapping)] if isinstance(told, list) else []
    each = [_count(s.get("effective_max_running_requests_per_dp")) for s in states]
    most = sum(n for n in each if n) or _count((info or {}).get("max_running_requests"))
    simulated = [f"{key}={value}" for key, value in (info or {}).items() if "simulate_acc" in key.lower() and value]
    remark = "with speculation SGLang runs at most 48 requests at once unless --max-running-requests says otherwise"
    return ServerLimits(most_requests=most or None, remark=remark, simulates=", ".join(simulated)[:200])


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


def _count(value: object) -> int | None:
    """A count, if it is one: JSON may hold infinities, and numbers that nothing can be counted with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < _END else None


def _first_count(meta: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((c for name in names if (c := _count(meta.get(name))) is not None), None)


def _first_list(meta: Mapping[str, Any], names: Sequence[str]) -> list[int] | None:
    for name in names:
        value = meta.get(name)
        if isinstance(value, list) and 0 < len(value) <= MOST_POSITIONS and all(_count(v) is not None for v in value):
            return [int(v) for v in value]
    return None


def words(version: str | None, k: int | None, length: float | None, rate: float | None) -> tuple[str, ...]:
    """What `accept len` and `accept rate` of the log and of /metrics mean; the rate changed its meaning in 0.5.11."""
    new = "SGLang's accept rate since 0.5.11: accepted drafts / proposed drafts; 0.00 is a dead draft"
    old = (
        "SGLang's accept rate up to 0.5.10: (accepted drafts + bonus) / num-draft-tokens; a dead draft shows"
        " 1 / num-draft-tokens, such as 0.25 at steps 3, top-k 1, num-draft-tokens 4"
    )
    is_new = None if version is None else at_least(version, "0.5.11")
    if is_new is None and k is not None and length is not None and rate is not None:
        is_new = abs(rate - (length - 1) / k) < abs(rate - length / (k + 1))
    said = (new, old) if is_new is None else (new if is_new else old,)
    return ("SGLang's accept len: tokens per verify pass, bonus included, of the last decode passes; as here", *said)


SERVING = ServerApi(
    name="sglang",
    owners=("sglang",),
    tokens=TokenRoutes(
        takes_messages=lambda version: at_least(version, "0.5.12"),
        text_field="text",
        detokenize_fields={"skip_special_tokens": False},
    ),
    native=GenerateRoute(),
    choose_rank=choose_rank,
    extras_of=extras_of,
    counts_of=counts_of,
    read_counters=read_counters,
    words=words,
    promql="avg by (dp_rank) (sglang:spec_accept_length)",
    read_limits=read_limits,
)
