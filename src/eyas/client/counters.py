"""A running server's own counters, read over HTTP: tokens made, requests, acceptance. Which names: its `ServerApi`."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from eyas.client.address import ServerAddress, open_http
from eyas.client.prometheus import Sample, total
from eyas.client.server_api import Counters
from eyas.decode.accept_length import Acceptance

if TYPE_CHECKING:
    import httpx


def read(
    address: ServerAddress,
    *,
    http: "httpx.Client | None" = None,
    timeout_s: float = 5.0,
    with_server_info: bool = True,
) -> Counters:
    """Read the counters once.

    Args:
        http: a client to reuse; otherwise one is made and closed.
        with_server_info: ask the scheduler too, where counters come from it (it answers at batch boundaries; off for a
            quick look).

    Raises:
        ServerUnreachable: refused, or no answer within `timeout_s` (a stuck engine may still answer /metrics).
        ServerRefused: an HTTP error other than "no such route".
    """
    reader = address.api.read_counters
    if reader is None:
        return Counters(notes=(f"{address.api.name} servers have no counters that eyas knows",))
    if http is not None:
        return reader(http, address, with_server_info)
    with open_http(address, timeout_s=timeout_s) as own:
        return reader(own, address, with_server_info)


def difference(after: Acceptance, before: Acceptance) -> Acceptance:
    """What was counted between two readings of lifetime counters; a restart in between counts from zero.

    The two readings are not one atomic moment of the engine, so a count can lead another by a pass: each is cut to what
    an `Acceptance` allows.
    """
    if after.rounds < before.rounds:
        before = Acceptance.none(len(before.accepted_at))
    pad = (0,) * (len(after.accepted_at) - len(before.accepted_at))
    accepted = [a - b for a, b in zip(after.accepted_at, before.accepted_at + pad, strict=False)]
    proposed = [a - b for a, b in zip(after.proposed_at, before.proposed_at + pad, strict=False)]
    return consistent(after.rounds - before.rounds, accepted, proposed)


def consistent(rounds: int, accepted: Sequence[int], proposed: Sequence[int]) -> Acceptance:
    """Counts cut to what an `Acceptance` allows: a later position is never accepted more often than an earlier one."""
    rounds = max(rounds, 0)
    at: list[int] = []
    for count in accepted:
        at.append(max(0, min(count, rounds, at[-1] if at else rounds)))
    return Acceptance(rounds, tuple(at), tuple(max(a, min(p, rounds)) for a, p in zip(at, proposed, strict=True)))


def whole_total(samples: Iterable[Sample], name: str) -> int | None:
    """Sum of a metric as a whole number; None if it is absent."""
    value = total(samples, name)
    return None if value is None else int(value)


def progress_mark(samples: Sequence[Sample], names: Iterable[str]) -> tuple[float, ...]:
    """The sums of those metrics that are there."""
    return tuple(v for name in names if (v := total(samples, name)) is not None)
