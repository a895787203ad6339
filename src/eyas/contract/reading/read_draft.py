"""A checkpoint as a draft: names put right, format recognised, spec read, oddities collected."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eyas.contract.dialects.dialect import Dialect
from eyas.contract.dialects.other_methods import refuse_other_method
from eyas.contract.dialects.registry import detect
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.files.int_map import map_kind
from eyas.contract.files.read_checkpoint import read_maps
from eyas.contract.spec.draft_spec import DraftReading
from eyas.contract.spec.renames import Rename, renamed, shared_prefix
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Convert, Diagnostic, finding

PREFIX = "tensor-prefix"  # the one error that `eyas convert` cures by itself


def read_draft(
    checkpoint: Checkpoint, target: TargetSpec | None = None, renames: Sequence[Rename] = ()
) -> DraftReading:
    """What `checkpoint` is as a draft. Damage is collected as findings, not raised.

    A prefix that all names carry and no draft has is read over, and is a finding.

    Args:
        target: tells its depth and width where the draft's config leaves them open.
        renames: tensors to take under another name.

    Raises:
        OtherMethod, NotADraft: nothing in it says EAGLE-3.
        DraftConfigIncomplete: a size that neither config nor tensors tell.
        RenameInvalid: one of `renames` fits no tensor, or two tensors would have one name.
    """
    refuse_other_method(checkpoint)  # before a prefix such as `mtp.` is left out
    names = renamed(checkpoint.tensors, renames)
    prefix = shared_prefix(list(names.values()))
    names = {stored: name.removeprefix(prefix) for stored, name in names.items()}
    is_plain = all(stored == name for stored, name in names.items())
    shown = checkpoint if is_plain else _under(names, checkpoint)
    dialect, evidence = detect(shown)
    reading = dialect.read(shown, target, evidence)
    if is_plain:
        return reading
    stored_of = {name: stored for stored, name in names.items()}
    source_names = {canonical: stored_of[name] for canonical, name in reading.spec.source_names.items()}
    odd = (_prefixed(prefix, dialect, checkpoint),) if prefix else ()
    return replace(
        reading,
        spec=replace(reading.spec, source_names=source_names),
        checkpoint=checkpoint,
        findings=(*odd, *reading.findings),
    )


def _under(names: Mapping[str, str], checkpoint: Checkpoint) -> Checkpoint:
    """`checkpoint` as if its tensors had other names; a map that only its new name shows to be one is read."""
    tensors = {names[stored]: info for stored, info in checkpoint.tensors.items()}
    maps = {names[stored]: found for stored, found in checkpoint.int_maps.items()}
    if checkpoint.root is not None:
        more = {name: info for name, info in tensors.items() if map_kind(name) and name not in maps}
        maps |= read_maps(checkpoint.root, more)
    return replace(checkpoint, tensors=tensors, int_maps=maps)


def _prefixed(prefix: str, dialect: Dialect, checkpoint: Checkpoint) -> Diagnostic:
    what = f"the names of all {len(checkpoint.tensors)} tensors begin with {prefix!r}"
    why = "a trainer's wrapper left it there: engines find none of the tensors; eyas has read them without it"
    do = Convert(draft=checkpoint.where, to=dialect.name, remark=" # leaves it out")
    return finding("tensor-prefix", "error", what, checkpoint.where, why, do)
