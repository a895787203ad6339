"""What `eyas infer` found, as the JSON object that it prints (`eyas.infer/1`)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "eyas.infer/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One reading of a draft, and what it accepts.

    Attributes:
        changes: switch -> value, where it differs from what the draft's files state; empty = as stated.
        accept_length: bonus included, pooled over the rows; nan without a round.
        rounds: verify passes counted.
    """

    changes: Mapping[str, Any]
    accept_length: float
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRecord:
    """The readings that were tried, best first.

    Attributes:
        variants: all of them; the one without changes is what the files state.
        num_draft_tokens: K.
        num_rows: texts replayed.
        draft: its path.
    """

    variants: Sequence[Variant]
    num_draft_tokens: int
    num_rows: int
    draft: str

    @property
    def best(self) -> Variant:
        """The reading that accepts most; what the files state, where nothing beats it."""
        return self.variants[0]

    @property
    def stated(self) -> Variant:
        """The reading that the files state."""
        return next(variant for variant in self.variants if not variant.changes)

    def as_document(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {
            "schema": SCHEMA,
            "draft": self.draft,
            "num_draft_tokens": self.num_draft_tokens,
            "num_rows": self.num_rows,
            "stated_is_best": not self.best.changes,
            "variants": [asdict(variant) for variant in self.variants],
        }
