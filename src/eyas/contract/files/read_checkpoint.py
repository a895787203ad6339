"""`read_checkpoint`: a folder, a file, a bare config.json or a header dump, as one `Checkpoint`. Headers only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from eyas.contract.files.checkpoint import Checkpoint, IntMap, TensorInfo
from eyas.contract.files.header_dump import SCHEMA, checkpoint_of_dump
from eyas.contract.files.int_map import int_map_of_bytes, map_kind, map_problem
from eyas.contract.files.json_file import read_json_object, unreadable
from eyas.contract.files.safetensors_header import read_safetensors_header
from eyas.contract.files.side_files import read_side_files
from eyas.contract.files.weight_files import WeightFiles, find_weight_files, safe_path
from eyas.errors import EyasError


class CheckpointNotFound(EyasError):
    """There is nothing under the given path."""

    code = "checkpoint-not-found"


class CheckpointEmpty(EyasError):
    """A folder with neither weights nor a config.json, or a file of another kind."""

    code = "checkpoint-empty"


class TensorTwice(EyasError):
    """The same tensor in two weight files."""

    code = "tensor-twice"


class IndexedTensorMissing(EyasError):
    """The index names a tensor that its file does not hold, or not in that file."""

    code = "indexed-tensor-missing"


def read_checkpoint(path: Path) -> Checkpoint:
    """What the headers under `path` tell. No weights are read, except the integer maps d2t and t2d.

    Args:
        path: a folder (sharded or single, safetensors or .bin; or with a config.json only), one .safetensors or .bin
            file (config.json beside it is read), a config.json, a header dump of `eyas header`, or the bare JSON
            header of a safetensors file.

    Raises:
        CheckpointNotFound, CheckpointEmpty: nothing readable there.
        TensorTwice, IndexedTensorMissing: files and index disagree.
        and what the readers of the single files raise (docs/errors.md).
    """
    path = Path(path)
    require_checkpoint(path)
    if path.is_dir():
        return _read(path, str(path), "folder", find_weight_files(path))
    if path.suffix in (".safetensors", ".bin", ".pt", ".pth"):
        return _read(path.parent, str(path), "file", WeightFiles(files=(path.name,)), checked=False)
    if path.suffix == ".json":
        return _read_json_file(path)
    raise CheckpointEmpty(
        f"{path.name} is not a checkpoint",
        str(path),
        "a file must be .safetensors, .bin, a config.json or a header dump",
        "give the checkpoint's folder",
    )


def require_checkpoint(path: Path) -> None:
    """Raise `CheckpointNotFound` if nothing is there: a mistyped path is reported before any long work."""
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise unreadable(path, str(error)) from None
    if not exists:
        raise CheckpointNotFound(
            f"no checkpoint at {path}", str(path), "there is no such file or folder", "check the path"
        )


def _read_json_file(path: Path) -> Checkpoint:
    document = read_json_object(path)
    if str(document.get("schema", "")).startswith("eyas."):
        return checkpoint_of_dump(document, str(path))
    if _is_raw_header(document):
        return _of_raw_header(document, path)
    if document.get("schema") is not None or not document:
        raise CheckpointEmpty(
            f"{path.name} is neither a config.json nor a header dump",
            str(path),
            f"a dump has schema {SCHEMA!r}",
            "give a checkpoint folder, its config.json, or the output of `eyas header`",
        )
    side = read_side_files(path.parent)
    return Checkpoint(
        where=str(path),
        kind="file",
        config=document,
        tensors={},
        root=path.parent,
        extra=side.extra,
        hashes=side.hashes,
    )


def _is_raw_header(document: Mapping[str, Any]) -> bool:
    entries = [value for name, value in document.items() if name != "__metadata__"]
    return bool(entries) and all(isinstance(e, Mapping) and {"dtype", "shape"} <= e.keys() for e in entries)


def _of_raw_header(document: Mapping[str, Any], path: Path) -> Checkpoint:
    """The JSON header of a safetensors file, saved alone (as a hub's page shows it); config.json may lie beside it."""
    names = [name for name in document if name != "__metadata__"]
    tensors = {n: {"dtype": document[n]["dtype"], "shape": document[n]["shape"], "file": None} for n in names}
    config = path.with_name("config.json")
    found = read_json_object(config) if config.is_file() else {}
    return checkpoint_of_dump({"schema": SCHEMA, "config": found, "tensors": tensors}, str(path))


def _read(
    root: Path, where: str, kind: Literal["folder", "file"], found: WeightFiles, *, checked: bool = True
) -> Checkpoint:
    config_path = root / "config.json"
    config = read_json_object(config_path) if config_path.exists() else {}
    if not found.files and not config:
        raise CheckpointEmpty(
            f"{root} does not hold a checkpoint",
            str(root),
            "it has neither config.json nor *.safetensors nor *.bin",
            "give the folder that holds config.json and the weights",
        )
    tensors: dict[str, TensorInfo] = {}
    metadata: Mapping[str, str] = {}
    for name in found.files:
        file_path = safe_path(root, name, where) if checked else root / name
        tensors_here, metadata_here = _read_header(file_path)
        metadata = metadata or metadata_here
        _add(tensors, tensors_here, where)
    _check_index(found, tensors, where)
    side = read_side_files(root)
    return Checkpoint(
        where=where,
        kind=kind,
        config=config,
        tensors=tensors,
        int_maps=read_maps(root, tensors),
        files=found.files,
        metadata=metadata,
        extra=side.extra,
        root=root,
        hashes=side.hashes,
        notes=found.notes,
    )


def _read_header(path: Path) -> tuple[Mapping[str, TensorInfo], Mapping[str, str]]:
    if path.suffix == ".safetensors":
        header = read_safetensors_header(path)
        return header.tensors, header.metadata
    from eyas.contract.files.torch_bin_header import read_torch_bin_header  # pickletools costs every start 15 ms

    return read_torch_bin_header(path), {}


def _add(tensors: dict[str, TensorInfo], more: Mapping[str, TensorInfo], where: str) -> None:
    for name, info in more.items():
        if name in tensors:
            raise TensorTwice(
                f"tensor {name!r} is in two files",
                where,
                f"in {tensors[name].file} and in {info.file}; which of them counts depends on the reader",
                "remove the file that does not belong to this checkpoint",
            )
        tensors[name] = info


def _check_index(found: WeightFiles, tensors: Mapping[str, TensorInfo], where: str) -> None:
    for name, file in (found.weight_map or {}).items():
        info = tensors.get(name)
        if info is None or info.file != file:
            raise IndexedTensorMissing(
                f"tensor {name[:80]!r} is not in {file}",
                f"{where}: {found.index}",
                "the index says it is there" + (f"; it is in {info.file}" if info else "; no file has it"),
                "download the shards again: index and files do not belong together",
            )
    for name, info in tensors.items():
        if found.weight_map is not None and name not in found.weight_map:
            raise IndexedTensorMissing(
                f"tensor {name!r} of {info.file} is not in the index",
                f"{where}: {found.index}",
                "readers that go by the index miss it, readers that go by the files load it",
                "export the checkpoint again: index and files do not belong together",
            )


def read_maps(root: Path, tensors: Mapping[str, TensorInfo]) -> dict[str, IntMap]:
    """The d2t and t2d among `tensors`, whose files lie in `root`; one that cannot be read as a map is left out.

    Raises:
        FileUnreadable.
    """
    maps: dict[str, IntMap] = {}
    for name, info in tensors.items():
        kind = map_kind(name)
        if kind is None:
            continue
        if map_problem(info.dtype, info.shape) or info.begin is None or info.end is None or info.file is None:
            continue  # not a map, or a strided view in a .bin: `map_findings` says so
        maps[name] = int_map_of_bytes(_bytes_of(root / info.file, info), info.dtype, is_mask=kind == "t2d")
    return maps


def _bytes_of(path: Path, info: TensorInfo) -> bytes:
    assert info.begin is not None, "the caller looked"
    assert info.end is not None, "the caller looked"
    try:
        with open(path, "rb") as file:
            file.seek(info.begin)
            return file.read(info.end - info.begin)
    except OSError as error:
        raise unreadable(path, str(error)) from None


def read_target_checkpoint(path: Path, *, weights: bool = False) -> Checkpoint:
    """The target under `path`: a folder with config.json, a config.json, or a header dump.

    Args:
        weights: read the weight headers too, where there are weights (`check --deep` compares rows).

    Raises:
        CheckpointNotFound: a folder without config.json; and what `read_checkpoint` raises.
    """
    path = Path(path)
    if not path.is_dir() or (weights and any(path.glob("*.safetensors"))):
        return read_checkpoint(path)
    if not (path / "config.json").is_file():
        raise CheckpointNotFound(
            f"no config.json in {path}",
            str(path),
            "a target is known by its config.json",
            "give the target's folder, its config.json, or a header dump of it",
        )
    side = read_side_files(path)
    config = read_json_object(path / "config.json")
    return Checkpoint(
        where=str(path), kind="folder", config=config, tensors={}, extra=side.extra, root=path, hashes=side.hashes
    )
