"""Whether a server that calls itself healthy makes progress: tokens and acceptance by its counters, over time.

`/health` is not enough: a vLLM whose core is frozen answers 200, an SGLang with data parallelism stays green while one
rank is stuck (sglang#29144).
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eyas.serve.facts.evidence import CounterFacts
from eyas.serve.facts.state import Proof
from eyas.serve.log.logged_acceptance import LoggedAcceptance

_MIN_ROUNDS = 200
_MIN_LINES = 3
NOTHING_ACCEPTED = 1.05  # accept length at or below which nothing is accepted
BROKEN_FIRST_POSITION = 0.15  # below: broken plumbing, not a weak draft (healthy drafts: 0.55-0.75)
_CHECK = "`eyas check DRAFT --target TARGET --for ENGINE==VERSION` says what the engine does with it"
_BASELINE_ROUNDS = 1000
_ALARM_SIGMAS = 4.0
_ALARM_SHARE = 0.10  # of the accepted drafts: smaller drifts are what texts do


@dataclass(frozen=True, slots=True)
class _Window:
    rounds: float
    accepted: float
    squares: float

    @property
    def mean(self) -> float:
        return self.accepted / self.rounds

    @property
    def error(self) -> float:
        """Standard error of the mean number of accepted drafts per round."""
        variance = max(self.squares / self.rounds - self.mean**2, 1e-6)
        return math.sqrt(variance / self.rounds)


class TokenProgress:
    """Requests are running and no token comes: since when."""

    def __init__(self) -> None:
        self._mark: tuple[float, ...] | None = None
        self._tokens: float | None = None
        self._since: float | None = None

    def feed(self, counters: CounterFacts | None, at: float) -> float:
        """Seconds for which requests have been running without a single token; 0 when idle or not known."""
        if counters is None or counters.running is None or (counters.generation_tokens is None and not counters.mark):
            return 0.0
        moved = self._mark != counters.mark or self._tokens != counters.generation_tokens
        self._mark, self._tokens = counters.mark, counters.generation_tokens
        if moved or counters.running <= 0 or self._since is None:
            self._since = at
        return at - self._since


class AcceptanceWatch:
    """Acceptance since eyas began to watch: a proof, an alarm when nothing is accepted or when it falls."""

    def __init__(self) -> None:
        self._first: CounterFacts | None = None
        self._last: CounterFacts | None = None
        self._baseline: _Window | None = None
        self._recent: deque[CounterFacts] = deque(maxlen=2000)
        self.warnings: list[str] = []

    def feed(self, counters: CounterFacts | None) -> None:
        """Take a reading in. After a restart (counters fell) it begins again."""
        if counters is None or counters.rounds is None or not counters.accepted_at:
            return
        if self._last is not None and counters.rounds < (self._last.rounds or 0):
            self._first = self._last = self._baseline = None
            self._recent.clear()
        if self._first is None:
            self._first = counters
        self._last = counters
        if not self._recent or self._recent[-1].rounds != counters.rounds:
            self._recent.append(counters)
        self._judge()

    @property
    def rounds(self) -> int:
        """Verify passes since we began to look."""
        window = _between(self._first, self._last)
        return int(window.rounds) if window else 0

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify pass since eyas began to watch, bonus included; None without rounds."""
        window = _between(self._first, self._last)
        return 1 + window.mean if window else None

    def proof(self) -> Proof | None:
        """Enough rounds to say whether it speculates; None before that."""
        window = _between(self._first, self._last)
        if window is None or self._first is None or self._last is None or self.rounds < _MIN_ROUNDS:
            return None
        first = (self._last.accepted_at[0] - self._first.accepted_at[0]) / window.rounds
        return proof_of(1 + window.mean, self.rounds, first)

    def _judge(self) -> None:
        if self._baseline is None:
            window = _between(self._first, self._last)
            if window is not None and window.rounds >= _BASELINE_ROUNDS:
                self._baseline = window
                self._recent.clear()
                self._recent.append(self._last)  # type: ignore[arg-type]
            return
        start = next((c for c in reversed(self._recent) if _rounds(c, self._last) >= _MIN_ROUNDS), None)
        recent = _between(start, self._last)
        self.warnings = []
        if recent is None:
            return
        fall = self._baseline.mean - recent.mean
        error = math.hypot(self._baseline.error, recent.error)
        if fall > _ALARM_SIGMAS * error and fall > _ALARM_SHARE * self._baseline.mean:
            self.warnings = [
                f"acceptance is falling: accept length {1 + recent.mean:.2f} over the last {recent.rounds:.0f} rounds, "
                f"{1 + self._baseline.mean:.2f} before ({fall / error:.0f} standard errors); other texts, or a cache "
                "fault (vllm#41838)"
            ]


def proof_of(length: float, rounds: int, first: float | None, source: str = "") -> Proof:
    """What an accept length over n rounds says.

    Args:
        first: share of first drafts that are accepted, if known.
        source: where the figure comes from, for a person; "" = the server's counters.
    """
    text = f"accept length {length:.2f} over {rounds or 'an unknown number of'} rounds{source and f' ({source})'}"
    few, share = ("at most", length - 1) if first is None else ("only", first)  # the rest of a pass is drafts
    ok = length > NOTHING_ACCEPTED and share >= BROKEN_FIRST_POSITION
    if length <= NOTHING_ACCEPTED:
        text += f": nothing is accepted; {_CHECK}"
    elif not ok:
        text += (
            f": {few} {share:.0%} of first drafts are accepted, which is broken plumbing, not a weak draft; {_CHECK}"
        )
    return Proof(ok=ok, text=text, rounds=rounds, accept_length=length)


def logged_proof(lines: Sequence[LoggedAcceptance]) -> Proof | None:
    """What the engine's own lines say of acceptance; None where they say nothing."""
    if not lines:
        return None
    rounds = sum(line.rounds for line in lines)
    weights = [line.rounds if rounds else 1 for line in lines]
    length = sum(w * line.length for w, line in zip(weights, lines, strict=True)) / sum(weights)
    told = [(w, line.first) for w, line in zip(weights, lines, strict=True) if line.first is not None and w]
    first = sum(w * share for w, share in told) / sum(w for w, _ in told) if told else None
    proof = proof_of(length, rounds, first, "its log")
    if proof.ok or rounds >= _MIN_ROUNDS or len(lines) >= _MIN_LINES:
        return proof
    return replace(proof, ok=True, text=f"accept length {length:.2f} (its log): too few rounds to judge")


def _rounds(a: CounterFacts, b: CounterFacts | None) -> float:
    return ((b.rounds if b else 0) or 0) - (a.rounds or 0)


def _between(a: CounterFacts | None, b: CounterFacts | None) -> _Window | None:
    if a is None or b is None or _rounds(a, b) <= 0:
        return None
    at = [y - x for x, y in zip(a.accepted_at, b.accepted_at, strict=False)]
    # accepted_at[k] counts rounds with at least k+1 accepted, so sum of n² = sum of (2k+1) · accepted_at[k].
    return _Window(
        rounds=_rounds(a, b), accepted=sum(at), squares=sum((2 * k + 1) * count for k, count in enumerate(at))
    )
