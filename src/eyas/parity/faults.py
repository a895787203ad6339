"""Which known faults would give the counts that a server gave, on the ids that it emitted."""

from collections.abc import Sequence
from dataclasses import dataclass

from eyas.decode.accept_length import Acceptance
from eyas.parity.signatures import Signature

_TOLERANCE = 0.02  # of a per-position share
_SIGMAS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A class of faults that fits what was served.

    Attributes:
        signature: the faults, and what they give on the server's own ids.
        distance: largest difference to a served per-position share.
    """

    signature: Signature
    distance: float


def suspects(served: Acceptance, known: Sequence[Signature]) -> list[Suspect]:
    """The classes whose counts fit the server's within noise, nearest first; [] when none of the known ones does."""
    fitting = [one for one in known if not one.is_harmless and _fits(served, one.acceptance)]
    found = [Suspect(signature=one, distance=_distance(served, one.acceptance)) for one in fitting]
    return sorted(found, key=lambda suspect: suspect.distance)


def _distance(served: Acceptance, other: Acceptance) -> float:
    return max(abs(a - b) for a, b in zip(served.per_position, other.per_position, strict=True))


def _fits(served: Acceptance, other: Acceptance) -> bool:
    for share, its in zip(served.per_position, other.per_position, strict=True):
        noise = _SIGMAS * (max(share * (1 - share), 0.25 / served.rounds) / served.rounds) ** 0.5
        if abs(share - its) > max(_TOLERANCE, noise):
            return False
    return True
