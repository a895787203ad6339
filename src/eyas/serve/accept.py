"""`eyas accept`: what a server accepts, from its log or its counters, in one definition, judged as `serve` judges."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from eyas.client import counters
from eyas.client.address import ServerAddress, open_http
from eyas.client.server_api import Counters
from eyas.contract.engines.registry import EngineName, server_api
from eyas.contract.engines.server_at import server_at
from eyas.decode.accept_length import DEFAULT_DRAFT_TOKENS, Acceptance
from eyas.errors import ExitCode, EyasError
from eyas.serve.facts.state import Proof
from eyas.serve.log.logged_acceptance import LoggedAcceptance
from eyas.serve.log.serving_log import read_serving_log
from eyas.serve.supervise.liveness import NOTHING_ACCEPTED, proof_of
from eyas.serve.verdict.canary import canary_prompts
from eyas.serve.verdict.canary_run import CanaryOptions, RankResult, run_canaries

if TYPE_CHECKING:
    import httpx

SCHEMA = "eyas.accept/1"
_STEP_S = 1.0
_ENOUGH_ROUNDS = 200


class AcceptanceNotTold(EyasError):
    """Neither the log nor the counters say what is accepted."""

    code = "acceptance-not-told"
    exit_code = ExitCode.FINDINGS


class AcceptConfigInvalid(EyasError):
    """Options of `eyas accept` that are out of range or contradict each other."""

    code = "accept-config-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptConfig:
    """Where to look, and for how long."""

    over: float | None = None
    """Only what was accepted within this many seconds: of a server, the next ones; of a log, its last ones. Default:
    since the server started."""

    ask: Annotated[bool, Parameter(negative="")] = False
    """Send short prompts to the server and count what it accepts on them, per position and rank (some seconds)."""

    num_draft_tokens: Annotated[int | None, Parameter(name=["--num-draft-tokens", "-k"])] = None
    """Drafts per verify pass (K, bonus excluded), where the server does not say it."""

    engine: EngineName | Literal["unknown"] = "unknown"
    """The engine that wrote the log; unknown: told from its lines."""

    version: str | None = None
    """The engine's version, which decides what its own words mean; default: as the log or the server says."""

    def __post_init__(self) -> None:
        k = self.num_draft_tokens
        wrong = [
            text
            for is_right, text in (
                (
                    self.over is None or 0 < self.over < inf,
                    f"--over is {self.over}, wanted a positive number of seconds",
                ),
                (k is None or 1 <= k <= 128, f"-k is {k}, wanted 1 - 128"),
                (not (self.ask and self.over is not None), "--ask counts its own prompts: not with --over"),
            )
            if not is_right
        ]
        if wrong:
            raise AcceptConfigInvalid("; ".join(wrong), "options", "outside the range", "see eyas accept --help")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAcceptance:
    """What one data-parallel rank (or all together) accepts.

    Attributes:
        rank: "" for all together.
        accept_length: bonus included.
        rounds: verify passes; None where the engine does not say.
        per_position: share of rounds that accept draft 1, 1 and 2, ...; () where it does not say.
    """

    rank: str
    accept_length: float
    rounds: int | None
    per_position: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What was found.

    Attributes:
        engine, version: "unknown", None where they are not told.
        source: where the figures come from, for a person.
        pooled: all ranks together.
        ranks: by rank; () where there is only one.
        num_draft_tokens: K; None where neither options nor the server say it.
        shown_rate: the engine's own accept rate, as its last line has it.
        proof: the verdict, by the thresholds of `serve`.
        words: what the engine's own figures mean. promql: of its accept length, "" if it has none.
    """

    engine: str
    version: str | None
    source: str
    pooled: RankAcceptance
    ranks: tuple[RankAcceptance, ...]
    num_draft_tokens: int | None
    shown_rate: float | None
    proof: Proof
    words: tuple[str, ...]
    promql: str
    notes: tuple[str, ...] = ()

    @property
    def accept_rate(self) -> float | None:
        """Accepted drafts / proposed drafts of a chain; None without K."""
        k = self.num_draft_tokens
        return (self.pooled.accept_length - 1) / k if k else None

    def as_document(self) -> dict[str, Any]:
        """The object of schema eyas.accept/1."""
        whole = {name: value for name, value in asdict(self.pooled).items() if name != "rank"}
        return {
            "schema": SCHEMA,
            "ok": self.proof.ok,
            "verdict": self.proof.text,
            **whole,
            "accept_rate": self.accept_rate,
            **{name: getattr(self, name) for name in ("engine", "version", "source", "num_draft_tokens", "shown_rate")},
            "ranks": [asdict(rank) for rank in self.ranks],
            "words": list(self.words),
            "promql": self.promql,
            "notes": list(self.notes),
        }


def accepted_of_log(path: Path, config: AcceptConfig) -> Accepted:
    """What the engine's own lines in a log say.

    Raises:
        LogUnreadable: it cannot be read. AcceptanceNotTold: no line states an accept length.
    """
    log = read_serving_log(path, engine=config.engine, version=config.version)
    lines = log.lines
    if config.over is not None and lines:
        lines = tuple(line for line in lines if line.at > lines[-1].at - config.over)
    if not lines:
        raise _not_told(str(path), "no line of it states an accept length", log.notes)
    by_rank: dict[str, list[LoggedAcceptance]] = {}
    for line in lines:
        by_rank.setdefault(line.label, []).append(line)
    ranks = tuple(_of_lines(label, of_rank) for label, of_rank in sorted(by_rank.items()))
    source = f"{len(lines)} lines of its log" + (f", the last {config.over:g} s" if config.over is not None else "")
    k = config.num_draft_tokens or log.num_draft_tokens or len(lines[-1].per_position) or None
    version = config.version or log.facts.get("version")
    notes = (*log.notes, *([] if log.topk == 1 else [f"top-k {log.topk}: of a tree, K is its depth"]))
    return _concluded(log.engine, version, source, ranks, k, lines[-1], notes)


def accepted_of_server(
    url: str, config: AcceptConfig, api_key: str | None, *, interrupted: Callable[[], bool] = lambda: False
) -> Accepted:
    """What a server's counters say, or what it accepts on prompts of ours.

    Args:
        interrupted: ends the waiting of `over` early; what was counted until then is told.

    Raises:
        ServerUnreachable, ServerRefused: it does not answer.
        AcceptanceNotTold: its counters say nothing of acceptance, or nothing was accepted meanwhile.
    """
    address = server_at(url, api_key)
    if config.version is not None:
        address = replace(address, version=config.version)
    with open_http(address, timeout_s=60.0) as http:
        if config.ask:
            results = _asked(http, address, config)
            ranks = tuple(_of_counts("" if r.rank is None else str(r.rank), r.acceptance) for r in results)
            source, notes = "its answers to prompts of eyas", tuple(note for r in results for note in r.notes)
        elif config.over is None:
            reading = counters.read(address, http=http)
            ranks, source, notes = _since_start(reading), "its counters since it started", reading.notes
        else:
            ranks, notes = _meanwhile(http, address, config.over, interrupted)
            source = f"its counters over {config.over:g} s"
    ranks = tuple(rank for rank in ranks if rank.rounds != 0)
    if not ranks:
        raise _not_told(url, "its counters say nothing of acceptance, or nothing was decoded meanwhile", notes)
    k = config.num_draft_tokens or max(len(rank.per_position) for rank in ranks) or None
    return _concluded(address.api.name, address.version, source, ranks, k, None, notes)


def _of_lines(label: str, lines: Sequence[LoggedAcceptance]) -> RankAcceptance:
    """Lines of one process, weighted by their rounds; by their number where they do not say."""
    rounds = sum(line.rounds for line in lines)
    weights = [line.rounds if rounds else 1 for line in lines]
    depth = max(len(line.per_position) for line in lines)
    told = [(weight, line.per_position) for weight, line in zip(weights, lines, strict=True) if line.per_position]
    whole = sum(weight for weight, _ in told)
    shares = tuple(
        sum(weight * (shares[k] if k < len(shares) else 0.0) for weight, shares in told) / whole
        for k in range(depth if whole else 0)
    )
    length = sum(weight * line.length for weight, line in zip(weights, lines, strict=True)) / sum(weights)
    return RankAcceptance(rank=label, accept_length=length, rounds=rounds or None, per_position=shares)


def _of_counts(rank: str, counts: Acceptance) -> RankAcceptance:
    shares = counts.per_position if counts.rounds else ()
    return RankAcceptance(rank=rank, accept_length=counts.accept_length, rounds=counts.rounds, per_position=shares)


def _since_start(reading: Counters) -> tuple[RankAcceptance, ...]:
    if reading.acceptance:
        return tuple(_of_counts(rank, counts) for rank, counts in reading.acceptance.items())
    return _of_lengths(reading.accept_lengths or reading.recent_lengths)


def _of_lengths(lengths: Mapping[str, float]) -> tuple[RankAcceptance, ...]:
    return tuple(RankAcceptance(rank=rank, accept_length=length, rounds=None) for rank, length in lengths.items())


def _meanwhile(
    http: "httpx.Client", address: ServerAddress, seconds: float, interrupted: Callable[[], bool]
) -> tuple[tuple[RankAcceptance, ...], tuple[str, ...]]:
    """Two readings of lifetime counts; where there are none, the mean of the intervals that the engine reports."""
    before = counters.read(address, http=http)
    seen: dict[str, list[float]] = {}
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not interrupted():
        time.sleep(min(left, _STEP_S))
        if not address.api.has_lifetime_counts:
            for rank, length in counters.read(address, http=http, with_server_info=False).recent_lengths.items():
                seen.setdefault(rank, []).append(length)
    if address.api.has_lifetime_counts:
        after = counters.read(address, http=http)
        steps = {
            rank: counters.difference(counts, before.acceptance.get(rank, Acceptance.none(len(counts.accepted_at))))
            for rank, counts in after.acceptance.items()
        }
        return tuple(_of_counts(rank, counts) for rank, counts in steps.items()), after.notes
    means = {rank: sum(lengths) / len(lengths) for rank, lengths in seen.items()}
    note = "the mean of what it reported each second: it does not count rounds"
    return _of_lengths(means), (*before.notes, note)


def _asked(http: "httpx.Client", address: ServerAddress, config: AcceptConfig) -> list[RankResult]:
    options = CanaryOptions(num_draft_tokens=config.num_draft_tokens or DEFAULT_DRAFT_TOKENS)
    prompts = canary_prompts(None).prompts
    num_ranks = counters.read(address, http=http).num_ranks or 1
    ranks: Sequence[int | None] = range(num_ranks) if num_ranks > 1 else (None,)
    results = [run_canaries(http, address, prompts, options, rank=rank) for rank in ranks]
    if failed := next((result.error for result in results if result.error is not None), None):
        raise failed
    return results


def _concluded(
    engine: str,
    version: str | None,
    source: str,
    ranks: tuple[RankAcceptance, ...],
    k: int | None,
    last: LoggedAcceptance | None,
    notes: Sequence[str],
) -> Accepted:
    pooled = _pooled(ranks)
    first = pooled.per_position[0] if pooled.per_position else None
    proof = proof_of(pooled.accept_length, pooled.rounds or 0, first, source)
    dead = [
        rank
        for rank in ranks
        if rank.accept_length <= NOTHING_ACCEPTED and (rank.rounds is None or rank.rounds >= _ENOUGH_ROUNDS)
    ]
    if proof.ok and dead:
        names = ", ".join(rank.rank for rank in dead)
        proof = replace(proof, ok=False, text=f"{proof.text}; but rank {names} accepts nothing")
    if pooled.rounds is not None and pooled.rounds < _ENOUGH_ROUNDS:
        notes = (*notes, f"{pooled.rounds} verify passes are few: the figure is rough")
    api = server_api(engine)
    return Accepted(
        engine=engine,
        version=version,
        source=source,
        pooled=pooled,
        ranks=ranks if len(ranks) > 1 else (),
        num_draft_tokens=k,
        shown_rate=last.rate if last else None,
        proof=proof,
        words=api.words(version, k, last.length if last else None, last.rate if last else None),
        promql=api.promql,
        notes=tuple(dict.fromkeys(notes)),
    )


def _pooled(ranks: Sequence[RankAcceptance]) -> RankAcceptance:
    """All ranks, weighted by rounds where all of them are told."""
    known = all(rank.rounds for rank in ranks)
    weights = [rank.rounds if known and rank.rounds else 1 for rank in ranks]
    depth = min(len(rank.per_position) for rank in ranks)
    whole = sum(weights)
    pairs = list(zip(weights, ranks, strict=True))
    return RankAcceptance(
        rank="",
        accept_length=sum(weight * rank.accept_length for weight, rank in pairs) / whole,
        rounds=whole if known else None,
        per_position=tuple(sum(weight * rank.per_position[k] for weight, rank in pairs) / whole for k in range(depth)),
    )


def _not_told(where: str, why: str, notes: Sequence[str]) -> AcceptanceNotTold:
    return AcceptanceNotTold(
        "nothing is said of acceptance",
        where,
        "; ".join([why, *notes]),
        (
            "start the server with speculation and its metrics on (`eyas serve` does)",
            "count on prompts of eyas: eyas accept URL --ask",
        ),
    )
