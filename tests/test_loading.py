"""Ctrl-C while a library is being imported gets through, whatever the library makes of it."""

import signal
from collections.abc import Callable

import pytest

from eyas.talk import _import_interruptibly


def swallows_once(_: str) -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return


def converts(_: str) -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        raise ImportError("initialisation failed") from error


@pytest.mark.parametrize("load", [swallows_once, converts])
def test_an_interrupt_that_an_import_keeps_for_itself_still_ends_the_command(
    load: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("importlib.import_module", load)
    before = signal.getsignal(signal.SIGALRM)

    with pytest.raises(KeyboardInterrupt):
        _import_interruptibly(["torch"])

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_module_that_is_not_there_is_left_to_the_command():
    _import_interruptibly(["no_such_module_of_eyas"])
