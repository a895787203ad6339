"""A speculating server beside its baseline: speedup, texts compared, and what would make the comparison worthless."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from eyas.bench.compare import BaselineHandicapped, ratio_interval
from eyas.bench.measure import first_difference
from eyas.bench.served.figures import Accepted
from eyas.bench.served.load import Asked, ServedTurn
from eyas.decode.accept_length import Acceptance
from eyas.errors import ExitCode, EyasError
from eyas.records.bench_record import MAX_SPEEDUP_PER_ACCEPT_LENGTH

_LEAST_ROUNDS = 200  # before the form of a histogram says anything
_EARLY = 8  # tokens: near-ties part texts later


class AcceptanceSimulated(EyasError):
    """The server pretends to accept drafts: its speed is not that of a draft."""

    code = "acceptance-simulated"
    exit_code = ExitCode.FINDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedComparison:
    """One point of the sweep.

    Attributes:
        speedup, speedup_low, speedup_high: tokens/s in total over the baseline's: median and extremes over repeats.
        per_user, per_user_low, per_user_high: the baseline's seconds per token over the server's, answer by answer,
            with its 95 % bootstrap interval over prompts.
        num_equal, num_compared: answers that are the baseline's first ones, of those that can be compared; 0 of 0 where
            texts are sampled.
        num_equal_baseline, num_compared_baseline: the same for the baseline's own later repeats.
        first_difference: median place (tokens, or words of text) at which the others part; None if all are equal.
        verdict: in words.
    """

    speedup: float
    speedup_low: float
    speedup_high: float
    per_user: float
    per_user_low: float
    per_user_high: float
    num_equal: int
    num_compared: int
    num_equal_baseline: int
    num_compared_baseline: int
    first_difference: float | None
    verdict: str

    @property
    def parts_early(self) -> bool:
        """Whether most texts part within the first tokens, which near-ties do not explain."""
        few = self.num_equal * 2 < self.num_compared
        return few and self.first_difference is not None and self.first_difference < _EARLY


def compare_served(
    plain: Sequence[ServedTurn], own: Sequence[ServedTurn], accepted: Accepted | None, *, is_greedy: bool, seed: int
) -> ServedComparison:
    """Compare the turns of two servers that answered the same questions.

    Args:
        plain, own: by repeat, in the order in which they took turns.
        accepted: of the server.
        is_greedy: whether texts can be compared.
        seed: of the bootstrap.
    """
    ratios = sorted(_speed(mine) / _speed(other) for mine, other in zip(own, plain, strict=True))
    per_user, low, high = ratio_interval(_per_token(plain), _per_token(own), seed=seed)
    places = _differences(plain[0], own) if is_greedy else []
    again = _differences(plain[0], plain[1:]) if is_greedy else []
    parted = [place for place in places if place is not None]
    return ServedComparison(
        speedup=median(ratios),
        speedup_low=ratios[0],
        speedup_high=ratios[-1],
        per_user=per_user,
        per_user_low=low,
        per_user_high=high,
        num_equal=len(places) - len(parted),
        num_compared=len(places),
        num_equal_baseline=sum(place is None for place in again),
        num_compared_baseline=len(again),
        first_difference=median(parted) if parted else None,
        verdict=_verdict(per_user, low, high, accepted),
    )


def handicapped(comparison: ServedComparison, accepted: Accepted | None, where: str) -> BaselineHandicapped | None:
    """An error for a speedup that speculation cannot give; None without one."""
    if accepted is None or comparison.per_user_low <= MAX_SPEEDUP_PER_ACCEPT_LENGTH * accepted.high:
        return None
    return BaselineHandicapped(
        f"a speedup of at least {comparison.per_user_low:.2f} at an accept length of {accepted.accept_length:.2f} is"
        " impossible",
        where,
        "a verify pass costs at least as much as a plain step, so a speedup cannot exceed the accept length: the"
        " baseline was slowed down (other flags, CUDA graphs off, other traffic), or it serves another target",
        "start the baseline with the flags of the server, without those of speculation, and measure again",
    )


def looks_simulated(accepted: Accepted | None) -> bool:
    """Whether every round accepted the same number of drafts, neither none nor all: no draft does that."""
    if accepted is None or accepted.rounds < _LEAST_ROUNDS:
        return False
    shares = accepted.per_position
    sudden = any(a == 1 and b == 0 for a, b in pairwise(shares))
    return sudden and all(share in (0, 1) for share in shares)


def require_real(url: str, why: str) -> None:
    """Raise `AcceptanceSimulated` if there is a reason to."""
    if why:
        raise AcceptanceSimulated(
            "the server only simulates acceptance",
            url,
            f"{why}: its texts are not the target's, and its speed is not that of the draft",
            "start it without simulated acceptance",
        )


def pooled_of(counts: Sequence[Acceptance | None]) -> Acceptance | None:
    """The sum of what counters told of each turn; None if one turn was not told of."""
    known = [one for one in counts if one is not None]
    if not known or len(known) < len(counts):
        return None
    return sum(known[1:], known[0])


def _speed(turn: ServedTurn) -> float:
    return sum(one.num_tokens for one in turn.asked) / turn.seconds


def _per_token(turns: Sequence[ServedTurn]) -> list[list[float]]:
    """[answer][repeat] seconds per new token."""
    return [
        [one.answer.total_s / max(one.num_tokens, 1) for one in repeats]
        for repeats in zip(*(turn.asked for turn in turns), strict=True)
    ]


def _differences(first: ServedTurn, others: Sequence[ServedTurn]) -> list[int | None]:
    """Where each comparable answer parts from the first turn's; None = nowhere. After a difference the later turns of a
    conversation were asked something else."""
    found: list[int | None] = []
    for turn in others:
        parted: set[str] = set()
        for plain, other in zip(first.asked, turn.asked, strict=True):
            if plain.id in parted:
                continue
            place = _difference(plain, other)
            found.append(place)
            if place is not None:
                parted.add(plain.id)
    return found


def _difference(plain: Asked, other: Asked) -> int | None:
    a, b = plain.answer, other.answer
    if a.output_ids is not None and b.output_ids is not None:
        return first_difference(a.output_ids, b.output_ids)
    words, others = a.text.split(" "), b.text.split(" ")
    same = (i for i, (x, y) in enumerate(zip(words, others, strict=False)) if x != y)
    return next(same, None if len(words) == len(others) else min(len(words), len(others)))


def _verdict(speedup: float, low: float, high: float, accepted: Accepted | None) -> str:
    interval = f"{speedup:.2f} times the baseline (95 % interval {low:.2f} to {high:.2f})"
    outcome = (
        "faster" if low > 1 else "slower; leave speculation off here" if high < 1 else "no difference can be shown"
    )
    length = "" if accepted is None else f"; accept length {accepted.accept_length:.2f}"
    return f"{outcome}: {interval}{length}"
