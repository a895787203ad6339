"""What one answered request says of speculation, whichever engine answered."""

from dataclasses import dataclass

from eyas.decode.accept_length import Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """What one answered request says of speculation.

    Attributes:
        acceptance: the counts; None when the server does not speculate (or the answer needed no verify pass).
        notes: what did not add up, or what was guessed; empty when all agreed.
        dp_rank: which data-parallel rank answered; None if it does not say.
    """

    acceptance: Acceptance | None
    notes: tuple[str, ...] = ()
    dp_rank: int | None = None
