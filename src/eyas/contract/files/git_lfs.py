"""Git LFS pointers: small text files in place of the weights, until `git lfs pull` downloads them."""

from pathlib import Path

from eyas.errors import EyasError

# Source: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md ("version" is always the first line)
_BEGIN = b"version https://git-lfs"
_LIMIT_BYTES = 1024  # by the spec a pointer is shorter


class GitLfsPointer(EyasError):
    """A file of a clone made without Git LFS: a pointer to the data, not the data."""

    code = "git-lfs-pointer"


def refuse_pointer(head: bytes, where: Path | str) -> None:
    """Raise `GitLfsPointer` where the file `where`, which begins with `head`, is one."""
    if not head.startswith(_BEGIN):
        return
    path = Path(where)
    raise GitLfsPointer(
        f"{path.name} is a Git LFS pointer, not the file itself",
        str(where),
        "the repository was cloned without Git LFS: this file only names the data, which were not downloaded",
        f"git lfs install, then in {path.parent}: git lfs pull (or download the files from the hub)",
    )


def refuse_pointer_file(path: Path) -> None:
    """The same for a file that is not opened otherwise; one that cannot be read is left to its reader."""
    try:
        if path.is_file() and path.stat().st_size < _LIMIT_BYTES:  # opening a FIFO would wait for ever
            with open(path, "rb") as file:
                refuse_pointer(file.read(len(_BEGIN)), path)
    except OSError:
        return
