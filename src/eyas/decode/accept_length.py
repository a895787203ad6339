"""The one definition of accept length, per-position acceptance and accept rate.

`accept_length` = tokens gained per verify pass, bonus token included: 1.00 means that nothing was accepted. The token
that prefill yields belongs to no round. Pooled = over all rounds of all requests; the unweighted mean over requests is
another number with another name (they can differ in sign of a comparison: vllm#42508).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

# K where a command is not given one: the same everywhere, so that figures of one draft can be compared.
DEFAULT_DRAFT_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts of one or more requests; adding two of them pools their rounds.

    Attributes:
        rounds: verify passes, each of which yields its accepted drafts plus one bonus token.
        accepted_at: K counts; entry k = rounds in which drafts 1 … k+1 were all accepted.
        proposed_at: K counts; entry k = rounds in which a draft k+1 was proposed (equal to rounds with a fixed depth).
    """

    rounds: int
    accepted_at: tuple[int, ...]
    proposed_at: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.accepted_at) == len(self.proposed_at), "one count per draft position"
        assert all(a <= p <= self.rounds for a, p in zip(self.accepted_at, self.proposed_at, strict=True)), self
        assert list(self.accepted_at) == sorted(self.accepted_at, reverse=True), "accepted is joint: it cannot grow"

    @classmethod
    def of_rounds(
        cls, num_accepted_drafts: Iterable[int], num_draft_tokens: int, drafted: Iterable[int] | None = None
    ) -> "Acceptance":
        """Count rounds, given how many drafts each accepted.

        Args:
            num_accepted_drafts: per round.
            num_draft_tokens: K, the most that a round drafted.
            drafted: per round, how many drafts were proposed; None: always K. An undrafted round is a round.
        """
        accepted = list(num_accepted_drafts)
        proposed = [num_draft_tokens] * len(accepted) if drafted is None else list(drafted)
        assert all(0 <= a <= p <= num_draft_tokens for a, p in zip(accepted, proposed, strict=True)), (
            "a round accepts 0 … of the drafts that it proposed"
        )
        at = tuple(sum(n > k for n in accepted) for k in range(num_draft_tokens))
        return cls(len(accepted), at, tuple(sum(n > k for n in proposed) for k in range(num_draft_tokens)))

    @classmethod
    def none(cls, num_draft_tokens: int) -> "Acceptance":
        """No rounds yet."""
        return cls(0, (0,) * num_draft_tokens, (0,) * num_draft_tokens)

    def __add__(self, other: "Acceptance") -> "Acceptance":
        width = max(len(self.accepted_at), len(other.accepted_at))

        def summed(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
            pad_a, pad_b = a + (0,) * (width - len(a)), b + (0,) * (width - len(b))
            return tuple(x + y for x, y in zip(pad_a, pad_b, strict=True))

        return Acceptance(
            self.rounds + other.rounds,
            summed(self.accepted_at, other.accepted_at),
            summed(self.proposed_at, other.proposed_at),
        )

    @property
    def num_tokens(self) -> int:
        """Tokens gained: accepted drafts plus one bonus per round."""
        return self.rounds + sum(self.accepted_at)

    @property
    def accept_length(self) -> float:
        """Tokens per verify pass, bonus included; nan without rounds."""
        return self.num_tokens / self.rounds if self.rounds else float("nan")

    @property
    def per_position(self) -> tuple[float, ...]:
        """Joint acceptance: entry k = share of all rounds in which drafts 1 … k+1 were all accepted."""
        return tuple(a / self.rounds if self.rounds else float("nan") for a in self.accepted_at)

    @property
    def conditional(self) -> tuple[float, ...]:
        """Entry k = acceptance of draft k+1 given that all drafts before it were accepted; nan where none was."""
        before = (self.rounds, *self.accepted_at[:-1]) if self.accepted_at else ()
        return tuple(a / b if b else float("nan") for a, b in zip(self.accepted_at, before, strict=True))

    @property
    def accept_rate(self) -> float:
        """Accepted drafts / proposed drafts; nan if none was proposed."""
        proposed = sum(self.proposed_at)
        return sum(self.accepted_at) / proposed if proposed else float("nan")


def pooled(requests: Iterable[Acceptance], num_draft_tokens: int) -> Acceptance:
    """All rounds of all requests together."""
    return reduce(lambda a, b: a + b, requests, Acceptance.none(num_draft_tokens))


def request_mean(requests: Sequence[Acceptance]) -> float:
    """Unweighted mean of the requests' accept lengths (requests without rounds left out); nan without any."""
    lengths = [r.accept_length for r in requests if r.rounds]
    return sum(lengths) / len(lengths) if lengths else float("nan")
