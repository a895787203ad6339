"""`open_draft`: a draft's folder as a `DraftSpec` whose tensors can be read, or a list of what is wrong with it."""

import shlex
from pathlib import Path

from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.reading.draft_findings import draft_findings
from eyas.contract.reading.read_draft import read_draft
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import errors_of
from eyas.errors import EyasError
from eyas.talk import counted


class DraftDamaged(EyasError):
    """The draft has findings of severity error: it is not the function that its config promises."""

    code = "draft-damaged"


class DraftWithoutWeights(EyasError):
    """The draft is a header dump, or a config alone: it can be checked and not run."""

    code = "draft-without-weights"


def open_draft(path: Path, target: TargetSpec | None = None, *, strict: bool = True) -> DraftSpec:
    """The draft under `path` in any format that eyas reads.

    Args:
        path: folder or weight file.
        target: tells its depth and width where the draft's config leaves them open.
        strict: refuse a draft with findings of severity error or above.

    Returns:
        the spec; each of `spec.tensors` has its `file` (relative to the folder), `begin` and `end`.

    Raises:
        DraftWithoutWeights: it is a header dump, or a config alone.
        DraftDamaged: `strict`, and something is wrong with it; the message holds the first findings.
        and what `read_checkpoint` and `read_draft` raise.
    """
    reading = read_draft(read_checkpoint(Path(path)), target)
    if reading.checkpoint.root is None or not reading.checkpoint.files:
        raise DraftWithoutWeights(
            "the draft has no weights",
            str(path),
            "this is a header dump or a config alone: it can be checked, not run",
            "give the draft's folder",
        )
    if strict:
        bad = errors_of(draft_findings(reading, target))
        if bad:
            raise DraftDamaged(
                f"the draft has {counted(len(bad), 'error')}; the first: {bad[0].what}",
                bad[0].where,
                "; ".join(f"[{f.code}] {f.what}" for f in bad[:8]) + f" ({bad[0].why})",
                bad[0].do or f"see all of them: eyas check {shlex.quote(str(path))}",
            )
    return reading.spec
