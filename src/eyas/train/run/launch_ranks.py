"""`eyas train --gpus N`: one process per GPU on this machine, watched from a parent that computes nothing.

A rank that dies ends the others within seconds: no peer waits for a collective that will never come.
"""

import ctypes
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from typing import Any

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


@dataclass(frozen=True, slots=True)
class _News:
    """How a rank ended: with the parts of a `Trained`, an `EyasError`, or the text of another exception."""

    rank: int
    done: Mapping[str, Any] | None = None
    error: EyasError | None = None
    crash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    request: TrainRequest
    config: TrainConfig
    make_talk: Callable[[], Talk]
    threads: int | None
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
        num_ranks: 2 or more; GPUs 0 … num_ranks - 1, or processes on the CPU.
        plan: made by this process; each rank makes it again.
        make_talk: importable by name; called in the first rank, the others keep quiet.
        threads: of each process on the CPU; None for its share of the cores.
        listen: asked in this process; the ranks stop together after a step.

    Raises:
        RankDied: a rank was killed, or failed by an error of ours.
        TrainConfigInvalid: the device names one GPU.
        EnvironmentMissing: fewer GPUs.
        What `train` raises in a rank.
    """
    assert num_ranks >= 2, "one process needs no launcher"
    if ":" in request.device:
        raise TrainConfigInvalid(
            "one GPU cannot be several",
            f"--device {request.device} --gpus {num_ranks}",
            "each process takes the GPU of its own number",
            "give --device cuda; CUDA_VISIBLE_DEVICES chooses which",
        )
    request.placement(num_ranks - 1)  # are there so many?
    threads = threads or max(1, torch.get_num_threads() // num_ranks)
    work = _Work(request=request, config=config, make_talk=make_talk, threads=threads, parent=os.getpid())
    context = get_context("spawn")
    stop = context.Event()
    with tempfile.TemporaryDirectory(prefix="eyas-ranks-") as folder:
        ears, processes = [], []
        for rank in range(num_ranks):
            place = RankPlace(rank=rank, size=num_ranks, local_rank=rank, meet_at=f"file://{folder}/meet")
            ear, mouth = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(place, work, mouth, stop), name=f"eyas rank {rank}")
            with _signals_held():
                process.start()
            mouth.close()
            ears.append(ear)
            processes.append(process)
        try:
            with listen() as is_asked:
                done = _follow(processes, ears, is_asked, stop)
        finally:
            _end(processes)
    return Trained(plan=plan, out=request.out, **done)


@contextmanager
def _signals_held() -> Iterator[None]:
    """A process started inside is born with Ctrl-C, SIGTERM and SIGHUP held back: they go to its whole group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _rank(place: RankPlace, work: _Work, mouth: connection.Connection, stop: Event) -> None:
    """The life of one rank. Ctrl-C, SIGTERM and SIGHUP are the parent's business, which sets `stop` or kills."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != work.parent:  # it died while this one started
        return
    if work.threads is not None:
        torch.set_num_threads(work.threads)
    talk = work.make_talk() if place.rank == 0 else Silent()
    try:
        plan = plan_train(work.request, work.config, Silent())
        trained = train(work.request, work.config, plan, talk, place, listen=lambda: nullcontext(stop.is_set))
        told = ("metrics", "held_out", "kept", "written", "notes")
        mouth.send(_News(place.rank, {name: getattr(trained, name) for name in told}))
    except EyasError as error:
        mouth.send(_News(place.rank, error=error))
    except Exception:  # noqa: BLE001 - told by the parent; a process of its own has no other border
        mouth.send(_News(place.rank, crash=traceback.format_exc()))


def _follow(
    processes: Sequence[SpawnProcess],
    ears: Sequence[connection.Connection],
    is_asked: Callable[[], bool],
    stop: Event,
) -> Mapping[str, Any]:
    """Wait until all ranks are done, or raise the cause of the first end that is none; pass the wish to stop on."""
    news: dict[int, _News] = {}
    deadline: float | None = None
    while len(news) < len(processes):
        if is_asked() and not stop.is_set():
            stop.set()
        timeout = _POLL_S if deadline is None else max(0.0, deadline - time.monotonic())
        waiting = [ears[rank] for rank in range(len(processes)) if rank not in news]
        ready = connection.wait(waiting, timeout)
        for rank, ear in enumerate(ears):
            if ear in ready:
                news[rank] = _hear(rank, ear, processes[rank])
        if deadline is None and any(item.done is None for item in news.values()):
            deadline = time.monotonic() + _GRACE_S
        if deadline is not None and time.monotonic() >= deadline:
            break
    _raise_cause(news, len(processes))
    done = news[0].done
    assert done is not None, "the first rank gave the outcome"
    return done


def _hear(rank: int, ear: connection.Connection, process: SpawnProcess) -> _News:
    try:
        item: _News = ear.recv()
    except EOFError:
        process.join(_GRACE_S)
        code = process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return _News(rank, error=RankDied(*_died(rank, f"{how}, without a word")))
    return item


def _raise_cause(news: Mapping[int, _News], num_ranks: int) -> None:
    """Deaths without a word cause errors of the others, and errors on purpose say more than crashes."""
    errors = [item.error for item in news.values() if item.error is not None]
    for error in sorted(errors, key=lambda error: not isinstance(error, RankDied)):
        raise error
    for item in news.values():
        if item.crash is not None:
            error = RankDied(*_died(item.rank, f"{item.crash.strip().splitlines()[-1]}, of {num_ranks} ranks"))
            error.add_note(item.crash)
            raise error


def _died(rank: int, why: str) -> tuple[str, str, str, str]:
    return (
        f"rank {rank} ended before the run did",
        f"rank {rank}",
        why,
        "run the same command again: it goes on from the last checkpoint; a SIGKILL is often the system's memory",
    )


def _end(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()
