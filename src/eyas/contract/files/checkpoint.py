"""A checkpoint as its headers show it: tensor names, shapes, dtypes, config, integer maps. No weights, no torch.

A `Checkpoint` comes from a folder, a single file or a header dump (`eyas header`); everything else in `contract` works
on this object and never on files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

# bits per element, by safetensors dtype name
DTYPE_BITS: Mapping[str, int] = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
# bytes per element of those that fill whole bytes
DTYPE_BYTES: Mapping[str, int] = {name: bits // 8 for name, bits in DTYPE_BITS.items() if bits % 8 == 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor's header entry.

    Attributes:
        dtype: safetensors dtype name, such as "BF16".
        shape: sizes, outermost first.
        file: name of the file that holds it, relative to the checkpoint; None for a header dump.
        begin, end: absolute byte range in that file; None where the format or a dump does not tell.
        record: for a `.bin` tensor whose bytes do not lie in one run (a strided view): why; None otherwise.
    """

    dtype: str
    shape: tuple[int, ...]
    file: str | None = None
    begin: int | None = None
    end: int | None = None
    record: str | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the data."""
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class IntMap:
    """A `d2t` or `t2d` tensor: values when they were read, or the summary that a header dump carries.

    Attributes:
        values: all values (an `array`, not a tuple: a map has up to 200 000), or None when only the summary is known.
        length: number of entries.
        minimum, maximum: extreme values (0 and 1 for a mask; 0 and 0 when empty).
        num_true: number of non-zero entries (t2d: the draft vocabulary's size).
        is_strictly_increasing: of the values themselves.
        ids_strictly_increasing: of the target ids, `i + values[i]`: true for sorted, distinct offsets (and any mask).
        ids_minimum, ids_maximum: extremes of the target ids: of `i + values[i]`, or where a mask is true.
        digest: fingerprint of the set of target ids when read as offsets (d2t) or as a mask (t2d); equal if they agree.
        digest_absolute: the same with d2t read as absolute ids (a mask: the same as `digest`).
    """

    values: Sequence[int] | None = field(repr=False)
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
    """A draft or target as its config and tensor headers describe it.

    Attributes:
        where: the folder, file or dump it was read from, as the user gave it.
        kind: how it was given.
        config: config.json as it stands ({} if there was none).
        tensors: name as stored -> header entry (empty for a bare config.json).
        int_maps: name as stored -> d2t / t2d contents.
        files: names of the weight files, in order.
        metadata: `__metadata__` of the (first) safetensors header.
        extra: other small JSON files beside the weights that decide something, by name
            (hf_quant_config.json, generation_config.json, eyas.json, and the deciding keys of tokenizer_config.json).
        root: folder that holds `files`, None for a dump.
        hashes: fingerprints of tokenizer and chat template files, by file name; the template itself as "chat_template",
            and in a dump what the ids of tokenizer.json mean as "tokenizer" (`tokenizer_print`).
        notes: what was guessed or passed over while reading, one sentence each.
    """

    where: str
    kind: Literal["folder", "file", "dump"]
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo] = field(repr=False)
    int_maps: Mapping[str, IntMap] = field(default_factory=dict, repr=False)
    files: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    root: Path | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
