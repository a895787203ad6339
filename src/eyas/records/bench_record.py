"""What `eyas bench` measured, as the JSON object that it prints and writes (`eyas.bench/1`).

Speeds are tokens per second of one stream. `decode` leaves out the prompt and the first token; `with prefill` counts
both. A speed's spread is over repeats; a speedup's interval is a bootstrap over prompts. A run with `--batch` has only
`batches`: aggregate tokens per second of many sequences at a time, over the whole time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "eyas.bench/1"

# A round that accepts everything gains AL tokens in at least the time of one plain step: more than AL is impossible.
MAX_SPEEDUP_PER_ACCEPT_LENGTH = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure measured several times.

    Attributes:
        median, minimum, maximum: over the repeats.
    """

    median: float
    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures:
    """One arm's speed on one set.

    Attributes:
        arm: `plain`, `k=3`, `transformers` …
        set: kind of text, or `all`.
        num_draft_tokens: K; 0 for plain arms.
        tokens_per_s: decode only.
        tokens_per_s_with_prefill: the prompt's reading counted in time, the first token in tokens.
        num_tokens: new tokens per repeat.
    """

    arm: str
    set: str
    num_draft_tokens: int
    tokens_per_s: Spread
    tokens_per_s_with_prefill: Spread
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The speedup that the measured times of the parts allow: AL · t(1 row) / (t(K + 1 rows) + K · t(draft step)).

    Of a tree: t(nodes + 1 rows), and K = depth passes of the draft, whose mean time is `draft_step_ms`.

    Attributes:
        speedup: the ceiling.
        one_row_ms, verify_ms, draft_step_ms: medians in this run, milliseconds.
    """

    speedup: float
    one_row_ms: float
    verify_ms: float
    draft_step_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Speculative against plain decoding on one set.

    Attributes:
        set: kind of text, or `all`.
        arm: `k=3`, `k=auto`, `tree=3x3x7` (width, depth, nodes verified) …
        num_draft_tokens: K; the most where depth adapts; of a tree its depth.
        speedup: plain seconds / speculative seconds for the same tokens, decode only.
        speedup_low, speedup_high: 95 % bootstrap interval over prompts.
        speedup_with_prefill: the same with the prompt's reading.
        accept_length: tokens per verify pass, bonus included, the engine's own counts, pooled.
        accept_length_request_mean: unweighted mean over prompts.
        per_position: entry k = share of rounds in which drafts 1 … k + 1 were all accepted.
        rounds: verify passes, undrafted ones (plain steps) included; of all repeats where depth adapts, else of one.
        depth_histogram: entry k = rounds in which k drafts were verified; undrafted_rounds is its entry 0.
        ceiling: None for arms whose parts cannot be timed (a server).
        verdict: in words.
    """

    set: str
    num_draft_tokens: int
    speedup: float
    speedup_low: float
    speedup_high: float
    speedup_with_prefill: float
    accept_length: float
    accept_length_request_mean: float
    per_position: tuple[float, ...]
    rounds: int
    ceiling: Ceiling | None
    verdict: str
    arm: str = ""
    depth_histogram: tuple[int, ...] = ()
    undrafted_rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """A speculative text that leaves the plain one where both tokens almost tie for the target's best.

    Attributes:
        id: of the prompt; num_draft_tokens: of the arm.
        at: index of the first different token.
        logit_gap: of the target's best logit there and that of the worse of the two tokens.
        batch: sequences at a time.
    """

    id: str
    num_draft_tokens: int
    at: int
    logit_gap: float
    batch: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchArm:
    """One arm at one number of sequences at a time.

    Attributes:
        arm: `plain`, `k=3` …
        num_draft_tokens: K; 0 for plain.
        tokens_per_s: new tokens of all requests over the whole time, prompts included; the spread is over repeats.
        num_tokens: new tokens per repeat.
        steps: passes of the target over new tokens per repeat, all sequences together: plain steps, or rounds.
        rounds: verify passes, each sequence's own.
        accept_length: tokens per verify pass, bonus included, pooled; 1 for plain.
        per_position: entry k = share of rounds in which drafts 1 … k + 1 were all accepted.
        speedup: its tokens/s over plain's in the same repeat, median over repeats.
        speedup_low, speedup_high: extremes over repeats.
        speedup_limit: what no speedup can exceed: the accept length; or plain steps / steps where that is more, since
            one long text may keep a batch going by itself.
        equal_texts: requests whose text is the plain one, token for token, in all repeats.
        verdict: in words.
    """

    arm: str
    num_draft_tokens: int
    tokens_per_s: Spread
    num_tokens: int
    steps: int
    rounds: int
    accept_length: float
    per_position: tuple[float, ...]
    speedup: float
    speedup_low: float
    speedup_high: float
    speedup_limit: float
    equal_texts: int
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """Plain and speculative decoding with several sequences at a time.

    Attributes:
        batch: sequences at a time.
        num_requests: prompts, repeated up to twice the batch, so that sequences join and leave.
        cache_bytes: planned for the caches of target and draft, which all arms share.
        arms: plain first.
    """

    batch: int
    num_requests: int
    cache_bytes: int
    arms: tuple[BatchArm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A generated text, token by token.

    Attributes:
        id, set: of the prompt; num_draft_tokens: of the arm.
        pieces: (text, origin): origin 1 … K = accepted draft of that depth, 0 = bonus, -1 = the prefill's token.
    """

    id: str
    set: str
    num_draft_tokens: int
    pieces: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRecord:
    """A benchmark run.

    Attributes:
        figures: speed of every arm on every set, and on `all`.
        comparisons: every K on every set, and on `all`.
        best_num_draft_tokens: K of the arm with the highest speedup on `all`, which is `best_arm`.
        num_compared: pairs of texts compared token for token; num_identical of them were the same.
        divergences: the others, all within the allowed logit gap.
        repetition: set -> share of its tokens that lie in a 4-gram seen before in the same text; a high share means
            that the text degenerates and flatters a draft.
        passages: one text per set, at the best K.
        target, draft, data: what was run, with fingerprints.
        settings: device, threads, versions, repeats, limits, how arms were interleaved.
        verdict: the whole run in words.
        notes: what was defaulted, skipped or is unusual.
        batches: one per number of sequences at a time, in a run with `--batch`; there are no figures, comparisons and
            passages then, and best_num_draft_tokens is 0.
    """

    figures: Sequence[ArmFigures]
    comparisons: Sequence[Comparison]
    best_num_draft_tokens: int
    num_compared: int
    num_identical: int
    divergences: Sequence[Divergence]
    repetition: Mapping[str, float]
    passages: Sequence[Passage]
    target: Mapping[str, Any]
    draft: Mapping[str, Any]
    data: Mapping[str, Any]
    settings: Mapping[str, Any]
    verdict: str
    best_arm: str = ""
    notes: Sequence[str] = ()
    batches: Sequence[BatchFigures] = ()

    def as_document(self) -> dict[str, Any]:
        """The run as a JSON object; field names as here."""
        return {"schema": SCHEMA, **asdict(self)}


def arm_words(arm: str) -> str:
    """`K = 3`, `K = auto`, `tree 3x3x7`."""
    return arm.replace("k=", "K = ").replace("tree=", "tree ")
