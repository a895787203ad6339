"""`save_draft`: an `Eagle3Draft` as a folder in SGLang's format, which SGLang, vLLM and eyas read; atomic."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eyas import __version__
from eyas.contract.checkpoint import TensorInfo
from eyas.contract.dialects.sglang import SGLANG
from eyas.contract.sidecar import NAME, SCHEMA, contract_document
from eyas.contract.target_spec import TargetSpec
from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft
from eyas.records.atomic import atomic_folder
from eyas.records.fingerprint import of_json

WEIGHTS = "model.safetensors"
_DTYPE_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.bool: "BOOL",
}


class DraftUnwritable(EyasError):
    """SGLang's format cannot hold one of the draft's switches."""

    code = "draft-unwritable"


def save_draft(
    draft: Eagle3Draft,
    folder: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    target_spec: TargetSpec | None = None,
    about: Mapping[str, Any] | None = None,
    replace_existing: bool = False,
) -> None:
    """Write the draft: `config.json`, `model.safetensors`, `eyas.json` (switches, target identity, `about`).

    A shared embedding or head is not written: the target has it.

    Args:
        draft: what to write; it is not changed.
        folder: appears only when everything is on disk.
        dtype: of the weights on disk; maps keep theirs.
        target_spec: the target it is for: decides how layer ids are written, and is named in `eyas.json`.
        about: what else a reader should know (training data's fingerprint, steps ...); JSON-able.
        replace_existing: swap out a folder that is there.

    Raises:
        OutputExists: the folder is there and `replace_existing` is off.
        DraftUnwritable: the format cannot hold the draft.
        WriteFailed: the disk.
    """
    tensors = {name: _to_disk(tensor, dtype) for name, tensor in draft.state_dict().items()}
    spec = replace(draft.spec, tensors={name: _info(tensor) for name, tensor in tensors.items()})
    assert SGLANG.write is not None, "SGLang's format can be written"
    written = SGLANG.write(spec, target_spec)
    if written.losses:
        raise DraftUnwritable(
            written.losses[0].what,
            str(folder),
            f"the draft has {written.losses[0].switch} = {getattr(spec, written.losses[0].switch, '?')}",
            "train a draft without it, or save it in another format with `eyas convert`",
        )
    stored = {written.names[name]: tensor for name, tensor in tensors.items() if name in written.names}
    sidecar = {
        "schema": SCHEMA,
        "eyas_version": __version__,
        "dialect": SGLANG.name,
        "config_fingerprint": of_json(written.config),
        "contract": contract_document(spec),
        "target": target_spec.as_document() if target_spec else spec.target,
        "about": dict(about or {}),
    }
    with atomic_folder(folder, replace=replace_existing, marker=NAME) as aside:
        save_file(stored, aside / WEIGHTS, metadata={"format": "pt"})
        (aside / "config.json").write_text(_json(written.config))
        (aside / NAME).write_text(_json(sidecar))


def _to_disk(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    tensor = tensor.detach().cpu()
    return (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()


def _info(tensor: Tensor) -> TensorInfo:
    return TensorInfo(dtype=_DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape))


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
