"""Ctrl-C, SIGTERM and SIGHUP in `eyas train`: the first ends the run after its step, with a checkpoint; the second ends
it at once.

Outside of the steps they act as usual. What is said afterwards is read from the disk.
"""

import json as json_module
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from eyas.cli.output import print_json
from eyas.errors import EyasError
from eyas.records.checkpoint import STATE, resume_folder
from eyas.talk import printable
from eyas.train.run.stopping import TrainingStopped

EXIT_CODE = 128 + signal.SIGINT
_SAME_WISH_S = 0.5  # one Ctrl-C may arrive from the terminal and from a launcher
_STDOUT, _STDERR = 1, 2


class TrainingInterrupted(EyasError):
    """A run was ended at once, before its step was done."""

    code = "training-interrupted"


@contextmanager
def wish_to_stop(*, is_told: bool = True) -> Iterator[Callable[[], bool]]:
    """While open, SIGINT, SIGTERM and SIGHUP (unless ignored, as under nohup) ask the run to stop; gives a function
    that says whether one came.

    Args:
        is_told: whether to answer the first signal on stderr.
    """
    asked_at: list[float] = []

    def take(_number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if asked_at and now - asked_at[0] >= _SAME_WISH_S:
            raise KeyboardInterrupt
        if not asked_at:
            asked_at.append(now)
            if is_told:
                _tell(b"\nstopping after this step, with a checkpoint; a second signal ends at once\n")

    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield lambda: False
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield lambda: bool(asked_at)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(text: bytes) -> None:
    """Write to the descriptor, not through `sys.stderr`: the signal may have interrupted its writing.

    Where the terminal is gone, later output goes to /dev/null, so that it does not end the step.
    """
    try:
        os.write(_STDERR, text)
    except OSError:
        with open(os.devnull, "wb") as nowhere, suppress(OSError):
            if os.path.sameopenfile(_STDOUT, _STDERR):
                os.dup2(nowhere.fileno(), _STDOUT)
            os.dup2(nowhere.fileno(), _STDERR)


def tell_end(ended: TrainingStopped | KeyboardInterrupt, out: Path, *, was_there: bool, json: bool) -> int:
    """Say what is kept of an interrupted run, on stderr and as a document; gives the exit code.

    Args:
        out: folder for the draft.
        was_there: whether it existed before the run.
    """
    error = ended if isinstance(ended, TrainingStopped) else _cut_short(out, was_there)
    print(printable(f"interrupted: {error.what}; {error.do}"), file=sys.stderr, flush=True)
    if json:
        print_json(error.as_document())
    return EXIT_CODE


def _cut_short(out: Path, was_there: bool) -> TrainingInterrupted:
    folder = resume_folder(out)
    why = "a second SIGINT (Ctrl-C), SIGTERM or SIGHUP, or one outside of the steps"
    if out.exists() and not was_there:
        return TrainingInterrupted(f"{out} is written completely", str(out), why, "use it: only the summary is missing")
    step = _kept_step(folder)
    if step:
        what, do = f"{folder} holds the run as of step {step}", "run the same command again to resume there"
    else:
        what, do = "no step of this run is kept", "run the same command again to start at step 1"
    return TrainingInterrupted(what, str(folder), why, do)


def _kept_step(folder: Path) -> int | None:
    try:
        step = json_module.loads((folder / STATE).read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None
