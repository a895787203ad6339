"""What reading a draft gives: the spec, what it was recognised by, and everything odd about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from eyas.contract.files.checkpoint import Checkpoint, IntMap
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.diagnostic import Diagnostic


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReading:
    """A draft as understood.

    Attributes:
        spec: the function; sizes and switches from the config, completed from the tensors.
        checkpoint: what it was read from.
        dialect: name of the format.
        evidence: what the format was recognised by, one short sentence each.
        int_maps: "d2t" / "t2d" -> contents, by canonical name.
        findings: about the config and the names; `draft_findings` adds those about tensors, maps and the target.
    """

    spec: DraftSpec
    checkpoint: Checkpoint
    dialect: str
    evidence: tuple[str, ...]
    int_maps: Mapping[str, IntMap] = field(default_factory=dict, repr=False)
    findings: tuple[Diagnostic, ...] = ()
