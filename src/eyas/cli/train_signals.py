"""Ctrl-C and SIGTERM in `eyas train`: the first one lets the step end and a checkpoint be written, the second one ends.

Outside of the steps they do what they always do. What is said afterwards is read from the disk, not remembered.
"""

import json as json_module
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from eyas.cli.output import print_json, printable
from eyas.errors import EyasError
from eyas.records.checkpoint import STATE, resume_folder
from eyas.train.stopping import TrainingStopped

EXIT_CODE = 128 + signal.SIGINT
_SAME_WISH_S = 0.5  # a terminal and a launcher may both pass one Ctrl-C on
_STDERR = 2


class TrainingInterrupted(EyasError):
    """A run was ended at once, in the middle of what it was doing."""

    code = "training-interrupted"


@contextmanager
def wish_to_stop(*, is_told: bool = True) -> Iterator[Callable[[], bool]]:
    """While open, SIGINT and SIGTERM are taken as the wish to stop; gives whether there was one.

    Args:
        is_told: whether the first signal is answered on stderr.
    """
    asked_at: list[float] = []

    def take(_number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if asked_at and now - asked_at[0] >= _SAME_WISH_S:
            raise KeyboardInterrupt
        if not asked_at:
            asked_at.append(now)
            if is_told:
                # Not through sys.stderr: the signal may have come in the middle of its writing.
                os.write(_STDERR, b"\nstopping after this step, with a checkpoint; once more ends at once\n")

    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield lambda: False
        return
    before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked_at)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell_end(ended: TrainingStopped | KeyboardInterrupt, out: Path, *, was_there: bool, json: bool) -> int:
    """Say what an interrupted run has left, on stderr and as a document; gives the exit code.

    Args:
        out: folder of the draft to be.
        was_there: before the run.
    """
    error = ended if isinstance(ended, TrainingStopped) else _cut_short(out, was_there)
    print(printable(f"interrupted: {error.what}; {error.do}"), file=sys.stderr, flush=True)
    if json:
        print_json(error.as_document())
    return EXIT_CODE


def _cut_short(out: Path, was_there: bool) -> TrainingInterrupted:
    folder = resume_folder(out)
    why = "SIGINT (Ctrl-C) or SIGTERM outside of the steps, or for the second time"
    if out.exists() and not was_there:
        return TrainingInterrupted(f"{out} is written, whole", str(out), why, "the run was done but for its summary")
    step = _kept_step(folder)
    if step:
        what, do = f"{folder} holds the run as of step {step}", "run the same command again: it goes on from there"
    else:
        what, do = "no step of this run is kept", "the same command begins at step 1"
    return TrainingInterrupted(what, str(folder), why, do)


def _kept_step(folder: Path) -> int | None:
    try:
        step = json_module.loads((folder / STATE).read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None
