"""What a conversion is: the plan as data, and the ways to be refused. Nothing is read or written here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eyas.contract.spec.draft_spec import DraftReading
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Diagnostic
from eyas.errors import ExitCode, EyasError

Fix = Literal["d2t-absolute"]
"""Codes of findings that a conversion can repair."""


class ConversionRefused(EyasError):
    """The goal format cannot hold the draft."""

    code = "conversion-refused"
    exit_code = ExitCode.FINDINGS


class ConversionOfDamage(EyasError):
    """The draft itself has errors, which the conversion would keep."""

    code = "conversion-of-damage"
    exit_code = ExitCode.FINDINGS


class FixUnproven(EyasError):
    """The user asked for a repair, but the draft does not provably have that fault."""

    code = "fix-unproven"
    exit_code = ExitCode.FINDINGS


class ConversionNeedsWeights(EyasError):
    """The source is a header dump, or a config alone."""

    code = "conversion-needs-weights"


class SourceChanged(EyasError):
    """A source file ended early or changed while it was copied."""

    code = "source-changed"


class AuditFailed(EyasError):
    """What was written does not read back as what was planned."""

    code = "audit-failed"
    exit_code = ExitCode.INTERNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRange:
    """Bytes [begin, end) of a file."""

    path: Path
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """A tensor of a `.bin` whose bytes do not lie in one run: read through torch, row by row."""

    path: Path
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTensor:
    """One tensor of the output.

    Attributes:
        canonical, name: in `DraftSpec`'s and in the goal format's spelling.
        source: where its bytes come from; the bytes themselves when it is derived (a mask of at most 4 MiB).
        origin: the same for a person.
    """

    canonical: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    source: SourceRange | SourceView | bytes
    origin: str

    @property
    def num_bytes(self) -> int:
        """Size of its data."""
        if isinstance(self.source, bytes):
            return len(self.source)
        if isinstance(self.source, SourceRange):
            return self.source.end - self.source.begin
        from eyas.contract.files.checkpoint import TensorInfo

        return TensorInfo(dtype=self.dtype, shape=self.shape).num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionPlan:
    """All that `apply` will do; made from headers only, every shape validated.

    Attributes:
        tensors: in the order of the output file.
        dropped: stored name of the source -> why it is not written.
        allowed: code given with --allow that was needed -> what it lets through.
        side_files: further JSON files of the output, by name.
        left_out: files beside the source's weights that are not copied.
        copied_from_target: canonical names whose data come from the target.
    """

    reading: DraftReading = field(repr=False)
    target: TargetSpec | None = field(repr=False)
    dialect: str
    container: Literal["safetensors", "bin"]
    config: Mapping[str, Any] = field(repr=False)
    tensors: tuple[PlannedTensor, ...] = field(repr=False)
    dropped: Mapping[str, str] = field(default_factory=dict)
    allowed: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[Diagnostic, ...] = ()
    side_files: Mapping[str, Any] = field(default_factory=dict, repr=False)
    left_out: tuple[str, ...] = ()
    copied_from_target: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of tensor data that will be written."""
        return sum(tensor.num_bytes for tensor in self.tensors)
