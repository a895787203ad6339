"""The first-minute verdict: does this server really speculate, does it accept, are its answers right? In words.

The measured numbers only corroborate; what an engine does with a draft is the ledger's to say (a missing q_proj can
cost nothing on an easy text). Where the server's own answers were replayed, `Verdict.replay` says what they
should give.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eyas.client import counters
from eyas.client.address import ServerAddress
from eyas.decode.accept_length import Acceptance
from eyas.diagnostic import Diagnostic, errors_of, worst_first
from eyas.errors import EyasError
from eyas.serve.facts.containment import told
from eyas.serve.facts.state import Proof
from eyas.serve.verdict.canary import canary_prompts
from eyas.serve.verdict.canary_run import CanaryOptions, RankResult, run_canaries
from eyas.serve.verdict.losslessness import Losslessness, compare_answers
from eyas.serve.verdict.parity_step import NOT_MADE, ParityFound
from eyas.serve.verdict.verdict_findings import VerdictContext, verdict_findings

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the first minute showed.

    Attributes:
        acceptance: all ranks pooled.
        ranks: rank by rank.
        findings: what is wrong, worst first.
        replay: of the server's own answers; None = there was nothing to replay on.
    """

    acceptance: Acceptance
    ranks: tuple[RankResult, ...]
    losslessness: Losslessness
    findings: tuple[Diagnostic, ...]
    words: str
    notes: tuple[str, ...] = ()
    replay: ParityFound | None = None

    @property
    def ok(self) -> bool:
        """No finding of severity error or above."""
        return not errors_of(self.findings)

    @property
    def proof(self) -> Proof:
        """For the state machine: ready becomes proven."""
        length = self.acceptance.accept_length if self.acceptance.rounds else None
        return Proof(ok=self.ok, text=self.words.splitlines()[0], rounds=self.acceptance.rounds, accept_length=length)

    def as_document(self) -> dict[str, Any]:
        """The verdict as a JSON object."""
        return {
            "schema": "eyas.verdict/1",
            "ok": self.ok,
            "words": self.words,
            **_numbers(self.acceptance),
            "prediction": self.replay.replayed if self.replay else None,
            "replay": {"verdict": self.replay.verdict, "words": self.replay.words, **self.replay.document}
            if self.replay
            else None,
            "ranks": [
                {
                    "rank": r.rank,
                    **_numbers(r.acceptance),
                    "answers": r.num_answers,
                    "looping": r.num_looping,
                    "tokens": r.num_tokens,
                    "source": r.source,
                    "error": r.error.what if r.error else None,
                }
                for r in self.ranks
            ],
            "losslessness": {
                "compared": self.losslessness.num_compared,
                "equal": self.losslessness.num_equal,
                "tokens": self.losslessness.num_tokens,
                "words": str(self.losslessness),
            },
            "findings": [f.as_document() for f in self.findings],
            "notes": list(self.notes),
        }


def first_minute(
    http: "httpx.Client",
    address: ServerAddress,
    options: CanaryOptions,
    context: VerdictContext,
    *,
    replay: Callable[[float], ParityFound] | None = None,
) -> Verdict:
    """Ask the canaries, read the counters, compare the answers, replay them, and judge.

    Never raises for what the server does: a server that does not answer is a verdict too.

    Args:
        replay: given the seconds that are left, what `ParityStep.run` gives; None = nothing to replay on.
    """
    began = time.monotonic()
    canaries = canary_prompts(context.target_folder)
    speculates, trouble = _speculates(http, address)
    results: list[RankResult] = []
    for rank in context.ranks or (None,):
        try:
            results.append(run_canaries(http, address, canaries.prompts, options, rank=rank))
        except EyasError as error:
            results.append(_failed(rank, error, options))
    losslessness = _compare(http, address, results, context)
    left = options.max_seconds * max(len(context.ranks), 1) - (time.monotonic() - began)
    return conclude(
        results,
        losslessness,
        speculates,
        options,
        context,
        notes=tuple(n for n in (canaries.note, trouble) if n),
        replay=_replayed(replay, results, left) if replay else None,
    )


def conclude(
    results: Sequence[RankResult],
    losslessness: Losslessness,
    speculates: bool | None,
    options: CanaryOptions,
    context: VerdictContext,
    *,
    notes: tuple[str, ...] = (),
    replay: ParityFound | None = None,
) -> Verdict:
    """The verdict on what was seen; pure.

    Args:
        speculates: what the server's counters say; None = they say nothing.
        replay: see `Verdict`.
    """
    pooled = Acceptance.none(options.num_draft_tokens)
    for result in results:
        pooled += result.acceptance
    found = worst_first(verdict_findings(results, pooled, losslessness, speculates, options, context, replay))
    notes = (*notes, *dict.fromkeys(n for r in results for n in r.notes))
    return Verdict(
        acceptance=pooled,
        ranks=tuple(results),
        losslessness=losslessness,
        findings=found,
        words=_words(pooled, found, losslessness, context, replay),
        notes=notes,
        replay=replay,
    )


def _words(
    pooled: Acceptance,
    findings: Sequence[Diagnostic],
    losslessness: Losslessness,
    context: VerdictContext,
    replay: ParityFound | None,
) -> str:
    worst = next(iter(errors_of(findings)), None)
    if pooled.rounds:
        shares = " ".join(f"{p:.3f}" for p in pooled.per_position)
        head = f"accept length {pooled.accept_length:.2f} over {pooled.rounds} rounds (per position {shares})"
    else:
        head = "no verify pass was counted"
    if worst is None:
        head += ": speculation works"
    elif worst.code == "nothing-accepted":
        head += f": nothing is accepted; {worst.why}"
    else:
        head += f": {worst.what}; {worst.why}"
    lines = [head + (f"; next: {worst.advice}" if worst and worst.do else "")]
    lines += [str(losslessness), *([str(replay)] if replay else [])]
    lines += [f"{f.severity}: {f.what} ({f.why})" for f in findings if f is not worst]
    if context.forced:
        lines.append(f"started although check said otherwise: --force {' '.join(context.forced)}")
    return "\n".join(lines)


def _speculates(http: "httpx.Client", address: ServerAddress) -> tuple[bool | None, str]:
    try:
        return counters.read(address, http=http).speculates, ""
    except EyasError as error:
        return None, f"counters unreadable: {error.what}"


def _failed(rank: int | None, error: EyasError, options: CanaryOptions) -> RankResult:
    none = Acceptance.none(options.num_draft_tokens)
    return RankResult(rank=rank, acceptance=none, num_answers=0, num_looping=0, num_tokens=0, error=error)


def _compare(
    http: "httpx.Client", address: ServerAddress, results: Sequence[RankResult], context: VerdictContext
) -> Losslessness:
    def not_compared(note: str) -> Losslessness:
        return Losslessness(num_compared=0, num_equal=0, num_tokens=0, note=note)

    if not context.expected:
        return not_compared("the target's own answers were not given (--expect FILE)")
    if any(r.error for r in results):
        return not_compared("the server did not answer all canaries")
    try:
        return compare_answers(http, address, context.expected)
    except EyasError as error:
        return not_compared(error.what)


def _replayed(replay: Callable[[float], ParityFound], results: Sequence[RankResult], left_s: float) -> ParityFound:
    if any(r.error for r in results) or not any(r.acceptance.rounds for r in results):
        return ParityFound(verdict=NOT_MADE, words="the canaries gave no verify passes to compare with")
    try:
        return replay(left_s)
    except Exception as error:  # noqa: BLE001 - the rest of the verdict stands without it
        return ParityFound(verdict=NOT_MADE, words=f"eyas failed ({told(error)})")


def _numbers(acceptance: Acceptance) -> dict[str, Any]:
    return {
        "rounds": acceptance.rounds,
        "accept_length": acceptance.accept_length,
        "per_position": list(acceptance.per_position),
        "accept_rate": acceptance.accept_rate,
    }
