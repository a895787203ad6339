"""A target as a `Checkpoint` without opening its weights: config.json and the small files beside it."""

from pathlib import Path

from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.files.json_file import read_json_object
from eyas.contract.files.read_checkpoint import CheckpointNotFound, read_checkpoint
from eyas.contract.files.side_files import read_side_files


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
