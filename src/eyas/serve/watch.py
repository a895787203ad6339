"""`eyas watch`: the state machine for a server that eyas did not start. Read-only: no signal, no change.

The one exception is `canary`, which has to be asked for: a one-token generation now and then.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from eyas.client.address import ServerAddress, open_http
from eyas.contract.engines.registry import EngineName, server_api
from eyas.errors import ExitCode, EyasError
from eyas.serve.facts.clock import Clock, SystemClock
from eyas.serve.facts.evidence import EndpointAnswer
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.facts.state import Engine, Snapshot, StateName
from eyas.serve.look.probes import live_probes
from eyas.serve.look.stacks import LiveStackTaker
from eyas.serve.look.subject import Subject
from eyas.serve.supervise.state_rules import Patience
from eyas.serve.supervise.supervisor import Supervisor
from eyas.serve.supervise.views import View, write_textfile

if TYPE_CHECKING:
    import httpx

Until = Literal[
    "starting",
    "warming-up",
    "ready",
    "proven",
    "unhealthy",
    "draining",
    "stalled",
    "crashed",
    "stopped",
    "unreachable",
    "no-engine",
]
_CANARY_PROMPT = "The capital city of France is"
_CANARY_S = 60.0
_BAD = (StateName.CRASHED, StateName.STALLED, StateName.UNHEALTHY, StateName.UNREACHABLE, StateName.NO_ENGINE)


class WatchConfigWrong(EyasError):
    """Options that do not go together."""

    code = "watch-config"
    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """How to watch."""

    until: Until | None = None
    """End with exit code 0 as soon as the server is in this state (ready is also met by proven). Default: until it
    ends, or Ctrl-C. Exit code for another state at the end: 10 starting, 11 warming-up, 12 ready, 13 proven,
    14 unhealthy, 15 draining, 16 stalled, 17 crashed, 18 stopped, 19 unreachable, 20 no-engine."""
    timeout: float | None = None
    """End after this many seconds, whatever the state; default: no limit."""
    interval: float = 1.0
    """Seconds between two looks, 0.1 - 3600."""
    engine: EngineName | Literal["eyas", "unknown"] = "unknown"
    """The engine; unknown: found out from the log, the process or the endpoints."""
    version: str | None = None
    """The engine's version, which selects the log markers; default: as the log or the server says."""
    url: str | None = None
    """The server's URL, when a PID or a log is watched and it cannot be found from there."""
    log: Path | None = None
    """The server's log, when a PID or a URL is watched."""
    follow: bool | None = None
    """For a log alone: wait for more lines (--follow), or report what it says and end (--no-follow). Default: follow
    while a process of this machine has it open for writing (processes in other containers cannot be seen)."""
    textfile: Path | None = None
    """Write the watcher's own state here for Prometheus' node_exporter (its textfile collector), at every look."""
    out: Path | None = None
    """Write events, stacks and the timeline into a fresh folder below this one."""
    canary: float | None = None
    """Make a one-token generation every N seconds (10 or more), on each data-parallel rank: the only thing that
    is not read-only."""
    stacks: bool = True
    """Take stacks of a process that seems stalled (py-spy or /proc; it is not harmed)."""
    patience: float = 1.0
    """Factor for how long each phase may be silent before it is called a stall: above 1 for a slow disk or a very large
    model."""
    keep_on: Annotated[bool, Parameter(negative="")] = False
    """Continue after a stall instead of ending with exit code 16 (a stalled server may move again)."""

    def __post_init__(self) -> None:
        wrong = [
            f"{name} is {value}, wanted {wanted}"
            for name, value, wanted, is_right in (
                ("--interval", self.interval, "0.1 - 3600 s", 0.1 <= self.interval <= 3600),
                ("--canary", self.canary, "10 s or more", self.canary is None or 10 <= self.canary < inf),
                ("--patience", self.patience, "a factor above 0", 0 < self.patience < inf),
                ("--timeout", self.timeout, "0 s or more", self.timeout is None or self.timeout >= 0),
            )
            if not is_right
        ]
        if wrong:
            raise WatchConfigWrong(
                "; ".join(wrong),
                "eyas watch",
                "outside of that it disturbs the server, or misses most of what happens",
                "see `eyas watch --help`",
            )


def watch(
    subject: Subject,
    config: WatchConfig,
    view: View,
    *,
    api_key: str | None = None,
    clock: Clock | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> tuple[Snapshot, int, Path | None]:
    """Watch until the wanted state, the end, the timeout or an interrupt.

    Returns:
        the last snapshot; the exit code: 0 = the wanted state (without `until`: it ended well or we were interrupted),
        10 + n = another state; the folder that was written, if one was.

    Raises:
        LogUnreadable: the log that was named cannot be read. WriteFailed: `out` cannot be written.
        WatchConfigWrong: `follow` without a log, `canary` without a URL.
    """
    if config.follow is not None and not subject.log_only:
        raise WatchConfigWrong(
            f"--{'' if config.follow else 'no-'}follow is for a log alone",
            f"a {'process' if subject.pid is not None else 'URL'} is watched",
            "eyas watches it until it ends or reaches --until",
            "leave it out, or give --timeout to end earlier",
        )
    if config.canary is not None and subject.url is None:
        raise WatchConfigWrong(
            "--canary needs the server's URL",
            "a log or a process is watched, and no URL was found from there",
            "the canary is a request to the server itself",
            "give it with --url",
        )
    clock = clock or SystemClock()
    engine, version = config.engine, config.version
    folder = RunFolder.create(config.out, engine=engine) if config.out is not None else None
    probes = live_probes(
        subject,
        engine=engine,
        version=version,
        api_key=api_key,
        canary=_canary(subject, engine, version, api_key) if config.canary is not None else None,
        canary_every_s=config.canary or 60.0,
        follow=config.follow,
    )
    supervisor = Supervisor(
        engine=engine,
        version=version,
        probes=probes,
        clock=clock,
        stacks=LiveStackTaker() if config.stacks and subject.pid is not None else None,
        patience=Patience(scale=config.patience),
        log_only=subject.log_only,
        has_log=subject.log is not None,
        folder=folder,
    )

    def show(snapshot: Snapshot) -> None:
        view.show(snapshot, supervisor.phase_rows())
        if config.textfile is not None:
            try:
                write_textfile(config.textfile, snapshot)
            except EyasError as error:
                supervisor.journal.warn(f"the textfile cannot be written: {error.why}", at=snapshot.at)

    wanted = _wanted(config)
    ends = set() if config.keep_on else {StateName.STALLED}
    if not wanted and not config.keep_on:
        ends |= {StateName.NO_ENGINE}  # with a wish one waits: a proxy may answer in the place of what is to come
    try:
        last = supervisor.run(
            until=wanted | ends,
            on_snapshot=show,
            on_event=view.event,
            deadline_s=config.timeout,
            stop_when=interrupted,
            poll_s=config.interval,
        )
    except KeyboardInterrupt:
        last = supervisor.last or supervisor.unlooked("interrupted before the first look was done")
    finally:
        view.close()
    return (
        last,
        _exit_code(last, wanted, log_is_over=supervisor.log_is_over, was_ready=supervisor.was_ready),
        folder.path if folder is not None else None,
    )


def _wanted(config: WatchConfig) -> set[StateName]:
    if config.until is None:
        return set()
    wanted = {StateName(config.until)}
    return wanted | {StateName.PROVEN} if StateName.READY in wanted else wanted


def _exit_code(last: Snapshot, wanted: set[StateName], *, log_is_over: bool, was_ready: bool) -> int:
    if wanted:
        # A whole log is read in one look: the wish was met while it went by.
        is_met = last.state in wanted or (log_is_over and was_ready and StateName.READY in wanted)
        return 0 if is_met else last.state.exit_code
    is_good = last.state.is_serving or last.state is StateName.STOPPED if log_is_over else last.state not in _BAD
    return 0 if is_good else last.state.exit_code


def _canary(
    subject: Subject, engine: Engine, version: str | None, api_key: str | None, patience_s: float = _CANARY_S
) -> Callable[[], EndpointAnswer]:
    """One token from each data-parallel rank, as an `EndpointAnswer`: 200, or the first rank that gave none."""
    assert subject.url is not None, "checked before"
    address = ServerAddress(url=subject.url, api=server_api(engine), version=version, api_key=api_key)

    def ask() -> EndpointAnswer:
        from eyas.client import counters
        from eyas.client.generate import model_name

        start = time.monotonic()
        try:
            with open_http(address, timeout_s=patience_s) as http:
                named = replace(address, model=model_name(http, address))
                ranks = counters.read(address, http=http).num_ranks or 1
                for rank in range(ranks):
                    failed = _one_token(http, named, rank if ranks > 1 else None)
                    if failed:
                        return EndpointAnswer(code=0, failure=failed, elapsed_s=time.monotonic() - start)
        except EyasError as error:
            return EndpointAnswer(code=0, failure=error.what, elapsed_s=time.monotonic() - start)
        return EndpointAnswer(code=200, elapsed_s=time.monotonic() - start)

    return ask


def _one_token(http: "httpx.Client", address: ServerAddress, rank: int | None) -> str:
    """ "" if a token came, else what happened."""
    from eyas.client.generate import generate
    from eyas.client.server_api import GenerationOptions

    try:
        generate(http, address, _CANARY_PROMPT, GenerationOptions(max_new_tokens=1), dp_rank=rank)
    except EyasError as error:
        return error.what if rank is None else f"DP rank {rank}: {error.what}"
    return ""
