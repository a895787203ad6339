"""Which files of a folder hold the weights, and what their index promises. An index never leads out of the folder.

An index file comes from a stranger: a name in it may be `../../.ssh/id_rsa`. So names are plain, and links are followed
only inside the folder, into the Hugging Face cache's own `blobs`, to a weight file, or to a file of the
same name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eyas.contract.files.json_file import read_json_object, unreadable
from eyas.errors import EyasError

SAFETENSORS_INDEX = "model.safetensors.index.json"
BIN_INDEX = "pytorch_model.bin.index.json"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.(?:safetensors|bin)$")
# *.bin files that trainers leave beside the weights
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin", "random_states_0.bin", "scaler.bin")


class IndexInvalid(EyasError):
    """A weight index that does not map tensor names to file names."""

    code = "index-invalid"


class PathEscape(EyasError):
    """A weight file that lies outside the checkpoint's folder."""

    code = "path-escape"


class ShardMissing(EyasError):
    """File names say that there are more weight files than the folder has."""

    code = "shard-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFiles:
    """The weight files of a folder.

    Attributes:
        files: plain names, in order.
        weight_map: tensor name -> file name as the index says; None without an index.
        index: name of the index file, None without.
        notes: choices made, one sentence each.
    """

    files: tuple[str, ...] = ()
    weight_map: Mapping[str, str] | None = None
    index: str | None = None
    notes: tuple[str, ...] = ()


def find_weight_files(folder: Path) -> WeightFiles:
    """The weight files of `folder`: indexed or single safetensors first, then `.bin`; none at all is fine.

    Raises:
        ShardMissing: without an index, a file named `…-00001-of-00002…` lacks its companions.
        IndexInvalid, PathEscape, FileUnreadable, JsonInvalid, JsonDuplicateKey, JsonTooLarge.
    """
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file() or entry.is_symlink())
    except OSError as error:
        raise unreadable(folder, str(error)) from None
    bins = [name for name in names if name.endswith(".bin") and name not in _NOT_WEIGHTS]
    if SAFETENSORS_INDEX in names:
        return _indexed(folder, SAFETENSORS_INDEX, names, _both(bins))
    safetensors = [name for name in names if name.endswith(".safetensors")]
    if safetensors:
        return _unindexed(folder, safetensors, _both(bins))
    if BIN_INDEX in names:
        return _indexed(folder, BIN_INDEX, names, ())
    return _unindexed(folder, bins, ())


def safe_path(root: Path, name: str, where: str) -> Path:
    """`root / name`, proven to stay in `root` (or in the Hugging Face cache that `root` is a snapshot of).

    Raises:
        PathEscape: a separator, `..`, an absolute path, or a link that leads out.
    """
    if not name or name in (".", "..") or any(part in name for part in ("/", "\\", "\0")) or not name.isprintable():
        raise _escape(name, where, "it is not a plain file name")
    path = root / name
    try:
        resolved, home = path.resolve(), root.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise _escape(name, where, str(error)) from None
    blobs = home.parent.parent / "blobs"
    if resolved.parent == home or (resolved.parent == blobs and home.parent.name == "snapshots"):
        return path
    # transformers and the engines follow any link, and a link to weights or to a file of that name saves disk space.
    if resolved.is_file() and (resolved.suffix in _WEIGHT_SUFFIXES or resolved.name == name):
        return path
    raise _escape(name, where, f"it is a link to {resolved}, neither a weight file nor of that name")


def _escape(name: str, where: str, why: str) -> PathEscape:
    return PathEscape(
        f"weight file {name[:120]!r} leads out of the checkpoint's folder",
        where,
        why,
        "put the weight files themselves into the folder, or give the file itself",
    )


def _both(bins: list[str]) -> tuple[str, ...]:
    if not bins:
        return ()
    return (f"both safetensors and {', '.join(bins[:3])} are there; eyas and the engines read the safetensors",)


def _unindexed(folder: Path, files: list[str], notes: tuple[str, ...]) -> WeightFiles:
    for name in files:
        safe_path(folder, name, str(folder))
    _require_all_shards(files, str(folder))
    if len(files) > 1:
        notes = (*notes, f"{len(files)} weight files without an index: all of them are read")
    return WeightFiles(files=tuple(files), notes=notes)


def _require_all_shards(files: Sequence[str], where: str) -> None:
    numbered = [found for name in files if (found := _SHARD.search(name))]
    have = {int(found[1]) for found in numbered}
    missing = sorted(set(range(1, max((int(found[2]) for found in numbered), default=0) + 1)) - have)
    if missing:
        raise ShardMissing(
            f"{len(missing)} of {int(numbered[0][2])} weight files are missing",
            where,
            f"{numbered[0].string} is there, but not number {', '.join(map(str, missing[:5]))}; there is no index",
            "download the missing files, and the index that belongs to them",
        )


def _indexed(folder: Path, index: str, names: list[str], notes: tuple[str, ...]) -> WeightFiles:
    where = str(folder / index)
    document = read_json_object(safe_path(folder, index, where))
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(value, str) for value in weight_map.values()):
        raise IndexInvalid(
            "the index has no weight_map from tensor names to file names",
            where,
            f"its keys are {', '.join(map(str, document))[:120] or 'none'}",
            "delete the index if there is one weight file only, or export the checkpoint again",
        )
    files = tuple(sorted(set(weight_map.values())))
    suffix = ".safetensors" if index == SAFETENSORS_INDEX else ".bin"
    for name in files:
        safe_path(folder, name, where)
        if not name.endswith(suffix):
            raise IndexInvalid(
                f"the index names {name[:80]!r}", where, f"weight files end in {suffix}", "fix the index"
            )
    unnamed = [name for name in names if name.endswith(suffix) and name not in files]
    if unnamed:
        notes = (*notes, f"not named by the index and not read: {', '.join(unnamed)[:200]}")
    return WeightFiles(files=files, weight_map=weight_map, index=index, notes=notes)
