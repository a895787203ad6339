"""What every test may ask for. Nothing here needs the network."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A claim must not fail because another program uses the cores.
settings.register_profile("claims", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("claims")

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def disks_are_not_waited_for() -> Iterator[None]:
    """Thousands of small files are written; `records/test_atomic.py` sees that each is synced before its rename."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def signals_are_heeded() -> Iterator[None]:
    """A runner may ignore them (nohup, a shell's `&`), and programs that tests start would inherit that: a handler here
    keeps this process, and becomes the default in theirs."""
    ignored = [n for n in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT) if signal.getsignal(n) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real inputs beside the repository; tests that use it skip where it is absent."""
    folder = REPO.parent / "shared"
    if not (folder / "drafts").is_dir():
        pytest.skip("the shared folder of real drafts, logs and cases is not beside the repository")
    return folder


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The built-in target in the user's cache, fetched once; tests that use it skip where it is absent."""
    from eyas.cli.target_option import target_folder
    from eyas.errors import EnvironmentMissing
    from eyas.talk import Silent

    try:
        return target_folder("smollm2-135m", Silent())
    except EnvironmentMissing as missing:
        pytest.skip(f"the target smollm2-135m is not in the cache and cannot be fetched: {missing.why}")
