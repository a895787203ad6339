"""How a step's parts are timed by who wants to: the trainer names its phases, and by default nobody listens."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

# Called with the name of a phase; what it gives is entered for the phase's duration.
PhaseClock = Callable[[str], AbstractContextManager[None]]


def no_clock(phase: str) -> AbstractContextManager[None]:
    """Times nothing."""
    return nullcontext()
