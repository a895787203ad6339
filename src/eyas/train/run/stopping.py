"""Stopping a run when asked, between two steps, with a checkpoint. Who asks (a signal, a parent) is not known here."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from eyas.errors import EyasError

# Opened around the optimiser steps; what it gives says whether the run was asked to stop.
Listen = Callable[[], AbstractContextManager[Callable[[], bool]]]


class TrainingStopped(EyasError):
    """A run was asked to stop and did, after a whole step."""

    code = "training-stopped"

    @classmethod
    def after(cls, step: int, num_steps: int, folder: Path, *, is_kept: bool) -> "TrainingStopped":
        """For a run that has done `step` of `num_steps` steps and is kept in `folder`, or nowhere."""
        if not is_kept:
            return cls(
                f"stopped after step {step} of {num_steps}; nothing of it is kept",
                str(folder),
                "--checkpoint-every-s 0 asks for no checkpoints",
                "the same command begins at step 1; leave that option out to be able to go on",
            )
        return cls(
            f"stopped after step {step} of {num_steps}, which is kept in {folder}",
            str(folder),
            "it was asked to (Ctrl-C, SIGTERM, SIGHUP)",
            f"run the same command again: it goes on with step {step + 1}",
        )


@contextmanager
def never_asked() -> Iterator[Callable[[], bool]]:
    """Nobody asks."""
    yield lambda: False
