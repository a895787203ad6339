"""vLLM's acceptance counts as `Acceptance`. Pure: payloads in, counts out.

What the names mean (read in the source of 0.25.1, 0.32.0 and 0.33.0, where they are the same):
- `spec_decode_num_drafts` = verify passes of single requests with at least one draft token; `…num_accepted_tokens` and
  `…_per_pos{position=k}` exclude the bonus token; drafts past the end of the answer are counted; drafts thrown out by a
  grammar are taken off `…num_draft_tokens`. The counters do not exist when speculation is off.
- `metrics.speculative_decoding` of one answer exists since 0.32 with --per-request-spec-decode-metrics.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from eyas.client.prometheus import Sample, by_label
from eyas.client.request_counts import RequestCounts
from eyas.decode.accept_length import Acceptance

_PREFIX = "vllm:spec_decode_num_"


def of_metrics(samples: Iterable[Sample]) -> dict[str, Acceptance] | None:
    """Lifetime counts per engine (data-parallel rank, label `engine`) from /metrics; None if speculation is off."""
    samples = tuple(samples)
    drafts = by_label(samples, f"{_PREFIX}drafts", "engine")
    if not drafts:
        return None
    proposed = by_label(samples, f"{_PREFIX}draft_tokens", "engine")
    return {
        engine: _acceptance(int(rounds), int(proposed.get(engine, 0)), _per_position(samples, engine))
        for engine, rounds in drafts.items()
    }


def difference(after: Acceptance, before: Acceptance) -> Acceptance:
    """What was counted between two readings of lifetime counters; a restart in between counts from zero.

    The two readings are not one atomic moment of the engine, so a count can lead another by a pass: each is cut to what
    an `Acceptance` allows.
    """
    if after.rounds < before.rounds:
        before = Acceptance.none(len(before.accepted_at))
    width = len(after.accepted_at)
    pad = (0,) * (width - len(before.accepted_at))
    rounds = after.rounds - before.rounds
    accepted = [a - b for a, b in zip(after.accepted_at, before.accepted_at + pad, strict=False)]
    proposed = [a - b for a, b in zip(after.proposed_at, before.proposed_at + pad, strict=False)]
    return _consistent(rounds, accepted, proposed)


def of_answer(metrics: Mapping[str, Any] | None) -> RequestCounts:
    """Counts of one request from its answer's `metrics` object (0.32 and newer, if asked for)."""
    details = (metrics or {}).get("speculative_decoding")
    if not isinstance(details, Mapping):
        return RequestCounts(acceptance=None)
    histogram = details.get("acceptance_histogram")
    if not isinstance(histogram, list) or not histogram:
        return RequestCounts(acceptance=None, notes=("metrics.speculative_decoding without a histogram",))
    rounds = sum(histogram)
    per_position = [sum(histogram[k + 1 :]) for k in range(len(histogram) - 1)]
    return RequestCounts(acceptance=_acceptance(rounds, int(details.get("num_draft_tokens", 0)), per_position))


def _per_position(samples: Iterable[Sample], engine: str) -> list[int]:
    mine = (s for s in samples if s.labels.get("engine", "") == engine)
    counts = by_label(mine, f"{_PREFIX}accepted_tokens_per_pos", "position")
    width = max((int(p) for p in counts if p.isdigit()), default=-1) + 1
    return [int(counts.get(str(k), 0)) for k in range(width)]


def _acceptance(rounds: int, drafted: int, accepted: list[int]) -> Acceptance:
    # vLLM says how many drafts there were, not at which positions (the last pass of an answer may draft fewer): filled
    # from the front, which leaves the accept rate exact.
    proposed: list[int] = []
    for _ in accepted:
        proposed.append(min(rounds, drafted - sum(proposed)))
    return _consistent(rounds, accepted, proposed)


def _consistent(rounds: int, accepted: list[int], proposed: list[int]) -> Acceptance:
    rounds = max(rounds, 0)
    at: list[int] = []
    for count in accepted:
        at.append(max(0, min(count, rounds, at[-1] if at else rounds)))
    return Acceptance(rounds, tuple(at), tuple(max(a, min(p, rounds)) for a, p in zip(at, proposed, strict=True)))
