"""What an engine's own lines about decoding say: acceptance of how many rounds, requests, throughput, graphs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from eyas.serve.log.tables import Marker

VALUES_CHARACTERS = 2000
_LARGEST = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAcceptance:
    """What one line says.

    Attributes:
        length: accept length, bonus included.
        rounds: verify passes, 0 = not told.
        per_position: share of rounds that accept draft 1, 1 and 2, ...; () = not told.
        rate: the engine's own accept rate, by whatever it means in that version.
        at: unix time. label: of the process that printed it.
        running: requests in the batch. throughput: tokens/s. graphs: whether the pass was a CUDA graph.
    """

    length: float
    rounds: int
    per_position: tuple[float, ...] = ()
    rate: float | None = None
    at: float = 0.0
    label: str = ""
    running: int | None = None
    throughput: float | None = None
    graphs: bool | None = None

    @property
    def first(self) -> float | None:
        """Share of first drafts that are accepted."""
        return self.per_position[0] if self.per_position else None


def values_of(marker: Marker, message: str) -> dict[str, str]:
    """The values that a line of this marker states, by name, as they stand there."""
    found = {name: re.search(pattern, message[:VALUES_CHARACTERS]) for name, pattern in marker.values.items()}
    return {name: match[1] for name, match in found.items() if match}


def acceptance_of(
    said: Mapping[str, str], log_rounds: int, *, at: float = 0.0, label: str = ""
) -> LoggedAcceptance | None:
    """The acceptance among a line's values; None where it states none.

    Args:
        log_rounds: verify passes of one request between two lines, for an engine that does not say how many it drafted.
    """
    length = number(said.get("accept_length", ""))
    if length is None:
        return None
    shares = tuple(share for part in said.get("per_position", "").split(",") if (share := number(part)) is not None)
    running, drafted = number(said.get("running", "")), number(said.get("drafted", ""))
    rounds = drafted / len(shares) if shares and drafted is not None else (running or 0) * log_rounds
    return LoggedAcceptance(
        length=length,
        rounds=int(rounds),
        per_position=shares,
        rate=number(said.get("accept_rate", "")),
        at=at,
        label=label,
        running=None if running is None else int(running),
        throughput=number(said.get("throughput", "")),
        graphs=None if "graphs" not in said else said["graphs"] == "True",
    )


def number(text: str) -> float | None:
    """What a log line says as a number; None for "nan" and for what is not a number or is too large to be true."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < _LARGEST else None
