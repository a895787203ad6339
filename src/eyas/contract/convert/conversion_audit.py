"""The proof that a conversion wrote what was planned: data compared with their source, headers and config re-read."""

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from eyas.contract.convert.conversion import AuditFailed, ConversionPlan, PlannedTensor, SourceRange
from eyas.contract.convert.copy_bytes import checksum_range, compare_ranges, sample_range
from eyas.contract.convert.write_tensor import open_source, view_slices
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.records.fingerprint import of_json


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
            f"{tensor.name} does not read back as it was",
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
