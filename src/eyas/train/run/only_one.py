"""One process at a time trains a draft: two would write the same unfinished run by turns, and one of them in vain."""

import errno
import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eyas.errors import EyasError


class RunInProgress(EyasError):
    """Another process is training the same draft."""

    code = "run-in-progress"


@contextmanager
def only_one(out: Path) -> Iterator[None]:
    """While open, no other process of this machine opens it for the same `out`. Nothing lies on the disk, and a process
    that is killed lets go.

    Raises:
        RunInProgress: one has it open.
    """
    name = hashlib.sha256(os.fsencode(os.path.realpath(out))).hexdigest()
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0eyas-train-{name}")  # no file, but a name that the kernel keeps
        except OSError as error:  # another one than this: not Linux, which alone has such names
            if error.errno == errno.EADDRINUSE:
                raise RunInProgress(
                    f"{out} is being trained already",
                    str(out),
                    "another process of this machine is at it, and both would write the same unfinished run by turns",
                    "let it end, or end it and run this command again; or choose another --out",
                ) from None
        yield
