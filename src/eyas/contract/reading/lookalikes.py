"""Which unknown tensor may be which missing one: the same shape, and the most alike in name. A guess, said as one.

The findings about such a pair each name the other, and the way out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from eyas.contract.reading.read_draft import read_draft
from eyas.contract.spec.draft_spec import DraftReading
from eyas.contract.spec.expected_tensors import expected_tensors
from eyas.contract.spec.renames import Rename, shared_prefix
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import NameStyle, canonical_names, stored_name
from eyas.diagnostic import Convert, Diagnostic, Remedies, errors_of
from eyas.errors import EyasError

_INTEGERS = ("I64", "I32", "I16", "U32", "U64")
_MAX_TENSORS = 5000  # each unknown name is compared with each missing one
_ALIKE = 4  # characters that two names must end in alike beyond ".weight" where shapes leave a choice


def renames_for(reading: DraftReading) -> tuple[Rename, ...]:
    """The renames that would give every unknown tensor that looks like a missing one its name."""
    return _as_renames(_lookalikes(reading), list(reading.checkpoint.tensors))


def with_lookalikes(
    findings: Sequence[Diagnostic],
    reading: DraftReading,
    target: TargetSpec | None,
    judge: Callable[[DraftReading], Iterable[Diagnostic]],
) -> list[Diagnostic]:
    """`findings`; one about an unknown tensor that may be a missing one asks so and gives the rename.

    Args:
        judge: findings of the draft read under other names: advice is given only if it leads through.
    """
    pairs = _lookalikes(reading)
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
    names = tuple(map(str, renames))
    remark = " # if it is that one: shapes cannot prove it"
    return Convert(draft=reading.checkpoint.where, to=reading.dialect, rename=names, remark=remark)


def _bare(name: str) -> str:
    """The name in one common spelling, for layer 0 and its inner norm."""
    name = name.replace("midlayer.", "layers.0.", 1)
    return name if name.startswith("layers.0.") else name.replace(".hidden_norm.", ".input_layernorm.")


def _lookalikes(reading: DraftReading) -> dict[str, str]:
    """Unknown stored name -> the name, in the draft's own spelling, of the missing tensor that it may be."""
    spec, tensors = reading.spec, reading.checkpoint.tensors
    if len(tensors) > _MAX_TENSORS or shared_prefix(list(tensors)):
        return {}  # no draft; or a remedy of its own
    known = set(spec.source_names.values())
    unknown = [name for name, canonical in canonical_names(tensors).items() if canonical is None and name not in known]
    shapes = {name: entry.shape for name, entry in expected_tensors(spec).items() if entry.required}
    shapes |= {"lm_head.weight": (spec.draft_vocab_size, spec.hidden_size)}
    shapes |= {"embed_tokens.weight": (spec.vocab_size, spec.hidden_size)}
    if spec.draft_vocab_size < spec.vocab_size:
        shapes["t2d"] = (spec.vocab_size,)
    style = _style(list(tensors))
    missing = {stored_name(name, style): shape for name, shape in shapes.items() if name not in spec.tensors}
    found: dict[str, str] = {}
    for shape in set(missing.values()):
        for is_map in (False, True):
            ours = [n for n in unknown if tensors[n].shape == shape and (tensors[n].dtype in _INTEGERS) == is_map]
            found |= _pairs(ours, [n for n, wanted in missing.items() if wanted == shape and (n == "d2t") == is_map])
    return {name: found[name] for name in unknown if name in found}


def _as_renames(pairs: Mapping[str, str], names: Sequence[str]) -> tuple[Rename, ...]:
    """`pairs` as few renames: one for each prefix that differs in several of them, longest first, else one each.

    Args:
        names: of all tensors; a prefix must not catch others.
    """
    groups: dict[tuple[str, str], set[str]] = {}
    for old, new in pairs.items():
        groups.setdefault(_without_common_end(old, new), set()).add(old)
    left, prefixes = set(names), list[Rename]()
    for (old, new), members in sorted(groups.items(), key=lambda group: -len(group[0][0])):
        if len(members) > 1 and old and {name for name in left if name.startswith(old)} == members:
            prefixes.append(Rename(old=old, new=new, is_prefix=True))
        left -= members
    caught = {old for old in pairs for prefix in prefixes if old.startswith(prefix.old)}
    single = [Rename(old=old, new=new) for old, new in pairs.items() if old not in caught]
    return (*single, *prefixes)  # the first that fits a name counts


def _style(names: Sequence[str]) -> NameStyle:
    bare = [name.removeprefix("model.") for name in names]
    is_inner = any(n.startswith("layers.") and not n.startswith("layers.0.") and ".hidden_norm." in n for n in bare)
    return NameStyle(
        first_layer="midlayer" if any(name.startswith("midlayer.") for name in bare) else "layers.0",
        inner_norm="hidden_norm" if is_inner else "input_layernorm",
    )


def _pairs(unknown: Sequence[str], missing: Sequence[str]) -> dict[str, str]:
    """Pairs that are each other's best match; a single unknown and a single missing tensor always match."""
    if len(unknown) == len(missing) == 1:
        return {unknown[0]: missing[0]}
    found = {}
    for name in unknown:
        best = _best(name, missing)
        if best is not None and _best(best, unknown) == name:
            found[name] = best
    return found


def _best(name: str, others: Sequence[str]) -> str | None:
    ranked = sorted(others, key=lambda other: _likeness(name, other), reverse=True)
    if not ranked or _likeness(name, ranked[0])[0] < len(".weight") + _ALIKE:
        return None
    is_tie = len(ranked) > 1 and _likeness(name, ranked[0]) == _likeness(name, ranked[1])
    return None if is_tie else ranked[0]


def _likeness(one: str, other: str) -> tuple[int, float]:
    return len(_common_end(one, other)), SequenceMatcher(None, one, other).ratio()


def _common_end(one: str, other: str) -> str:
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    return one[len(one) - length :]


def _without_common_end(one: str, other: str) -> tuple[str, str]:
    """What differs in front, up to the end of a part of the name: blocks.0.x and layers.0.x differ in blocks."""
    length = len(_common_end(one, other))
    old, new, end = one[: len(one) - length], other[: len(other) - length], one[len(one) - length :]
    if old[-1:].isalnum() or new[-1:].isalnum():  # within a part: up to the end of its dot
        rest_of_part = end[: end.find(".") + 1] or end
        return old + rest_of_part, new + rest_of_part
    return old, new
