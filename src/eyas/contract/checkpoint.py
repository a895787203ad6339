"""A checkpoint as its headers show it: tensor names, shapes, dtypes, config, integer maps. No weights, no torch.

A `Checkpoint` comes from a folder, a single file or a header dump (`eyas header`); everything else in `contract` works
on this object and never on files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

# bytes per element, by safetensors dtype name
DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor's header entry.

    Attributes:
        dtype: safetensors dtype name, such as "BF16".
        shape: sizes, outermost first.
        file: name of the file that holds it, relative to the checkpoint; None for a header dump.
        begin, end: absolute byte range in that file; None where the format or a dump does not tell.
    """

    dtype: str
    shape: tuple[int, ...]
    file: str | None = None
    begin: int | None = None
    end: int | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the data."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntMap:
    """A `d2t` or `t2d` tensor: values when they were read, or the summary that a header dump carries.

    Attributes:
        values: all values, or None when only the summary is known.
        length: number of entries.
        minimum, maximum: extreme values (0 and 1 for a mask).
        num_true: number of non-zero entries (t2d: the draft vocabulary's size).
        is_strictly_increasing: of the values themselves.
        ids_strictly_increasing: of `i + values[i]`: true for sorted, distinct offsets.
        ids_minimum, ids_maximum: extremes of `i + values[i]`.
        digest: fingerprint of the target ids when read as offsets (d2t) or as a mask (t2d); equal if they agree.
        digest_absolute: the same with d2t read as absolute ids.
    """

    values: tuple[int, ...] | None
    length: int
    minimum: int
    maximum: int
    num_true: int
    is_strictly_increasing: bool
    ids_strictly_increasing: bool
    ids_minimum: int
    ids_maximum: int
    digest: str
    digest_absolute: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a draft or target is made of, as far as headers tell.

    Attributes:
        where: the folder, file or dump it was read from, as the user gave it.
        kind: how it was given.
        config: config.json as it stands ({} if there was none).
        tensors: name as stored -> header entry (empty for a bare config.json).
        int_maps: name as stored -> d2t / t2d contents.
        files: names of the weight files, in order.
        metadata: `__metadata__` of the (first) safetensors header.
        extra: other small JSON files beside the weights that decide something, by name
            (hf_quant_config.json, tokenizer_config.json, generation_config.json, eyas.json ...).
        root: folder that holds `files`, None for a dump.
        hashes: fingerprints of tokenizer and chat template files, by file name.
    """

    where: str
    kind: Literal["folder", "file", "dump"]
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    int_maps: Mapping[str, IntMap] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    root: Path | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
