"""SGLang's acceptance counts, in each version's names, as `Acceptance`. Pure: payloads in, counts out.

What the names mean (read in the source of 0.5.9, 0.5.12, 0.5.15.post1, 0.5.17, 0.5.20 and 0.5.23):
- The histogram's entry n counts verify passes that accepted n drafts, bonus excluded, in every version; drafts past the
  end of the answer are counted. It is named `spec_accept_histogram` in 0.5.9 and `spec_correct_drafts_histogram` since
  0.5.12 (0.5.12 … 0.5.20 also write the old name).
- `spec_accept_length` is completion tokens / verify passes: it counts the token that prefill yields and stops at the
  end of the answer, so it is not our accept length (up to 1 / passes too high). It is never used here.
- `spec_accept_rate` of a request is accepted drafts / (passes * (num_draft_tokens - 1)): with a tree that is per node.
  The log line's `accept rate` counted the bonus until 0.5.10 (`accept_rate_of_log_line`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from eyas.client.request_counts import RequestCounts
from eyas.client.versions import at_least
from eyas.decode.accept_length import Acceptance

_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")


def of_meta_info(meta: Mapping[str, Any], *, depth: int | None = None) -> RequestCounts:
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


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _first_count(meta: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((c for name in names if (c := _count(meta.get(name))) is not None), None)


def _first_list(meta: Mapping[str, Any], names: Sequence[str]) -> list[int] | None:
    for name in names:
        value = meta.get(name)
        if isinstance(value, list) and value and all(_count(v) is not None for v in value):
            return [int(v) for v in value]
    return None
