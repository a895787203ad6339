"""`eyas train --gpus N`: one process per GPU on this machine, watched from a parent that computes nothing.

A rank that dies ends the others within seconds: no peer waits for a collective that will never come. Ranks meet, and
say how they ended, in files without a name: whatever is killed, nothing stays in the temporary directory.
torch's own launchers are not used: they end ranks by SIGTERM, which ranks ignore (it reaches the whole process group
when a user asks the run to stop), they print, and they hand on texts instead of errors.
"""

import ctypes
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from typing import IO, Any

import torch

from eyas.errors import ExitCode, EyasError
from eyas.talk import Silent, Talk
from eyas.train.config import TrainConfig, TrainConfigInvalid
from eyas.train.optimise.ranks import RankPlace
from eyas.train.preflight.examine import plan_train
from eyas.train.preflight.train_plan import TrainPlan
from eyas.train.request import TrainRequest
from eyas.train.run.stopping import Listen, never_asked
from eyas.train.run.train import Trained, train

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_S = 0.1  # the parent asks so often whether the run shall stop
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_S = 2.0  # between the first bad news and the end: the cause may come after its consequence


class RankDied(EyasError):
    """A process of a run on several GPUs ended before the run did."""

    code = "rank-died"
    exit_code = ExitCode.ENVIRONMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    request: TrainRequest
    config: TrainConfig
    make_talk: Callable[[], Talk]
    threads: int
    parent: int


def train_on(
    num_ranks: int,
    request: TrainRequest,
    config: TrainConfig,
    plan: TrainPlan,
    make_talk: Callable[[], Talk],
    threads: int | None = None,
    *,
    listen: Listen = never_asked,
) -> Trained:
    """`train` in `num_ranks` processes of this machine.

    Args:
        num_ranks: 2 or more: GPUs 0 … num_ranks - 1, or processes on the CPU.
        plan: made by this process; each rank makes it again.
        make_talk: importable by name; called in the first rank, the others are silent.
        threads: of each process on the CPU; None for its share of the cores.
        listen: opened in this process; the ranks stop together after a step.

    Raises:
        RankDied: a rank was killed, or ended by an internal error.
        TrainConfigInvalid: the device names one GPU.
        EnvironmentMissing: fewer GPUs.
        What `train` raises in a rank.
    """
    assert num_ranks >= 2, "one process needs no launcher"
    if ":" in request.device:
        raise TrainConfigInvalid(
            "--device names one GPU, and --gpus asks for several",
            f"--device {request.device} --gpus {num_ranks}",
            "each rank takes the GPU with its own number",
            "give --device cuda; CUDA_VISIBLE_DEVICES chooses the GPUs",
        )
    request.placement(num_ranks - 1)  # raises where there are fewer GPUs
    threads = threads or max(1, torch.get_num_threads() // num_ranks)
    work = _Work(request=request, config=config, make_talk=make_talk, threads=threads, parent=os.getpid())
    context = get_context("spawn")
    stop = context.Event()
    with ExitStack() as files:
        meeting, *said = (files.enter_context(tempfile.TemporaryFile()) for _ in range(num_ranks + 1))
        places = [
            RankPlace(rank=rank, size=num_ranks, local_rank=rank, meet_at=f"file://{_path_of(meeting)}")
            for rank in range(num_ranks)
        ]
        processes = [
            context.Process(target=_rank, args=(place, work, _path_of(file), stop), name=f"eyas rank {place.rank}")
            for place, file in zip(places, said, strict=True)
        ]
        try:
            with _signals_held():
                for process in processes:
                    process.start()
            with listen() as is_asked:
                exit_codes = _follow(processes, is_asked, stop)
        finally:
            _end(processes)
            processes.clear()
            del stop  # an error below keeps this frame, and a semaphore kept at exit is told as leaked
        ends = [_read(file) for file in said]
    _raise_cause(ends, exit_codes)
    return Trained(plan=plan, out=request.out, **ends[0])


def _path_of(file: IO[bytes]) -> str:
    """The path by which another process of this user opens a file of this process that has no name."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _read(file: IO[bytes]) -> Any:
    """How a rank ended, by `_rank`; None where it was killed before it had said so."""
    try:
        return pickle.load(file)  # noqa: S301 - written by our own rank into a file that only this user can open
    except (EOFError, pickle.UnpicklingError):
        return None


@contextmanager
def _signals_held() -> Iterator[None]:
    """Processes started inside begin with Ctrl-C, SIGTERM and SIGHUP blocked: these signals go to the whole group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _rank(place: RankPlace, work: _Work, said: str, stop: Event) -> None:
    """The life of one rank, which ends with what it writes to the file `said`: the parts of a `Trained`, an `EyasError`
    or the text of another exception. Ctrl-C, SIGTERM and SIGHUP are the parent's business, which sets `stop` or kills.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != work.parent:  # it died while this one started
        return
    torch.set_num_threads(work.threads)
    talk = work.make_talk() if place.rank == 0 else Silent()
    end: Mapping[str, Any] | EyasError | str
    try:
        plan = plan_train(work.request, work.config, Silent())
        trained = train(work.request, work.config, plan, talk, place, listen=lambda: nullcontext(stop.is_set))
        end = {name: getattr(trained, name) for name in ("metrics", "held_out", "kept", "written", "notes", "fed")}
    except EyasError as error:
        end = error
    except Exception:  # noqa: BLE001 - told by the parent; a process of its own has no other border
        end = traceback.format_exc()
    with open(said, "wb") as file:
        pickle.dump(end, file)
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: after an error the libraries' own good-byes may wait for peers.
    os._exit(0 if isinstance(end, Mapping) else 1)


def _follow(processes: Sequence[SpawnProcess], is_asked: Callable[[], bool], stop: Event) -> list[int | None]:
    """Wait until all ranks are done, or until one has failed and the others had time to say why; pass the wish to stop
    on. Gives the exit codes, None for a rank that still runs.
    """
    deadline = float("inf")
    while time.monotonic() < deadline and (running := [p.sentinel for p in processes if p.exitcode is None]):
        if is_asked() and not stop.is_set():
            stop.set()
        connection.wait(running, _POLL_S)
        if deadline == float("inf") and any(process.exitcode for process in processes):
            deadline = time.monotonic() + _GRACE_S
    return [process.exitcode for process in processes]


def _raise_cause(ends: Sequence[Any], exit_codes: Sequence[int | None]) -> None:
    """The error to report: an `EyasError` first, then a rank that died silently (its peers crash because of it)."""
    for end in ends:
        if isinstance(end, EyasError):
            raise end
    for rank, (end, code) in enumerate(zip(ends, exit_codes, strict=True)):
        if end is None and code is not None:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise _died(rank, f"{how}, without a word")
    for rank, end in enumerate(ends):
        if isinstance(end, str):
            error = _died(rank, f"{end.strip().splitlines()[-1]}, of {len(ends)} ranks")
            error.add_note(end)
            raise error


def _died(rank: int, why: str) -> RankDied:
    return RankDied(
        f"rank {rank} ended before the run did",
        f"rank {rank}",
        why,
        "run the same command again: it resumes from the last checkpoint; SIGKILL often means that memory ran out",
    )


def _end(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        if process.pid is not None:  # it was started
            process.kill()
            process.join()
