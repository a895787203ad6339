"""Stopping a run on request, between two steps, with a checkpoint; the request is a signal's or the parent's."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from eyas.errors import EyasError

# Opened around the optimiser steps; the function that it gives says whether the run was asked to stop.
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
                "run the same command again to start at step 1; leave that option out to be able to resume",
            )
        return cls(
            f"stopped after step {step} of {num_steps}, which is kept in {folder}",
            str(folder),
            "it was asked to (Ctrl-C, SIGTERM, SIGHUP)",
            f"run the same command again to resume with step {step + 1}",
        )


@contextmanager
def never_asked() -> Iterator[Callable[[], bool]]:
    """The run is never asked to stop."""
    yield lambda: False
