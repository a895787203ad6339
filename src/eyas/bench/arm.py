"""What a benchmark compares: an arm answers one prompt and says how long it took."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPrompt:
    """One prompt of the workload.

    Attributes:
        id, set: name, and the kind of text that it is reported under.
        prompt_ids: target token ids, chat template applied.
    """

    id: str
    set: str
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer and its cost.

    Attributes:
        ids: new token ids.
        origins: per id, see `records.bench_record.Passage`; empty if the arm cannot tell.
        accepted: per round, accepted drafts inside the text; None if the arm does not speculate or cannot tell.
        drafted: per round, drafts verified; None if it is always K.
        prefill_s, decode_s: until the first token, and from there to the last.
    """

    ids: tuple[int, ...]
    origins: tuple[int, ...] = ()
    accepted: tuple[int, ...] | None = None
    drafted: tuple[int, ...] | None = None
    prefill_s: float
    decode_s: float


class Arm(Protocol):
    """One way to decode."""

    @property
    def name(self) -> str:
        """`plain`, `k=3`, `k=auto`, `transformers` …"""

    @property
    def num_draft_tokens(self) -> int:
        """K; 0 for plain decoding; the largest K if depth adapts."""

    def answer(self, prompt: BenchPrompt) -> Answer:
        """Decode one prompt, greedily, alone."""


class Oracle(Protocol):
    """What the target says about the token at which two texts part."""

    def logit_gap(self, ids: Sequence[int], tokens: Sequence[int]) -> float:
        """How far, at most, the logits of `tokens` after `ids` lie below the best logit: 0 = all are the best."""
