"""Nothing that fails in eyas ends the server it observes: exceptions at every seam, lost outputs, unreadable logs."""

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eyas.errors import EyasError
from eyas.serve.facts.evidence import ExitFacts
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.facts.state import StateName
from eyas.serve.launch import running_server
from eyas.serve.launch.running_server import RunningServer
from eyas.serve.log.phases import PhaseTracker
from eyas.serve.supervise.crash import CrashReader
from eyas.serve.supervise.journal import Journal, Timeline
from eyas.serve.supervise.liveness import AcceptanceWatch
from eyas.serve.supervise.phase_times import PhaseTimes
from eyas.serve.supervise.shown import ProgressTeller
from eyas.serve.supervise.stall import StallWatch
from eyas.serve.supervise.state_rules import StateRules
from eyas.serve.supervise.supervisor import Supervisor
from eyas.serve.supervise.views import PlainView
from fake_world import World
from server_in_fake_time import ready_world, running

SEAMS: tuple[tuple[type, str], ...] = (
    *((World, name) for name in ("observe", "take", "learn")),
    *((PhaseTracker, name) for name in ("feed", "feed_pending", "saw_http", "title_of")),
    *((CrashReader, name) for name in ("feed", "cause", "_root")),
    *((StateRules, name) for name in ("note_moves", "decide", "activity", "budget_s", "last_words", "unmoved")),
    *((AcceptanceWatch, name) for name in ("feed", "proof")),
    (ProgressTeller, "due"),
    *((PhaseTimes, name) for name in ("phase_eta_s", "ready_eta_s", "keep")),
    *((StallWatch, name) for name in ("suspect", "calm")),
    *((RunFolder, name) for name in ("append_event", "write_document", "write_stacks")),
    *((Timeline, name) for name in ("add", "as_document")),
    *((Journal, name) for name in ("tell", "warn", "withdraw", "write_snapshot", "write")),
    *((Supervisor, name) for name in ("_take_lines", "_take_line", "_confirmed", "_snapshot", "_announce", "_cause")),
    *((Supervisor, name) for name in ("phase_rows", "prove", "_note_http", "_phase_view")),
    *((PlainView, name) for name in ("show", "event")),
    *((RunningServer, name) for name in ("_ask", "_advance_verdict")),
)
EXCEPTIONS: tuple[Callable[[], Exception], ...] = (
    lambda: ValueError("could not convert string to float: '.'"),
    lambda: OverflowError("cannot convert float infinity to integer"),
    lambda: OSError(errno.EISDIR, "Is a directory"),
    lambda: OSError(errno.EMFILE, "Too many open files"),
    lambda: BrokenPipeError(errno.EPIPE, "Broken pipe"),
    lambda: UnicodeEncodeError("ascii", "ä", 0, 1, "ordinal not in range"),
    lambda: MemoryError(),
    lambda: RecursionError("maximum recursion depth exceeded"),
    lambda: RuntimeError("can't start new thread"),
    lambda: ZeroDivisionError("division by zero"),
    lambda: AssertionError(),
    lambda: KeyError("x"),
    lambda: EyasError("what", "where", "why", "do"),
)


@contextmanager
def faults(randomness: random.Random, share: float) -> Iterator[list[bool]]:
    """Every seam raises anything with probability `share`, while the list that is given holds True."""
    on = [True]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in SEAMS:
            real = getattr(owner, name)

            def faulty(*args: Any, _real: Any = real, **more: Any) -> Any:
                if on[0] and randomness.random() < share:
                    raise randomness.choice(EXCEPTIONS)()
                return _real(*args, **more)

            patch.setattr(owner, name, faulty)
        patch.setattr(running_server, "_in_background", lambda work: _done(work))
        yield on


def _done(work: Callable[[], Any]) -> Any:
    from concurrent.futures import Future

    future: Future[Any] = Future()
    try:
        future.set_result(work())
    except Exception as error:  # noqa: BLE001 - as the real one
        future.set_exception(error)
    return future


def lives(folder: Path, seed: int) -> None:
    randomness = random.Random(seed)
    share = randomness.choice((0.01, 0.05, 0.2, 0.5, 1.0))
    with faults(randomness, share) as on:
        server, _ = running(
            ready_world(), RunFolder(folder), looks=14, at_look=lambda look: on.__setitem__(0, look < 9)
        )
        last = server.until_end()

    assert server.interrupts.count, f"seed {seed}: it ended before it was asked to"
    assert last.state.is_serving, f"seed {seed}: {last.state}: {last.reason}"
    assert len(last.warnings) <= 120


@pytest.mark.parametrize("part", range(4))
def test_exceptions_at_every_seam_neither_end_the_watch_nor_change_its_state_for_good(tmp_path: Path, part: int):
    for seed in range(part * 40, part * 40 + 40):
        lives(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(5))
def test_thousands_of_runs_with_exceptions_live(tmp_path: Path, part: int):
    for seed in range(1000 + part * 1000, 2000 + part * 1000):
        lives(tmp_path, seed)


def test_the_faults_are_real(tmp_path: Path):
    """The proof would prove nothing if no seam were reached."""
    reached: set[str] = set()
    for owner, name in SEAMS:
        with pytest.MonkeyPatch.context() as patch:
            real = getattr(owner, name)

            def counted(*args: Any, _real: Any = real, _name: str = f"{owner.__name__}.{name}", **more: Any) -> Any:
                reached.add(_name)
                return _real(*args, **more)

            patch.setattr(owner, name, counted)
            patch.setattr(running_server, "_in_background", _done)
            running(ready_world(), RunFolder(tmp_path), looks=8)[0].until_end()

    assert len(reached) >= len(SEAMS) - 12  # stalls, crashes and withdrawn warnings are other worlds


def test_a_lost_view_is_said_in_the_run_folder_and_the_watch_continues(tmp_path: Path):
    def say(_: str) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    server, _ = running(ready_world(), RunFolder(tmp_path), looks=10, view=PlainView(say))

    last = server.until_end()

    assert last.state.is_serving
    assert any("showing what happened" in warning for warning in last.warnings)


def test_only_the_guards_word_ends_it_not_what_a_look_says(tmp_path: Path):
    world = ready_world()
    world.at(5, exit=ExitFacts(code=1))
    server, engine = running(world, RunFolder(tmp_path), looks=30)

    def ends(look: int) -> None:
        if look == 20:
            engine.code, engine.is_gone = 1, True

    server, engine = running(world, RunFolder(tmp_path), looks=30, at_look=ends)
    last = server.until_end()

    assert last.state is StateName.CRASHED
    assert server.clock.count == 20  # type: ignore[attr-defined]
