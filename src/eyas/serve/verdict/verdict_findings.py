"""The rules of the first-minute verdict: what counts, ranks, loops and divergences mean. Pure; words only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eyas.decode.accept_length import Acceptance
from eyas.diagnostic import Diagnostic, Severity
from eyas.serve.supervise.liveness import BROKEN_FIRST_POSITION, NOTHING_ACCEPTED
from eyas.serve.verdict.canary_run import CanaryOptions, RankResult
from eyas.serve.verdict.losslessness import ExpectedAnswer, Losslessness
from eyas.serve.verdict.parity_step import ParityFound

_UNLIKE = 0.03  # of the accept length
_COLLAPSED = 0.35  # conditional acceptance of draft 2 over that of draft 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictContext:
    """What the verdict may lean on.

    Attributes:
        ledger: what the ledger says of this draft on this engine, one sentence; "" if no check was made.
        next_command: the command that tells more.
        target_folder: for the chat template; None = canaries are plain text.
        expected: the target's own greedy answers.
        ranks: data-parallel ranks to ask one by one; empty = one server.
        forced: finding codes that the user overruled at launch.
    """

    ledger: str = ""
    next_command: str = ""
    target_folder: Path | None = None
    expected: tuple[ExpectedAnswer, ...] = ()
    ranks: tuple[int, ...] = ()
    forced: tuple[str, ...] = ()


def verdict_findings(
    results: Sequence[RankResult],
    pooled: Acceptance,
    losslessness: Losslessness,
    speculates: bool | None,
    options: CanaryOptions,
    context: VerdictContext,
    replay: ParityFound | None = None,
) -> Iterator[Diagnostic]:
    """Everything wrong in the observations, unordered.

    Args:
        pooled: counts of all ranks together.
        speculates: what the server's counters say; None = they say nothing.
        replay: of the server's own answers; None = none was made.
    """
    yield from _replay_findings(replay, context)
    for result in results:
        if result.error is not None:
            yield _unanswered(result)
    answered = sum(r.num_answers for r in results)
    if answered and not pooled.rounds:
        yield _not_speculating(speculates, context)
    elif pooled.rounds:
        yield from _acceptance_findings(pooled, context)
        if pooled.rounds < options.min_rounds:
            yield _finding(
                "too-few-rounds",
                "warning",
                f"only {pooled.rounds} verify passes in the time allowed",
                f"{options.min_rounds} were wanted",
                "the figures are rough",
                "ask longer: --verdict-seconds",
            )
    for result in results:
        if result.acceptance.rounds and len(results) > 1 and result.acceptance.accept_length <= NOTHING_ACCEPTED:
            yield _finding(
                "rank-accepts-nothing",
                "error",
                f"rank {result.rank} accepts nothing ({result.acceptance.accept_length:.2f})",
                f"data-parallel rank {result.rank}",
                "an average over ranks would hide it",
                "compare the ranks' logs: eyas watch",
            )
    looping = sum(r.num_looping for r in results)
    if looping:
        left_out = all(r.source == "answers" for r in results) and looping < answered
        yield _finding(
            "canary-loops",
            "warning",
            f"{looping} of {answered} canary answers loop",
            "canary answers",
            "looping text flatters a draft"
            + ("; they are left out of the figures" if left_out else ", and it is counted"),
            "trust the accept length only on your own prompts: eyas bench",
        )
    if any(d.is_targets_choice for d in losslessness.divergences):
        yield _finding(
            "expected-answers-of-another-target",
            "warning",
            "the served target itself would not give some expected answers",
            "--expect",
            "they come from another target, precision or chat form: the comparison says little",
            "make the rows with this very target",
        )
    if losslessness.is_broken:
        yield _finding(
            "answers-differ",
            "error",
            str(losslessness),
            "greedy answers",
            "speculation must not change an answer; numerics do not explain a gap this wide",
            "compare with speculation off; if it goes away, the engine's verify step is at fault: report it",
        )


def _acceptance_findings(pooled: Acceptance, context: VerdictContext) -> Iterator[Diagnostic]:
    says = f"the ledger says: {context.ledger}" if context.ledger else "the ledger is not known"
    length, first = pooled.accept_length, pooled.per_position[0] if pooled.accepted_at else 0.0
    where = f"{pooled.rounds} verify passes"
    if length <= NOTHING_ACCEPTED:
        yield _finding(
            "nothing-accepted",
            "fatal",
            f"accept length {length:.2f}: nothing is accepted",
            where,
            says,
            context.next_command,
        )
    elif first < BROKEN_FIRST_POSITION:
        yield _finding(
            "first-position-broken",
            "error",
            f"only {first:.0%} of first drafts are accepted",
            where,
            f"healthy drafts have 55-75 %; this is broken plumbing, not a weak draft; {says}",
            context.next_command,
        )
    elif len(pooled.accepted_at) > 1 and pooled.conditional[1] < _COLLAPSED * pooled.conditional[0]:
        yield _finding(
            "later-positions-collapse",
            "warning",
            f"first drafts {first:.0%}, second drafts after a good first only {pooled.conditional[1]:.0%}",
            where,
            f"a good first position, collapsed later ones: the draft's recurrent path (feedback state, mlp); {says}",
            context.next_command,
        )


def _replay_findings(replay: ParityFound | None, context: VerdictContext) -> Iterator[Diagnostic]:
    where = "the server's own answers, replayed"
    if replay is not None and replay.verdict == "different":
        says = f"the ledger says: {context.ledger}" if context.ledger else "the ledger is not known"
        why = f"its text was replayed with the draft as it was trained; {says}"
        yield _finding("served-unlike-trained", _weight(replay), replay.words, where, why, context.next_command)
    elif replay is not None and replay.verdict == "too-few-rounds":
        why = "whether the server runs the draft as it was trained is not known"
        yield _finding("replay-undecided", "warning", replay.words, where, why, "compare longer: eyas parity URL")


def _weight(replay: ParityFound) -> Severity:
    """What a difference costs: a small one may come from arithmetic that near-ties do not explain (fp8 caches)."""
    served, replayed = replay.served or 1.0, replay.replayed or 1.0
    return "error" if abs(served - replayed) > _UNLIKE * replayed else "warning"


def _not_speculating(speculates: bool | None, context: VerdictContext) -> Diagnostic:
    if speculates is False:
        why = "the server has no speculation counters: it decodes plainly"
    elif speculates:
        why = "the server says that it speculates, but its counters did not move"
    else:
        why = "neither the answers nor the counters say anything of speculation"
    return _finding("not-speculating", "fatal", "no verify pass was counted", "counters", why, context.next_command)


def _unanswered(result: RankResult) -> Diagnostic:
    assert result.error is not None
    name = "the server" if result.rank is None else f"data-parallel rank {result.rank}"
    return _finding(
        "canary-unanswered" if result.rank is None else "rank-stuck",
        "fatal",
        f"{name} did not answer a canary: {result.error.what}",
        result.error.where,
        "/health may well be green: it is answered without this rank or without generating",
        "see where it stands: eyas watch",
    )


def _finding(code: str, severity: Severity, what: str, where: str, why: str, do: str) -> Diagnostic:
    return Diagnostic(code=code, severity=severity, what=what, where=where, why=why, do=do)
