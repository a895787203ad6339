"""`save_draft`: an `Eagle3Draft` as a folder in the first format that can hold it; atomic.

SGLang's comes first: SGLang, vLLM and eyas read it. What it cannot hold goes into vLLM's or speculators'.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eyas import __version__
from eyas.contract.convert.sidecar import NAME, SCHEMA, contract_document
from eyas.contract.dialects.dialect import Dialect, Written
from eyas.contract.dialects.sglang import SGLANG
from eyas.contract.dialects.speculators import SPECULATORS
from eyas.contract.dialects.vllm import VLLM
from eyas.contract.files.checkpoint import TensorInfo
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Diagnostic
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
    """No format can hold all of the draft's switches."""

    code = "draft-unwritable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The format that a draft is saved in.

    Attributes:
        written: the draft in its words.
        passed_over: what the formats before it could not hold, one sentence each.
    """

    dialect: Dialect
    written: Written
    passed_over: tuple[str, ...]


def choose_dialect(spec: DraftSpec, target_spec: TargetSpec | None, *, where: str) -> Choice:
    """The first of SGLang's, vLLM's and speculators' format that can hold the draft without a loss.

    Args:
        where: for the message.

    Raises:
        DraftUnwritable: none of them can.
    """
    passed_over: list[str] = []
    first: Diagnostic | None = None
    for dialect in _order(spec):
        written = dialect.write(spec, target_spec)
        if not written.losses:
            return Choice(dialect=dialect, written=written, passed_over=tuple(passed_over))
        passed_over.append(written.losses[0].what)
        first = first or written.losses[0]
    assert first is not None, "there are dialects"
    raise DraftUnwritable(
        "no format can hold the draft",
        f"{where}: {first.where} = {getattr(spec, first.where, '?')}",
        "; ".join(passed_over),
        "make a draft without one of these switches",
    )


def _order(spec: DraftSpec) -> tuple[Dialect, ...]:
    """SGLang reads the target's embedding over a draft's own of the same width: vLLM's format does not pretend."""
    if spec.embedding == "own" and spec.hidden_size == spec.target_hidden_size:
        return VLLM, SPECULATORS, SGLANG
    return SGLANG, VLLM, SPECULATORS


def save_draft(
    draft: Eagle3Draft,
    folder: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    target_spec: TargetSpec | None = None,
    about: Mapping[str, Any] | None = None,
    replace_existing: bool = False,
) -> str:
    """Write the draft: `config.json`, `model.safetensors`, `eyas.json` (switches, target identity, `about`).

    A shared embedding or head is not written: the target has it.

    Args:
        draft: what to write; it is not changed.
        folder: appears only when everything is on disk.
        dtype: of the weights on disk; maps keep theirs.
        target_spec: the target it is for: decides how layer ids are written, and is named in `eyas.json`.
        about: what else a reader should know (training data's fingerprint, steps ...); JSON-able.
        replace_existing: swap out a folder that is there.

    Returns:
        Name of the format, see `choose_dialect`.

    Raises:
        OutputExists: the folder is there and `replace_existing` is off.
        DraftUnwritable: no format can hold the draft.
        WriteFailed: the disk.
    """
    tensors = {name: _to_disk(tensor, dtype) for name, tensor in draft.state_dict().items()}
    spec = replace(draft.spec, tensors={name: _info(tensor) for name, tensor in tensors.items()})
    choice = choose_dialect(spec, target_spec, where=str(folder))
    written = choice.written
    stored = {written.names[name]: tensor for name, tensor in tensors.items() if name in written.names}
    for name in (name for name, origin in written.derived.items() if origin == "zeros"):
        stored[written.names[name]] = torch.zeros(spec.hidden_size, dtype=dtype)
    sidecar = {
        "schema": SCHEMA,
        "eyas_version": __version__,
        "dialect": choice.dialect.name,
        "config_fingerprint": of_json(written.config),
        "contract": contract_document(spec),
        "target": target_spec.as_document() if target_spec else spec.target,
        "about": dict(about or {}),
    }
    with atomic_folder(folder, replace=replace_existing, marker=NAME) as aside:
        save_file(stored, aside / WEIGHTS, metadata={"format": "pt"})
        (aside / "config.json").write_text(_json(written.config), encoding="utf-8")
        (aside / NAME).write_text(_json(sidecar), encoding="utf-8")
    return choice.dialect.name


def _to_disk(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    tensor = tensor.detach().cpu()
    return (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()


def _info(tensor: Tensor) -> TensorInfo:
    return TensorInfo(dtype=_DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape))


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
