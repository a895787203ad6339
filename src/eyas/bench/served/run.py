"""`eyas bench URL`: servers, questions and a sweep to one record."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas import __version__
from eyas.bench.compare import BaselineHandicapped
from eyas.bench.served.comparison import (
    ServedComparison,
    compare_served,
    handicapped,
    looks_simulated,
    pooled_of,
    require_real,
)
from eyas.bench.served.config import Point, ServedBenchConfig
from eyas.bench.served.figures import ServedFigures, figures_of
from eyas.bench.served.journal import Journal
from eyas.bench.served.load import MOST_BUSY, Arm, ServedTurn, hold
from eyas.bench.served.questions import Question
from eyas.client import counters
from eyas.client.address import ServerAddress, open_http
from eyas.client.counters import difference
from eyas.client.server_api import Counters, GenerationOptions, ServerLimits
from eyas.decode.accept_length import Acceptance, pooled
from eyas.errors import ExitCode, EyasError
from eyas.records import fingerprint
from eyas.talk import Talk, counted

if TYPE_CHECKING:
    import httpx

SCHEMA = "eyas.bench-served/1"
SERVER, BASELINE = "server", "baseline"
_SILENCE_S = 60.0
_WARM_UP_TOKENS = 32
_SETTLE_S, _SETTLE_STEP_S = 2.0, 0.1  # counters may come later than the last answer


class OtherTraffic(EyasError):
    """The server answered others while it was measured."""

    code = "other-traffic"
    exit_code = ExitCode.FINDINGS


class PromptsDiffer(EyasError):
    """The two servers make other token ids of the same messages."""

    code = "prompts-differ"
    exit_code = ExitCode.FINDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked, and how often.

    Attributes:
        questions: at least one.
        repeats: how often each server answers all of them.
        max_new_tokens: where the sweep names no lengths.
        depth: K, for servers that do not say it.
        seed: of sampling and bootstrap.
        is_meaningless: prompts are random ids: answers go to full length, and acceptance means nothing.
        about: of the data, for the record.
    """

    questions: Sequence[Question]
    repeats: int
    max_new_tokens: int
    depth: int
    seed: int
    is_meaningless: bool
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One point of the sweep.

    Attributes:
        point: as measured: `concurrency` after both servers were given the same limit.
        figures: server's name -> figures. comparison: None without a baseline.
        client_busy, client_late_s: the most over all turns. is_client_bound: the client could not keep up.
    """

    point: Point
    figures: Mapping[str, ServedFigures]
    comparison: ServedComparison | None
    client_busy: float
    client_late_s: float
    is_client_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBenchRecord:
    """A measured server (`eyas.bench-served/1`).

    Attributes:
        servers: name -> url, engine, version, model, most_requests.
        points: the sweep. settings, data: how and what was asked.
        notes: what was equalised, defaulted or is unusual. verdict: in words.
        problem: what makes the figures worthless; None if nothing does.
    """

    servers: Mapping[str, Mapping[str, Any]]
    points: Sequence[MeasuredPoint]
    settings: Mapping[str, Any]
    data: Mapping[str, Any]
    notes: Sequence[str]
    verdict: str
    problem: EyasError | None

    def as_document(self) -> dict[str, Any]:
        """The record as a JSON object."""
        fields = {name: getattr(self, name) for name in ("servers", "settings", "data", "notes", "verdict")}
        problem = None if self.problem is None else self.problem.as_document()
        return {"schema": SCHEMA, **fields, "points": [asdict(point) for point in self.points], "problem": problem}


def bench_served(
    groups: Iterable[AbstractContextManager[Sequence[Arm]]],
    work: Workload,
    config: ServedBenchConfig,
    *,
    subject: Mapping[str, Any],
    journal_path: Path | None,
    talk: Talk,
) -> tuple[ServedBenchRecord, Journal]:
    """Measure servers on the same prompts and limits.

    Args:
        groups: servers that live at the same time, and take turns; one group after another. Over all groups there is a
            "server" and perhaps a "baseline".
        work: what is asked.
        config: the sweep.
        subject: what the servers are, before they live: turns of another subject are not resumed.
        journal_path: where turns are kept until the record is written; None = nowhere.
        talk: progress and notes.

    Returns:
        the record, and the journal of its turns, to be removed once the record is written.

    Raises:
        AcceptanceSimulated: a server says, or its counts show, that it only simulates acceptance.
        PromptsDiffer: the servers read other ids.
        ServerUnreachable, ServerRefused: a request failed; the turns before it are kept in the journal.
        What the groups raise.
    """
    settings = _settings(work, config)
    journal = Journal(journal_path, fingerprint.of_json([settings, dict(work.about), dict(subject)]), talk)
    runner = _Runner(work=work, config=config, journal=journal, talk=talk, seed=work.seed)
    points: list[Point] = list(config.points(work.max_new_tokens))
    for number, group in enumerate(groups):
        with group as arms, ExitStack() as stack:
            runner.arms = arms
            runner.https = [stack.enter_context(open_http(arm.address, timeout_s=_SILENCE_S)) for arm in arms]
            points = runner.begin(points, is_first=not number)
            for point in points:
                runner.measure(point)
    measured = [runner.point(point) for point in points]
    problem = runner.traffic or _handicap(measured)
    record = ServedBenchRecord(
        servers=runner.servers,
        points=measured,
        settings=settings,
        data=work.about,
        notes=[*dict.fromkeys([*runner.notes, *_notes(measured, work)])],
        verdict=_verdict(measured, work, problem),
        problem=problem,
    )
    return record, journal


@dataclass(slots=True, kw_only=True)
class _Runner:
    """Takes turns, and keeps what the servers' counters say beside them."""

    work: Workload
    config: ServedBenchConfig
    journal: Journal
    talk: Talk
    seed: int
    arms: Sequence[Arm] = ()
    https: "Sequence[httpx.Client]" = ()
    traffic: OtherTraffic | None = None
    notes: list[str] = field(default_factory=list)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    _turns: dict[tuple[Point, str], list[ServedTurn]] = field(default_factory=dict)
    _counts: dict[tuple[Point, str], list[Acceptance | None]] = field(default_factory=dict)
    _ids: Mapping[str, list[int]] | None = None

    def begin(self, points: list[Point], *, is_first: bool) -> list[Point]:
        """Make the group's servers read the same, and give all the same limit of requests; the points to measure."""
        limits = [_limits(http, arm) for http, arm in zip(self.https, self.arms, strict=True)]
        for arm, limit in zip(self.arms, limits, strict=True):
            self.servers[arm.name] = {**_about(arm.address), "most_requests": limit.most_requests}
        self._tokenise()
        cut, note = _equalised(points, limits)
        if note and is_first:
            self._tell(note)
        elif note:
            self._tell(f"{note}; the server that was measured before ran more")
        for arm, http in zip(self.arms, self.https, strict=True):
            seen = _read(http, arm.address) if arm.name == BASELINE else None
            if seen is not None and seen.speculates:
                self._tell("the baseline says that it speculates too: the speedup is one of two drafts")
        return cut if is_first else points

    def _tokenise(self) -> None:
        for arm, http in zip(self.arms, self.https, strict=True):
            arm.tokenise(http, self.work.questions)
        if not all(arm.ids for arm in self.arms) or self._ids == {}:
            for arm in self.arms:
                arm.ids.clear()
            if any(question.begin for question in self.work.questions):
                self._tell("messages are sent as chat completions, with each server's own chat template")
        first = self.arms[0].ids if self._ids is None else self._ids
        for arm in self.arms:
            if name := next((name for name, ids in first.items() if arm.ids.get(name) != ids), None):
                raise PromptsDiffer(
                    "the two servers make other token ids of the same messages",
                    f"prompt {name}",
                    "their tokenizers or chat templates differ, so that they do not answer the same prompts",
                    "serve the same target with the same chat template in both",
                )
        self._ids = dict(first)

    def _tell(self, text: str) -> None:
        self.talk.note(text)
        self.notes.append(text)

    def measure(self, point: Point) -> None:
        """All turns of one point by the servers that live now, the first of each as warm-up."""
        names = [f"{point}: {arm.name}, repeat {n}" for n in range(self.work.repeats) for arm in self.arms]
        is_done = all(self.journal.get(name) is not None for name in names)
        with self.talk.progress(str(point), len(names), "turns") as bar:
            for number, arm in enumerate(() if is_done else self.arms):
                bar.say(f"{arm.name}: warm-up")
                short = replace(point, max_new_tokens=min(point.max_new_tokens, _WARM_UP_TOKENS))
                self._turn(number, short, point.concurrency)
            for repeat in range(self.work.repeats):
                order = list(enumerate(self.arms))
                for number, arm in order[:: -1 if repeat % 2 else 1]:
                    name = f"{point}: {arm.name}, repeat {repeat}"
                    kept = self.journal.get(name)
                    turn, seen = kept if kept is not None else self._turn(number, point, None)
                    if kept is None:
                        self.journal.add(name, turn, seen)
                    self._turns.setdefault((point, arm.name), []).append(turn)
                    self._counts.setdefault((point, arm.name), []).append(seen)
                    bar.advance()
                    bar.say(f"{arm.name}: {sum(one.num_tokens for one in turn.asked) / turn.seconds:.1f} tok/s")

    def _turn(self, number: int, point: Point, first: int | None) -> tuple[ServedTurn, Acceptance | None]:
        """One turn of one server over all questions, or the `first` of them; and what its counters say of it."""
        arm, http = self.arms[number], self.https[number]
        options = GenerationOptions(
            max_new_tokens=point.max_new_tokens,
            temperature=point.temperature,
            seed=self.work.seed if point.temperature else None,
            ignore_eos=self.work.is_meaningless,
            depth=self.work.depth,
        )
        before = _read(http, arm.address)
        questions = self.work.questions if first is None else self.work.questions[:first]
        turn = hold(arm, questions, options, point.concurrency, self.config.max_seconds)
        ours = sum(one.num_tokens for one in turn.asked)
        after = _settled(http, arm.address, before, ours)
        self._look_for_others(arm, before, after, ours, len(turn.asked))
        return turn, _counted(before, after)

    def _look_for_others(
        self, arm: Arm, before: Counters | None, after: Counters | None, ours: int, num_answers: int
    ) -> None:
        if before is None or after is None or before.generated_tokens is None or after.generated_tokens is None:
            return
        # What an answer accepts beyond its end may be counted as generated.
        strangers = after.generated_tokens - before.generated_tokens - ours - (self.work.depth + 1) * num_answers
        if strangers > 0 or (before.running or 0) > 0:
            self.traffic = self.traffic or OtherTraffic(
                "other requests ran on the server",
                f"{arm.name}, {arm.address.url}",
                f"its counters hold {max(strangers, 0):.0f} tokens more than were generated for eyas, and"
                f" {before.running or 0} requests ran before a turn: speeds and counts are not those of the prompts",
                "measure when it is idle",
            )

    def point(self, point: Point) -> MeasuredPoint:
        """The figures of one point, once all servers were measured."""
        turns = {name: own for (at, name), own in self._turns.items() if at == point}
        figures = {
            name: figures_of(own, pooled_of(self._counts[point, name]), self.work.depth, seed=self.seed)
            for name, own in turns.items()
        }
        accepted = figures[SERVER].accepted
        if looks_simulated(accepted):
            require_real(self.servers[SERVER]["url"], "every verify pass accepted the same number of drafts")
        for own in turns.values():
            told = {note for turn in own for one in turn.asked for note in one.answer.counts.notes}
            self.notes += [note for note in sorted(told)[:8] if note not in self.notes]
        clients = [turn.client for own in turns.values() for turn in own]
        plain, is_greedy = turns.get(BASELINE), point.temperature == 0
        return MeasuredPoint(
            point=point,
            figures=figures,
            comparison=compare_served(plain, turns[SERVER], accepted, is_greedy=is_greedy, seed=self.seed)
            if plain
            else None,
            client_busy=max(client.busy for client in clients),
            client_late_s=max(client.late_s for client in clients),
            is_client_bound=any(client.is_bottleneck for client in clients),
        )


def _limits(http: "httpx.Client", arm: Arm) -> ServerLimits:
    read = arm.address.api.read_limits
    limits = ServerLimits() if read is None else read(http, arm.address)
    require_real(arm.address.url, limits.simulates)
    return limits


def _equalised(points: Sequence[Point], limits: Sequence[ServerLimits]) -> tuple[list[Point], str]:
    """No more requests at once than every server runs: what waits in one queue only is not what the other does."""
    most = min((limit.most_requests for limit in limits if limit.most_requests), default=None)
    over = [] if most is None else [point.concurrency for point in points if point.concurrency > most]
    if not over or most is None:
        return list(points), ""
    cut = [replace(point, concurrency=min(point.concurrency, most)) for point in points]
    remark = next((f" ({one.remark})" for one in limits if one.most_requests == most and one.remark), "")
    told = ", ".join(map(str, sorted(set(over))))
    note = f"a server runs at most {most} requests at once, so {told} became {most} for all{remark}"
    return list(dict.fromkeys(cut)), note


def _read(http: "httpx.Client", address: ServerAddress) -> Counters | None:
    return None if address.api.read_counters is None else counters.read(address, http=http, with_server_info=False)


def _settled(http: "httpx.Client", address: ServerAddress, before: Counters | None, ours: int) -> Counters | None:
    """The counters once they hold what was generated for us, or do not move any more."""
    if before is None:
        return None
    end, last = time.monotonic() + _SETTLE_S, _read(http, address)
    while time.monotonic() < end:
        made = (last.generated_tokens or 0) - (before.generated_tokens or 0) if last is not None else 0
        time.sleep(_SETTLE_STEP_S)
        now = _read(http, address)
        if made >= ours and now == last:
            break
        last = now
    return last


def _counted(before: Counters | None, after: Counters | None) -> Acceptance | None:
    if before is None or after is None or not after.acceptance:
        return None
    steps = [
        difference(reading, before.acceptance.get(rank, Acceptance.none(len(reading.accepted_at))))
        for rank, reading in after.acceptance.items()
    ]
    return pooled(steps, len(steps[0].accepted_at))


def _about(address: ServerAddress) -> dict[str, Any]:
    return {"url": address.url, "engine": address.api.name, "version": address.version, "model": address.model}


def _settings(work: Workload, config: ServedBenchConfig) -> dict[str, Any]:
    return {
        "client": f"eyas {__version__}",
        "repeats": work.repeats,
        "concurrency": config.concurrencies,
        "temperature": config.temperatures,
        "max_new_tokens": config.lengths(work.max_new_tokens),
        "num_draft_tokens": work.depth,
        "seed": work.seed,
        "ignore_eos": work.is_meaningless,
        "order": "servers that live at the same time take turns, each repeat in the other order; the first warms up",
    }


def _notes(measured: Sequence[MeasuredPoint], work: Workload) -> list[str]:
    notes = []
    if work.is_meaningless:
        notes.append("the prompts are random ids: accept length and texts mean nothing here")
    if work.repeats == 1:
        notes.append("one repeat has no spread, so a speedup near 1 may be chance")
    for one in measured:
        if one.is_client_bound:
            notes.append(
                f"{one.point}: {_why_late(one)}, so times of single tokens may be the client's: busy"
                f" {one.client_busy:.0%} of a processor, its timers up to {1e3 * one.client_late_s:.1f} ms late"
            )
        for name, figures in one.figures.items():
            if figures.num_repetitive:
                notes.append(
                    f"{one.point}: {counted(figures.num_repetitive, 'answer')} of {figures.num_answers} of the {name}"
                    " repeat themselves, which flatters a draft; `accepted_straight` leaves them out"
                )
        if one.comparison is not None and one.comparison.parts_early:
            notes.append(
                f"{one.point}: {one.comparison.num_compared - one.comparison.num_equal} of"
                f" {one.comparison.num_compared} texts part within the first tokens, which near-ties do not explain:"
                " the servers differ in target, precision, template or sampling"
            )
    return notes


def _why_late(one: MeasuredPoint) -> str:
    if one.client_busy > MOST_BUSY:
        return "the client is the bottleneck (run it on another machine, or with less at once)"
    return "other programs held the client up (run it on an idle machine)"


def _handicap(measured: Sequence[MeasuredPoint]) -> BaselineHandicapped | None:
    found = (
        handicapped(one.comparison, one.figures[SERVER].accepted, str(one.point))
        for one in measured
        if one.comparison is not None
    )
    return next((error for error in found if error is not None), None)


def _verdict(measured: Sequence[MeasuredPoint], work: Workload, problem: EyasError | None) -> str:
    lines = [f"NOT VALID: {problem.what} ({problem.where})"] if problem is not None else []
    for one in measured:
        if one.comparison is not None:
            lines.append(f"{one.point}: {one.comparison.verdict}")
        else:
            own = one.figures[SERVER]
            length = "" if own.accepted is None else f", accept length {own.accepted.accept_length:.2f}"
            lines.append(f"{one.point}: {own.tokens_per_s:.1f} tok/s in total{length}")
    if measured and measured[0].comparison is not None and not work.is_meaningless:
        equal = [one.comparison for one in measured if one.comparison is not None and one.comparison.num_compared]
        if equal:
            same, every = sum(c.num_equal for c in equal), sum(c.num_compared for c in equal)
            again = sum(c.num_equal_baseline for c in equal)
            asked = sum(c.num_compared_baseline for c in equal)
            also = f" (the baseline repeats {again} of {asked} of its own)" if asked else ""
            lines.append(f"{same} of {every} greedy answers are the baseline's{also}")
    return ". ".join(lines) + "."
