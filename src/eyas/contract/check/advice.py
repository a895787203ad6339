"""Whether the `eyas convert` that an engine's finding advises would work: planned from headers before it is advised."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eyas.contract.convert.conversion import ConversionPlan
from eyas.contract.convert.conversion_plan import plan_conversion
from eyas.contract.dialects.registry import dialect_named
from eyas.contract.engines.loading.judge import judge
from eyas.contract.engines.version import EngineVersion
from eyas.contract.files.checkpoint import Checkpoint, IntMap, TensorInfo
from eyas.contract.files.int_map import int_map_of_bytes
from eyas.contract.reading.draft_findings import draft_findings
from eyas.contract.reading.lookalikes import renames_for
from eyas.contract.reading.read_draft import PREFIX, read_draft
from eyas.contract.spec.draft_spec import DraftReading
from eyas.contract.spec.renames import Rename
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Convert, Diagnostic, Remedy, errors_of
from eyas.errors import EyasError


def with_tried_advice(
    findings: Sequence[Diagnostic], reading: DraftReading | None, target: TargetSpec | None, engine: EngineVersion
) -> list[Diagnostic]:
    """`findings` of `engine`, each advised conversion checked: one that would be refused or useless says so.

    Args:
        reading: None = the draft cannot be read, so not converted either.
    """
    return [_tried(finding, reading, target, engine) for finding in findings]


def _tried(
    finding: Diagnostic, reading: DraftReading | None, target: TargetSpec | None, engine: EngineVersion
) -> Diagnostic:
    if not any(isinstance(remedy, Convert) for remedy in finding.remedies):
        return finding
    if reading is None:
        return replace(finding, do="settle first why eyas cannot read it as a draft: it cannot be converted either")
    tried = [
        _that_works(remedy, finding.code, reading, target, engine) if isinstance(remedy, Convert) else remedy
        for remedy in finding.remedies
    ]
    useless = f"export the draft again as {engine.engine} wants it: `eyas convert` does not cure this"
    return replace(finding, do=tuple(remedy for remedy in tried if remedy is not None) or useless)


def _that_works(
    remedy: Convert, code: str, reading: DraftReading, target: TargetSpec | None, engine: EngineVersion
) -> Remedy | None:
    """The remedy, with the renames that it needs, or what to do before it; None where it cures nothing."""
    dialect = remedy.to
    renames: tuple[Rename, ...] = ()
    bad = _errors(reading, target)
    if bad and (renames := renames_for(reading)):
        try:
            reading = read_draft(reading.checkpoint, target, renames)
            bad = _errors(reading, target)
        except EyasError as error:
            return f"settle [{error.code}] first: {error.do}"
    if bad:
        codes = ", ".join(dict.fromkeys(f"[{finding.code}]" for finding in bad))
        return f"settle {codes} first: until then `eyas convert` refuses the draft"
    try:
        plan = plan_conversion(reading, dialect_named(dialect), target, is_dry=True)
    except EyasError as error:
        return f"`eyas convert --to {dialect}` does not do it ({error.what}): {error.do}"
    if code in _codes_after(plan, reading, target, engine):
        return None
    return replace(remedy, rename=tuple(map(str, renames)))


def _errors(reading: DraftReading, target: TargetSpec | None) -> list[Diagnostic]:
    return [finding for finding in errors_of(draft_findings(reading, target)) if finding.code != PREFIX]


def _codes_after(
    plan: ConversionPlan, reading: DraftReading, target: TargetSpec | None, engine: EngineVersion
) -> set[str]:
    """What `engine` would still find wrong with the draft that `plan` writes."""
    written = Checkpoint(
        where=reading.checkpoint.where,
        kind="dump",
        config=plan.config,
        tensors={t.name: TensorInfo(dtype=t.dtype, shape=t.shape) for t in plan.tensors},
        int_maps=_maps(plan, reading.int_maps),
    )
    return {reason.code for reason in judge(written, reading, target, engine, engine.runner).reasons}


def _maps(plan: ConversionPlan, known: Mapping[str, IntMap]) -> dict[str, IntMap]:
    found = {}
    for tensor in plan.tensors:
        if tensor.canonical in known:
            found[tensor.name] = known[tensor.canonical]
        elif tensor.canonical == "t2d" and isinstance(tensor.source, bytes):
            found[tensor.name] = int_map_of_bytes(tensor.source, tensor.dtype, is_mask=True)
    return found
