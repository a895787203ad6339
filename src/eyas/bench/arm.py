"""What a benchmark compares: an arm answers one prompt and says how long it took. In process or over HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPrompt:
    """One prompt of the workload.

    Attributes:
        id, set: set = the kind of text it is reported under.
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
        origins: per id, see `records.bench_record.Passage`; empty where an arm cannot tell.
        accepted: per round, accepted drafts inside the text; None where an arm does not speculate or cannot tell.
        drafted: per round, drafts verified; None where it is always K.
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
        """K; 0 for plain decoding; the most where depth adapts."""

    def answer(self, prompt: BenchPrompt) -> Answer:
        """Decode one prompt, greedily, alone."""


class Oracle(Protocol):
    """The target's word on where two texts part."""

    def logit_gap(self, ids: Sequence[int], tokens: Sequence[int]) -> float:
        """How far the target's logits of these tokens after `ids` lie below its best, at most: 0 = all are its best."""
