"""The plan of a conversion: from headers to a list of byte ranges, every shape validated, every loss named."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyas.contract.convert.conversion import (
    ConversionNeedsWeights,
    ConversionOfDamage,
    ConversionPlan,
    ConversionRefused,
    Fix,
    FixUnproven,
    PlannedTensor,
    SourceRange,
    SourceView,
)
from eyas.contract.convert.target_embedding import TargetEmbedding, find_target_embedding
from eyas.contract.dialects.dialect import ELSEWHERE, NEEDS_TARGET, Dialect, Written, loss
from eyas.contract.files.checkpoint import DTYPE_BITS, TensorInfo
from eyas.contract.files.int_map import absolute_evidence, map_bytes, mask_bytes, offsets_of_absolute, target_ids
from eyas.contract.reading.draft_findings import draft_findings
from eyas.contract.reading.read_draft import PREFIX
from eyas.contract.spec.draft_spec import DraftReading, DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Diagnostic, Flag, Remedy, errors_of
from eyas.talk import counted

_EMBEDDING = "embed_tokens.weight"
_OWN_FILES = ("config.json", "eyas.json", "hf_quant_config.json")


def plan_conversion(
    reading: DraftReading,
    dialect: Dialect,
    target: TargetSpec | None,
    allow: Sequence[str] = (),
    fix: Sequence[Fix] = (),
    *,
    is_dry: bool = False,
) -> ConversionPlan:
    """How `reading` becomes a draft of `dialect`.

    Args:
        target: for what the format wants from it (embedding, depth).
        allow: codes of findings and losses to accept.
        fix: codes of findings to repair; d2t-absolute: the ids become offsets.
        is_dry: the plan is only looked at: a header dump will do.

    Raises:
        ConversionNeedsWeights: the source has no weight files.
        FixUnproven: the draft does not provably have that fault.
        ConversionOfDamage: the draft has errors whose codes are not allowed.
        ConversionRefused: the format cannot hold the draft, and not all losses are allowed (or can be).
    """
    has_weights = reading.checkpoint.root is not None and reading.checkpoint.files
    if not reading.checkpoint.tensors or not (has_weights or is_dry):
        raise ConversionNeedsWeights(
            "there are no weights to convert",
            reading.checkpoint.where,
            "this is a header dump or a config alone",
            "give the draft's folder (of a header dump, `--dry-run` shows the plan)",
        )
    fixed, reading = _with_offsets(reading) if fix else ((), reading)
    damage = _damage(reading, target, allow)
    written = dialect.write(_own_spec(reading), target)
    more = (*_map_loss(reading, written, dialect), *_activation_loss(reading.spec, dialect))
    written = replace(written, losses=(*written.losses, *more))
    _refuse(written.losses, dialect, reading, allow)
    written, copied, notes = _with_embedding(reading, written, target)
    planned = [_offsets(reading, t) if fix and t.canonical == "d2t" else t for t in _tensors(reading, written, copied)]
    tensors = tuple(sorted(planned, key=lambda t: (-DTYPE_BITS[t.dtype], t.name)))
    return ConversionPlan(
        reading=reading,
        target=target,
        dialect=dialect.name,
        container=written.container,
        config=_renamed_quantization(written, reading),
        tensors=tensors,
        dropped=_dropped(reading, written),
        allowed={**damage, **{lost.code: lost.what for lost in written.losses}},
        losses=written.losses,
        side_files=_side_files(reading),
        left_out=_left_out(reading),
        copied_from_target=(*copied, *(n for n in _copied_before(reading) if n in written.names and n not in copied)),
        notes=(*reading.checkpoint.notes, *written.notes, *notes, *fixed),
    )


def _with_offsets(reading: DraftReading) -> tuple[tuple[str], DraftReading]:
    """What was done, and the draft with its d2t turned from absolute ids into offsets, if that is proven."""
    d2t, t2d = reading.int_maps.get("d2t"), reading.int_maps.get("t2d")
    evidence = None if d2t is None else absolute_evidence(d2t, t2d, reading.spec.vocab_size)
    offsets = None if d2t is None or evidence is None else offsets_of_absolute(d2t)
    if offsets is None:
        raise FixUnproven(
            "it is not proven that d2t holds absolute ids; nothing was written",
            f"{reading.checkpoint.where}: d2t",
            "its values must rise; and a t2d must mark exactly them or, without one, they must not fit as offsets",
            "convert without --fix if d2t holds offsets; else export the draft again with d2t[i] - i for d2t[i]",
        )
    note = f"d2t held absolute target ids ({evidence}): written as offsets"
    return (note,), replace(reading, int_maps={**reading.int_maps, "d2t": offsets})


def _offsets(reading: DraftReading, planned: PlannedTensor) -> PlannedTensor:
    data = map_bytes(reading.int_maps["d2t"], planned.dtype)
    return replace(planned, source=data, origin=f"{planned.origin}[i] - i")


def _damage(reading: DraftReading, target: TargetSpec | None, allow: Sequence[str]) -> dict[str, str]:
    found = [f for f in errors_of(draft_findings(reading, target)) if f.code != PREFIX]
    refused = [finding for finding in found if finding.code not in allow]
    if refused:
        flags = " ".join(f"--allow {code}" for code in sorted({finding.code for finding in refused}))
        raise ConversionOfDamage(
            f"the draft has {counted(len(refused), 'error')}; nothing was written",
            reading.checkpoint.where,
            _list(refused),
            f"{refused[0].advice}; or convert it as it is: {flags}",
        )
    return {finding.code: finding.what for finding in found}


def _list(findings: Sequence[Diagnostic]) -> str:
    whys: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        whys.setdefault((finding.code, finding.why), []).append(finding.what)
    lines = [f"[{code}] {_first_of(whats)}: {why}" for (code, why), whats in whys.items()]
    return "\n           ".join(lines[:12] + ([f"and {len(lines) - 12} more"] if len(lines) > 12 else []))


def _first_of(whats: Sequence[str]) -> str:
    return "; ".join(whats[:6]) + (f" and {len(whats) - 6} more" if len(whats) > 6 else "")


def _refuse(lost: Sequence[Diagnostic], dialect: Dialect, reading: DraftReading, allow: Sequence[str]) -> None:
    flags = {one.code: [r for r in one.remedies if isinstance(r, Flag) and r.name == "--allow"] for one in lost}
    refused = [one for one in lost if one.code not in allow or not flags[one.code]]
    if not refused:
        return
    do: tuple[Remedy, ...] = (ELSEWHERE,)
    if all(flags[one.code] for one in refused):
        words = " ".join(f"{flag.name} {flag.value}" for one in refused for flag in flags[one.code])
        do = (ELSEWHERE, f"lose it knowingly: {words}")
        if any(NEEDS_TARGET in one.remedies for one in refused):
            do = (NEEDS_TARGET, *do)
    raise ConversionRefused(
        f"{dialect.name} cannot hold this draft",
        reading.checkpoint.where,
        "\n           ".join(f"[{one.code}] {one.where}: {one.what}" for one in refused),
        do,
    )


def _map_loss(reading: DraftReading, written: Written, dialect: Dialect) -> tuple[Diagnostic, ...]:
    d2t = reading.int_maps.get("d2t")
    if d2t is None or "d2t" in written.names or (d2t.minimum == 0 and d2t.maximum == 0):
        return ()
    what = f"{dialect.name} has no d2t when the vocabularies are equal; this one is a permutation, not the identity"
    return (loss("loss-vocab-map", "d2t", what),)


def _activation_loss(spec: DraftSpec, dialect: Dialect) -> tuple[Diagnostic, ...]:
    if dialect.activations is None or spec.activation in dialect.activations:
        return ()
    what = f"no engine that reads {dialect.name} computes hidden_act {spec.activation}: none would serve this draft"
    return (loss("loss-activation", "activation", what),)


def _with_embedding(
    reading: DraftReading, written: Written, target: TargetSpec | None
) -> tuple[Written, dict[str, TargetEmbedding], tuple[str, ...]]:
    """The target's embedding, if the format stores it: the draft's own copy, else the one in the target's files."""
    spec, is_copy = reading.spec, _EMBEDDING in _copied_before(reading)
    if written.derived.get(_EMBEDDING) != "target":
        if is_copy:
            why = "eyas had copied it from the target; this format shares the target's"
            return replace(written, dropped={**written.dropped, _EMBEDDING: why}), {}, ()
        return written, {}, ()
    if is_copy:
        return replace(written, names={**written.names, _EMBEDDING: _EMBEDDING}), {}, ()
    shape = (spec.vocab_size, spec.hidden_size)
    found = find_target_embedding(Path(target.where), shape) if target else "no --target was given"
    if isinstance(found, TargetEmbedding):
        return replace(written, names={**written.names, _EMBEDDING: _EMBEDDING}), {_EMBEDDING: found}, ()
    rest = {key: value for key, value in written.derived.items() if key != _EMBEDDING}
    note = f"{_EMBEDDING} is left out: {found}; vLLM shares the target's"
    return replace(written, derived=rest), {}, (note,)


def _own_spec(reading: DraftReading) -> DraftSpec:
    """The draft without an embedding that eyas itself had copied in: that is the target's, not the draft's own."""
    spec = reading.spec
    if _EMBEDDING not in _copied_before(reading):
        return spec
    tensors = {name: info for name, info in spec.tensors.items() if name != _EMBEDDING}
    return replace(spec, embedding="target", tensors=tensors)


def _copied_before(reading: DraftReading) -> Sequence[str]:
    sidecar = reading.checkpoint.extra.get("eyas.json")
    copied = sidecar.get("copied_from_target") if isinstance(sidecar, Mapping) else None
    return [name for name in copied if isinstance(name, str)] if isinstance(copied, list) else ()


def _tensors(reading: DraftReading, written: Written, copied: Mapping[str, TargetEmbedding]) -> list[PlannedTensor]:
    planned = []
    for canonical, name in written.names.items():
        if canonical in copied:
            theirs = copied[canonical]
            planned.append(_stored(canonical, name, theirs.info, theirs.root, theirs.name, f"target: {theirs.name}"))
        elif canonical == "t2d" and written.derived.get("t2d") == "d2t":
            planned.append(_mask(reading, name))
        elif written.derived.get(canonical) == "zeros":
            planned.append(_zeros(reading, canonical, name))
        else:
            stored = reading.spec.source_names[canonical]
            root, info = reading.checkpoint.root, reading.spec.tensors[canonical]
            planned.append(_stored(canonical, name, info, root, stored, stored))
    return planned


def _stored(canonical: str, name: str, info: TensorInfo, root: Path | None, stored: str, origin: str) -> PlannedTensor:
    """A tensor out of a file under `root`. A header dump has no files: its plan is shown, never applied."""
    path = (root or Path()) / (info.file or "")
    source: SourceRange | SourceView = SourceView(path=path, name=stored)
    if info.begin is not None and info.end is not None:
        source = SourceRange(path=path, begin=info.begin, end=info.end)
    return PlannedTensor(
        canonical=canonical, name=name, dtype=info.dtype, shape=info.shape, source=source, origin=origin
    )


def _zeros(reading: DraftReading, canonical: str, name: str) -> PlannedTensor:
    spec = reading.spec
    dtype = next((info.dtype for key, info in spec.tensors.items() if key.endswith("_proj.bias")), "BF16")
    data = bytes(spec.hidden_size * DTYPE_BITS[dtype] // 8)
    return PlannedTensor(
        canonical=canonical, name=name, dtype=dtype, shape=(spec.hidden_size,), source=data, origin="zeros"
    )


def _mask(reading: DraftReading, name: str) -> PlannedTensor:
    d2t, size = reading.int_maps.get("d2t"), reading.spec.vocab_size
    if d2t is not None and reading.checkpoint.kind == "dump":  # the ids are not in it
        mask = TensorInfo(dtype="BOOL", shape=(size,))
        return _stored("t2d", name, mask, None, "d2t", "derived from d2t")
    ids = target_ids(d2t, is_mask=False) if d2t is not None else None
    if ids is None or min(ids, default=0) < 0 or max(ids, default=0) >= size:
        raise ConversionOfDamage(
            "t2d cannot be derived from d2t",
            reading.checkpoint.where,
            "d2t could not be read, or maps outside the vocabulary",
            "export the draft again with its maps",
        )
    return PlannedTensor(
        canonical="t2d", name=name, dtype="BOOL", shape=(size,), source=mask_bytes(ids, size), origin="derived from d2t"
    )


def _dropped(reading: DraftReading, written: Written) -> dict[str, str]:
    stored = reading.spec.source_names
    dropped = {stored.get(name, name): why for name, why in written.dropped.items()}
    kept = {stored[name] for name in reading.spec.tensors}
    for name in reading.checkpoint.tensors:
        if name not in kept and name not in dropped:
            dropped[name] = "not part of the draft's function"
    return dropped


def _side_files(reading: DraftReading) -> dict[str, Any]:
    extra = reading.checkpoint.extra
    return {"hf_quant_config.json": extra["hf_quant_config.json"]} if "hf_quant_config.json" in extra else {}


def _left_out(reading: DraftReading) -> tuple[str, ...]:
    """Files that are not copied: a draft is served with its target's tokenizer, and a card describes another format."""
    root, kept = reading.checkpoint.root, set(reading.checkpoint.files)
    if root is None or reading.checkpoint.kind != "folder":
        return ()
    names = sorted(entry.name for entry in root.iterdir() if entry.is_file())
    return tuple(n for n in names if n not in kept and n not in _OWN_FILES and not n.endswith(".index.json"))


def _renamed_quantization(written: Written, reading: DraftReading) -> Mapping[str, Any]:
    """The config, with module names in a quantisation's lists spelled as the tensors now are."""
    if reading.spec.quantization is None:
        return written.config
    first = next((name for key, name in written.names.items() if key.startswith("layers.0.")), "layers.0.")
    old, new = ("layers.0", "midlayer") if first.startswith("midlayer.") else ("midlayer", "layers.0")

    def rename(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: rename(item) for key, item in value.items()}
        if isinstance(value, list):
            return [rename(item) for item in value]
        return value.replace(old, new) if isinstance(value, str) else value

    config = dict(written.config)
    for level in (config, config.get("transformer_layer_config")):
        if isinstance(level, dict) and "quantization_config" in level:
            level["quantization_config"] = rename(level["quantization_config"])
    return config
