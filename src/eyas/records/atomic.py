"""Write aside, fsync, rename: a reader sees the whole file or folder, or none of it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from eyas.errors import EyasError


class OutputExists(EyasError):
    """The output is there already and may hold somebody's work."""

    code = "output-exists"


class WriteFailed(EyasError):
    """The disk is full, or the folder cannot be written."""

    code = "write-failed"


def fsync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under `path` only when the block ends well.

    Raises:
        WriteFailed: the folder cannot be written or the disk is full; nothing is left behind.
    """
    path = Path(path)
    aside: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        aside = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o666 & ~_umask())
        os.replace(aside, path)
        aside = None
        fsync_folder(path.parent)
    except OSError as error:
        raise write_failed(path, error) from error
    finally:
        if aside is not None:
            aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_file(path) as file:
        file.write(text.encode())


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A folder that appears under `path` only when the block ends well.

    The block fills the folder it is given (a hidden sibling of `path`); all files in it are fsynced and it is renamed.
    Leavings of a killed run (`.NAME.*.part` of a process that is gone) are removed on the next one.

    Args:
        path: where the folder will stand.
        replace: an existing folder is swapped out whole; otherwise it is an error, even if empty.

    Raises:
        OutputExists: `path` is there and `replace` is off.
        WriteFailed: the disk is full or not writable; `path` is as it was.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise OutputExists(
            f"{path} is there already",
            str(path),
            "writing into it could destroy or mix work",
            "choose another folder, or delete this one",
        )
    aside: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leavings(path)
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.{os.getpid()}.", suffix=".part", dir=path.parent))
        os.chmod(aside, 0o777 & ~_umask())
        yield aside
        _fsync_tree(aside)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.{os.getpid()}.", suffix=".old.part", dir=path.parent))
            os.replace(path, old / "old")
            os.replace(aside, path)
            shutil.rmtree(old)
        else:
            os.replace(aside, path)
        aside = None
        fsync_folder(path.parent)
    except OSError as error:
        raise write_failed(path, error) from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def write_failed(path: Path, error: OSError) -> WriteFailed:
    """The `WriteFailed` that an `OSError` under `path` means to the user."""
    return WriteFailed(
        f"cannot write {path}",
        str(error.filename or path),
        f"{error.strerror or error}; nothing was left half-written",
        "free some space or choose another folder, then run the same command again",
    )


def _fsync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        fsync_folder(Path(root))


def _remove_leavings(path: Path) -> None:
    for leaving in path.parent.glob(f".{path.name}.*.part"):
        pid = leaving.name.removeprefix(f".{path.name}.").split(".")[0]
        if leaving.is_dir() and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(leaving, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
