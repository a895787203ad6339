"""Applies a plan: written aside in slices, audited by reading it back, renamed once everything is proven."""

import json
import os
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from eyas.contract.convert.conversion import AuditFailed, ConversionPlan, PlannedTensor, SourceRange
from eyas.contract.convert.sidecar import NAME, sidecar_document
from eyas.contract.convert.tensor_bytes import checksum_range, compare_ranges, open_source, sample_range, view_slices
from eyas.contract.convert.write_safetensors import write_safetensors
from eyas.contract.convert.write_torch_bin import write_torch_bin
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.records.atomic import OutputExists, atomic_folder, write_failed, write_text
from eyas.records.fingerprint import of_json
from eyas.talk import Talk

WEIGHTS = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What was written.

    Attributes:
        out: the folder.
        num_bytes: of tensor data.
        samples: stored name -> fingerprint of three samples of its data, read back.
        fingerprint: of all tensors under canonical names: equal for the same draft in any format.
    """

    out: Path
    num_bytes: int
    samples: Mapping[str, str]
    fingerprint: str


def apply_conversion(plan: ConversionPlan, out: Path, talk: Talk, *, replace: bool = False) -> Converted:
    """Write the draft that `plan` describes to the folder `out`.

    Memory stays below two slices. Each tensor is compared with its source, byte by byte, as soon as it is written;
    at the end headers and config are read again. Nothing stands under `out` before that.

    Raises:
        OutputExists: `out` is there and `replace` is off, or it was not written by eyas, or a source lies in it.
        WriteFailed: the disk is full or not writable.
        SourceChanged: the source ended early.
        AuditFailed: what was read back differs.
    """
    weights = WEIGHTS[plan.container]
    _refuse_own_source(plan, out)
    with atomic_folder(out, replace=replace, marker=NAME) as folder:
        samples = _write_weights(plan, folder / weights, talk)
        _write_json(folder / "config.json", plan.config)
        for name, document in plan.side_files.items():
            _write_json(folder / name, document)
        sidecar = sidecar_document(plan, samples)
        _write_json(folder / NAME, sidecar)
        audit_headers(plan, folder)
    return Converted(
        out=out, num_bytes=plan.num_bytes, samples=samples, fingerprint=str(sidecar["tensors_fingerprint"])
    )


def _refuse_own_source(plan: ConversionPlan, out: Path) -> None:
    for path in {t.source.path for t in plan.tensors if not isinstance(t.source, bytes)}:
        if os.path.exists(out) and path.resolve().is_relative_to(out.resolve()):
            raise OutputExists(
                f"{out} is there already, and holds the source {path.name}",
                str(out),
                "replacing it would delete the source",
                "choose another folder",
            )


def _write_weights(plan: ConversionPlan, path: Path, talk: Talk) -> dict[str, str]:
    audits: dict[str, Future[TensorAudit]] = {}
    is_bin = plan.container == "bin"
    # one thread compares what is written while the kernel copies the next tensor
    with (
        talk.progress("convert", plan.num_bytes / 1e6, "MB") as progress,
        ThreadPoolExecutor(max_workers=1, thread_name_prefix="eyas-audit") as pool,
    ):

        def wrote(tensor: PlannedTensor, at: int) -> Callable[[], int]:
            audit = pool.submit(audit_tensor, tensor, path, at, with_checksum=is_bin)
            audits[tensor.name] = audit
            progress.advance(tensor.num_bytes / 1e6)
            return lambda: audit.result().crc32

        (write_torch_bin if is_bin else write_safetensors)(path, plan.tensors, wrote)
        return {name: audit.result().sample for name, audit in audits.items()}


def _write_json(path: Path, document: object) -> None:
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def free_bytes_missing(plan: ConversionPlan, out: Path) -> int:
    """Bytes that the disk under `out` lacks for the plan; 0 when there is room."""
    try:
        folder = out.absolute().parent
        while not os.path.exists(folder):
            folder = folder.parent
        stat = os.statvfs(folder)
    except OSError as error:  # the working directory is gone
        raise write_failed(out, error) from error
    return max(0, plan.num_bytes + (1 << 20) - stat.f_bavail * stat.f_frsize)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorAudit:
    """What reading one written tensor again gave.

    Attributes:
        sample: fingerprint of three samples of its data.
        crc32: of all of it; 0 unless it was asked for.
    """

    sample: str
    crc32: int


def audit_tensor(tensor: PlannedTensor, path: Path, at: int, *, with_checksum: bool = False) -> TensorAudit:
    """Prove that the data at offset `at` of the file `path` are those of the tensor's source, byte by byte.

    Args:
        with_checksum: also give the CRC-32, which a zip wants.

    Raises:
        AuditFailed: they differ.
    """
    written = os.open(path, os.O_RDONLY)
    try:
        if isinstance(tensor.source, SourceRange):
            source, length = open_source(tensor.source.path), tensor.num_bytes
            try:
                same, checksum = compare_ranges(
                    source, tensor.source.begin, written, at, length, with_checksum=with_checksum
                )
            finally:
                os.close(source)
        else:
            wanted = 0
            for part in [tensor.source] if isinstance(tensor.source, bytes) else view_slices(tensor.source):
                wanted = zlib.crc32(part, wanted)
            checksum = checksum_range(written, at, tensor.num_bytes)
            same = checksum == wanted
        sample = sample_range(written, at, tensor.num_bytes)
    finally:
        os.close(written)
    if not same:
        raise AuditFailed(
            f"{tensor.name} does not read back as it was written",
            str(path),
            f"its data at byte {at} differ from {tensor.origin}",
            "run the command again; if it happens twice, check the disk or report it",
        )
    return TensorAudit(sample=sample, crc32=checksum)


def audit_headers(plan: ConversionPlan, folder: Path) -> None:
    """Prove that `folder`, read like any checkpoint, holds the planned tensors and config.

    Raises:
        AuditFailed: it does not.
    """
    found = read_checkpoint(folder)
    wanted = {tensor.name: (tensor.dtype, tensor.shape) for tensor in plan.tensors}
    got = {name: (info.dtype, info.shape) for name, info in found.tensors.items()}
    if got != wanted or of_json(found.config) != of_json(plan.config):
        differing = sorted(set(got.items()) ^ set(wanted.items()))[:3]
        raise AuditFailed(
            "what was written does not read back as planned",
            str(folder),
            f"differing: {differing or 'config.json'}",
            "this is a bug in eyas; please report it with `eyas header` of the source",
        )
