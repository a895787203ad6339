"""The folder in which a capturing server's rows wait: made for a launch, emptied with it, swept after a kill."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from eyas.contract.engines.capturing import CaptureWish
from eyas.errors import ExitCode, EyasError
from eyas.records.atomic import write_failed
from eyas.talk import printable

_LOCK = "eyas.lock"


class SpoolInUse(EyasError):
    """Another server's rows wait in the folder."""

    code = "spool-in-use"
    exit_code = ExitCode.ENVIRONMENT


@contextmanager
def spool_folder(wish: CaptureWish | None) -> Iterator[None]:
    """The folder, while a server uses it. What a killed launch left in it is removed first.

    Raises:
        SpoolInUse: a living launch holds it, or it holds other files.
        WriteFailed: it cannot be made.
    """
    if wish is None:
        yield
        return
    folder = Path(wish.spool)
    with _claimed(folder):
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _claimed(folder: Path) -> IO[bytes]:
    """The folder made and emptied; ours until the file is closed."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        foreign = [path.name for path in folder.iterdir() if path.name != _LOCK]
        if foreign and not (folder / _LOCK).exists():
            raise _in_use(folder, f"it holds {printable(foreign[0])}, which eyas did not put there")
        lock = open(folder / _LOCK, "ab")  # noqa: SIM115 - the caller closes it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise _in_use(folder, "another launch holds its lock") from None
        for path in folder.iterdir():
            if path.name != _LOCK:
                path.unlink()
        return lock
    except OSError as error:
        raise write_failed(folder, error) from error


def _in_use(folder: Path, why: str) -> SpoolInUse:
    do = "stop that server, or choose another --port or --spool"
    return SpoolInUse(f"{folder} is in use", str(folder), why, do)
