"""The findings about an unknown and a missing tensor that may be one: each names the other, and the way out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from eyas.contract.dialects.registry import dialect_named
from eyas.contract.reading.lookalikes import as_renames, lookalikes
from eyas.contract.reading.read_draft import read_draft
from eyas.contract.spec.draft_reading import DraftReading
from eyas.contract.spec.renames import Rename
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Convert, Diagnostic, Remedies, errors_of
from eyas.errors import EyasError


def renames_for(reading: DraftReading) -> tuple[Rename, ...]:
    """The renames that would give every unknown tensor that looks like a missing one its name."""
    return as_renames(lookalikes(reading), list(reading.checkpoint.tensors))


def with_lookalikes(
    findings: Sequence[Diagnostic],
    reading: DraftReading,
    target: TargetSpec | None,
    judge: Callable[[DraftReading], Iterable[Diagnostic]],
) -> list[Diagnostic]:
    """`findings`, where an unknown tensor may be a missing one, with that question and its answer.

    Args:
        judge: findings of the draft read under other names: advice is given only if it leads through.
    """
    pairs = lookalikes(reading)
    if not pairs:
        return list(findings)
    renames, found = renames_for(reading), []
    do = _advice(reading, target, renames, judge)
    canonical = {_bare(new): old for old, new in pairs.items()}
    for finding in findings:
        name = finding.items[0] if finding.items else ""
        if finding.code == "tensor-unknown" and name in pairs:
            what = f"{finding.what}; did you mean {pairs[name]}? That one is missing and has this shape"
            found.append(replace(finding, what=what, do=do))
        elif finding.code == "tensor-missing" and _bare(name) in canonical:
            found.append(replace(finding, what=f"{finding.what}; is it {canonical[_bare(name)]}?", do=do))
        else:
            found.append(finding)
    return found


def _advice(
    reading: DraftReading,
    target: TargetSpec | None,
    renames: Sequence[Rename],
    judge: Callable[[DraftReading], Iterable[Diagnostic]],
) -> Remedies:
    words = " ".join(f"--rename {rename}" for rename in renames)
    try:
        left = errors_of(judge(read_draft(reading.checkpoint, target, renames)))
    except EyasError as error:
        return f"if so: `eyas convert` with {words}, after [{error.code}] is settled ({error.do})"
    if left:
        codes = ", ".join(dict.fromkeys(f"[{finding.code}]" for finding in left))
        return f"if so: `eyas convert` with {words}, once {codes} is settled too"
    to = reading.dialect if dialect_named(reading.dialect).write else "vllm"
    names = tuple(map(str, renames))
    remark = " # if it is that one: shapes cannot prove it"
    return Convert(draft=reading.checkpoint.where, to=to, rename=names, remark=remark)


def _bare(name: str) -> str:
    """One spelling for all: of layer 0 and of its inner norm."""
    name = name.replace("midlayer.", "layers.0.", 1)
    return name if name.startswith("layers.0.") else name.replace(".hidden_norm.", ".input_layernorm.")
