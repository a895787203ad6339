"""Write aside, fsync, rename: a reader sees the whole file or folder, or none of it."""

import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from eyas.errors import ExitCode, EyasError


class OutputExists(EyasError):
    """The output is there already and may hold work."""

    code = "output-exists"


class WriteFailed(EyasError):
    """The disk is full, or the folder cannot be written."""

    code = "write-failed"
    exit_code = ExitCode.ENVIRONMENT


def fsync_path(path: str | Path) -> None:
    """Make a file's bytes, or a rename inside a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under `path` only when the block ends well. A link is followed, not replaced.

    Raises:
        WriteFailed: the folder cannot be written, the disk is full, or `path` is a device, a pipe or a folder; partial
            files are removed.
    """
    path = Path(os.path.realpath(path))
    aside: Path | None = None
    try:
        require_ordinary(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _mend_leavings(path)
        descriptor, name = tempfile.mkstemp(prefix=_prefix(path), suffix=".part", dir=path.parent)
        aside = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o666 & ~_umask())
        os.replace(aside, path)
        aside = None
        fsync_path(path.parent)
    except OSError as error:
        raise write_failed(path, error) from error
    finally:
        if aside is not None:
            aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically. What UTF-8 cannot hold (half of a file name's odd byte) is escaped."""
    with atomic_file(path) as file:
        file.write(text.encode(errors="backslashreplace"))


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False, marker: str | None = None) -> Iterator[Path]:
    """A folder that appears under `path` only when the block ends well.

    The block fills the folder it is given (a hidden sibling of `path`); all files in it are fsynced and it is renamed.
    Leavings of a killed run (`.NAME.*.part` of a process that is gone) are removed on the next one.

    Args:
        path: where the folder will stand.
        replace: an existing folder is swapped out whole; otherwise it is an error, even if empty.
        marker: name of the file that shows that an existing folder was written by eyas; one that is neither empty nor
            holds it is not replaced.

    Raises:
        OutputExists: `path` is there and `replace` is off, or it is not a folder of eyas; also when another process
            made it meanwhile.
        WriteFailed: the disk is full or not writable; `path` is as it was.
    """
    path = Path(path)
    aside: Path | None = None
    try:
        _mend_leavings(path)
        require_replaceable(path, replace, marker)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=_prefix(path), suffix=".part", dir=path.parent))
        os.chmod(aside, 0o777 & ~_umask())
        yield aside
        _fsync_tree(aside)
        require_replaceable(path, replace, marker)  # another process may have been faster
        if not os.path.lexists(path):
            os.rename(aside, path)  # fails, and destroys nothing, where a filled folder has appeared just now
        elif not _exchange(aside, path):
            _swap(aside, path)
        fsync_path(path.parent)
    except Exception as error:
        refused = _refused_by_system(error)
        if refused is None:
            raise
        raise write_failed(path, refused) from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def _refused_by_system(error: Exception) -> OSError | None:
    """The `OSError` that `error` is, or that safetensors made of it: it has an error of its own for a full disk."""
    if isinstance(error, OSError):
        return error
    number = re.search(r"\(os error (\d+)\)", str(error)) if type(error).__name__ == "SafetensorError" else None
    return number and OSError(int(number[1]), os.strerror(int(number[1])))


def require_replaceable(path: Path, replace: bool, marker: str | None) -> None:
    if not os.path.lexists(path):
        return
    why = "writing into it could overwrite other work"
    if replace:
        if path.is_symlink() or not path.is_dir():
            why = "it is not a folder: a file or a link is not replaced"
        elif marker is None or not any(path.iterdir()) or (path / marker).exists():
            return
        else:
            why = f"eyas did not write it (there is no {marker} in it): it is not replaced"
    raise OutputExists(f"{path} is there already", str(path), why, "choose another folder, or delete this one")


def require_ordinary(path: Path) -> None:
    """Raise `WriteFailed` where `path` is a folder, a device or a pipe, or its folder cannot be written: before
    hours of work, not after."""
    path = Path(os.path.realpath(path))  # a link is followed, also one to a file that is still to come
    if os.path.exists(path) and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or a pipe"
        raise WriteFailed(f"cannot write {path}", str(path), f"it is {kind}, not a file", "name a file")
    require_place(path, path.parent)


def require_place(path: Path, folder: Path, do: str = "choose another folder") -> None:
    """Raise `WriteFailed` for `path` where its name is too long, or `folder` cannot be made or written; nothing is
    made."""
    try:
        os.lstat(path.parent / f"{_prefix(path)}12345678.part")  # as `tempfile` will name what is written aside
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except OSError as error:
        raise write_failed(path, OSError(error.errno, error.strerror)) from error
    at = next(found for found in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(found))
    if not (at.is_dir() and os.access(at, os.W_OK | os.X_OK)):
        why = "it is not a folder" if not at.is_dir() else "it is not writable"
        raise WriteFailed(f"cannot write {path}", str(at), why, do)


def _exchange(aside: Path, path: Path) -> bool:
    """Swap two folders in one step (Linux); False where the system or the file system cannot."""
    import ctypes  # 10 ms that only a replacement costs

    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of linux/fs.h
    return rename is not None and rename(here, os.fsencode(aside), here, os.fsencode(path), exchange) == 0


def _swap(aside: Path, path: Path) -> None:
    """The same in two steps; if interrupted between them, the old folder is put back."""
    old = Path(tempfile.mkdtemp(prefix=_prefix(path), suffix=".old.part", dir=path.parent))
    try:
        os.rename(path, old / "old")
        os.rename(aside, path)
    finally:
        if not os.path.lexists(path):
            os.rename(old / "old", path)
        shutil.rmtree(old, ignore_errors=True)


def write_failed(path: Path, error: OSError) -> WriteFailed:
    """The `WriteFailed` that an `OSError` under `path` means to the user."""
    return WriteFailed(
        f"cannot write {path}",
        str(error.filename or path),
        f"{error.strerror or error}; no partial files were left",
        "free some space or choose another folder, then run the same command again",
    )


def _fsync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for path in (*(os.path.join(root, name) for name in names), root):
            fsync_path(path)


def _prefix(path: Path) -> str:
    return f".{path.name}.{os.getpid()}-{_pid_space()}."


def _pid_space() -> str:
    """This machine's space of process numbers: another container may use the same number for another process."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _mend_leavings(path: Path) -> None:
    """Remove what killed runs left beside `path`; a folder that one of them had moved away is put back first."""
    for leaving in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        pid, _, space = leaving.name.removeprefix(f".{path.name}.").split(".")[0].partition("-")
        if not (pid.isascii() and pid.isdigit()) or space not in ("", _pid_space()) or Path(f"/proc/{pid}").exists():
            continue
        if leaving.is_dir():
            if (leaving / "old").exists() and leaving.name.endswith(".old.part") and not os.path.lexists(path):
                os.rename(leaving / "old", path)
            shutil.rmtree(leaving, ignore_errors=True)
        else:
            leaving.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
