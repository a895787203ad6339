"""What `eyas eval` measured, as the JSON object that it prints and writes (`eyas.eval/1`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.decode.accept_length import Acceptance, pooled, request_mean

SCHEMA = "eyas.eval/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One row's rounds.

    Attributes:
        id, set: of the row.
        accepted: per round, how many drafts were accepted inside the recorded text.
    """

    id: str
    set: str
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """An evaluation.

    Attributes:
        num_draft_tokens: K, drafts per verify pass, bonus excluded.
        rows: in the data's order.
        draft, target, data: what was evaluated, on what, with fingerprints.
        settings: dtype, device, versions, seconds.
        notes: what was defaulted, skipped or generated.
    """

    num_draft_tokens: int
    rows: Sequence[RowResult]
    draft: Mapping[str, Any]
    target: Mapping[str, Any]
    data: Mapping[str, Any]
    settings: Mapping[str, Any]
    notes: Sequence[str] = ()

    def acceptances(self, set_name: str | None = None) -> list[Acceptance]:
        """One `Acceptance` a row, of one set or of all."""
        chosen = [row for row in self.rows if set_name is None or row.set == set_name]
        return [Acceptance.of_rounds(row.accepted, self.num_draft_tokens) for row in chosen]

    @property
    def sets(self) -> list[str]:
        """Names of the sets, in order of first appearance."""
        return list(dict.fromkeys(row.set for row in self.rows))

    @property
    def total(self) -> Acceptance:
        """All rounds pooled."""
        return pooled(self.acceptances(), self.num_draft_tokens)

    def as_document(self) -> dict[str, Any]:
        """The evaluation as a JSON object."""
        return {
            "schema": SCHEMA,
            **summary(self.acceptances(), self.num_draft_tokens),
            "sets": {name: summary(self.acceptances(name), self.num_draft_tokens) for name in self.sets},
            "draft": dict(self.draft),
            "target": dict(self.target),
            "data": dict(self.data),
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "rows": [{"id": row.id, "set": row.set, "accepted": list(row.accepted)} for row in self.rows],
        }


def summary(requests: Sequence[Acceptance], num_draft_tokens: int) -> dict[str, Any]:
    """The figures of one set: pooled, per-request mean under its own name, per position joint and conditional.

    Keys:
        accept_length: tokens per verify pass, bonus included, pooled over rounds.
        accept_length_request_mean: unweighted mean of the requests' accept lengths.
        per_position: entry k = share of rounds in which drafts 1 … k+1 were all accepted (joint).
        per_position_conditional: the same, given that all drafts before were accepted.
    """
    total = pooled(requests, num_draft_tokens)
    return {
        "accept_length": total.accept_length,
        "accept_length_request_mean": request_mean(requests),
        "per_position": list(total.per_position),
        "per_position_conditional": list(total.conditional),
        "accepted_at": list(total.accepted_at),
        "rounds": total.rounds,
        "num_tokens": total.num_tokens,
        "num_requests": len(requests),
        "num_draft_tokens": num_draft_tokens,
    }
