"""Where a target keeps its embedding: the one tensor that some formats want copied into the draft."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eyas.contract.files.checkpoint import TensorInfo
from eyas.contract.files.safetensors_header import read_safetensors_header
from eyas.contract.files.torch_bin_header import read_torch_bin_header
from eyas.contract.files.weight_files import find_weight_files, safe_path

_ENDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
_OTHER_TOWERS = ("visual", "vision", "audio", "image", "speech")
_FLOATS = ("BF16", "F16", "F32")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEmbedding:
    """The embedding table in the target's files: `info.file`, `begin`, `end` are set."""

    root: Path
    name: str
    info: TensorInfo


def find_target_embedding(folder: Path, shape: tuple[int, int]) -> TargetEmbedding | str:
    """The target's embedding of `shape` [V, H], or the reason why there is none to copy, as a sentence.

    Only the header of the shard that holds it is read.

    Raises:
        what the readers of index and headers raise, when the files are damaged.
    """
    if not folder.is_dir():
        return "the target was given without its weights"
    found = find_weight_files(folder)
    if not found.files:
        return "the target's folder has no weights"
    candidates = _candidates(found.weight_map) if found.weight_map is not None else None
    files = sorted({found.weight_map[name] for name in candidates}) if candidates and found.weight_map else found.files
    seen: list[str] = []
    for file in files:
        path = safe_path(folder, file, str(folder))
        tensors = (
            read_safetensors_header(path).tensors if path.suffix == ".safetensors" else read_torch_bin_header(path)
        )
        for name in _candidates(tensors):
            info = tensors[name]
            if info.shape == shape and info.dtype in _FLOATS and info.begin is not None:
                return TargetEmbedding(root=folder, name=name, info=info)
            seen.append(f"{name} {info.dtype} {list(info.shape)}")
    return f"the target has no embedding of the shape {list(shape)}" + (
        f" (it has {', '.join(seen[:3])})" if seen else ""
    )


def _candidates(names: Iterable[str]) -> list[str]:
    return [
        name for name in names if name.endswith(_ENDINGS) and not any(tower in name.lower() for tower in _OTHER_TOWERS)
    ]
