"""A checkpoint as a draft: format recognised, spec read, oddities collected."""

from pathlib import Path

from eyas.contract.checkpoint import Checkpoint
from eyas.contract.dialects.registry import detect
from eyas.contract.draft_reading import DraftReading
from eyas.contract.target_spec import TargetSpec


def read_draft(checkpoint: Checkpoint, target: TargetSpec | None = None) -> DraftReading:
    """What `checkpoint` is as a draft. Damage is collected as findings, not raised.

    Args:
        target: tells its depth and width where the draft's config leaves them open.

    Raises:
        NotADraft: nothing in it says EAGLE-3.
        DraftConfigIncomplete: a size that neither config nor tensors tell.
    """
    dialect, evidence = detect(checkpoint)
    assert dialect.read is not None, "detect gives dialects that read"
    return dialect.read(checkpoint, target, evidence)


def folder_of(checkpoint: Checkpoint) -> Path:
    """The folder that holds the weight files.

    A header dump has none: asking for it is a mistake of the caller, who must look at `checkpoint.root` first.
    """
    assert checkpoint.root is not None, "a header dump has no weights"
    return checkpoint.root
