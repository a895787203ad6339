"""Common ground of all dialects that read: names, fields, aux boundaries, put together as a `DraftReading`."""

from collections.abc import Mapping
from typing import Any

from eyas.contract.files.checkpoint import Checkpoint, TensorInfo
from eyas.contract.spec.config_reader import ConfigReader
from eyas.contract.spec.draft_spec import FC_COLUMNS, DraftReading, DraftSpec
from eyas.contract.spec.layer_ids import LayerIds, default_boundaries, guess_convention
from eyas.contract.spec.read_config import ConfigSource, read_fields
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import canonical_names
from eyas.diagnostic import Diagnostic, finding
from eyas.records.fingerprint import of_json

_MAX_UNKNOWN = 500  # tensors that are named one by one


def flat_source(checkpoint: Checkpoint) -> ConfigSource:
    """The source of every format whose config.json has one level."""
    return ConfigSource(sizes=checkpoint.config, switches=checkpoint.config)


def assemble(
    checkpoint: Checkpoint, target: TargetSpec | None, source: ConfigSource, dialect: str, evidence: tuple[str, ...]
) -> DraftReading:
    """The reading of `checkpoint` by `source`.

    Raises:
        DraftConfigIncomplete: a size that neither config nor tensors tell.
    """
    names, tensors, findings = _names(checkpoint)
    fields, config_findings = read_fields(source, tensors, target, checkpoint.where)
    findings += config_findings
    switches = ConfigReader(source.switches, checkpoint.where, source.switch_level)
    fields.update(_aux(switches, checkpoint, target, fields, tensors, source))
    findings += switches.findings
    spec = DraftSpec(
        **fields,
        dialect=dialect,
        target=_target_identity(checkpoint, target),
        tensors=tensors,
        source_names={canonical: stored for stored, canonical in names.items()},
    )
    maps = {names[stored]: int_map for stored, int_map in checkpoint.int_maps.items() if stored in names}
    return DraftReading(
        spec=spec,
        checkpoint=checkpoint,
        dialect=dialect,
        evidence=evidence,
        int_maps=maps,
        findings=tuple(findings),
    )


def _names(checkpoint: Checkpoint) -> tuple[dict[str, str], dict[str, TensorInfo], list[Diagnostic]]:
    names: dict[str, str] = {}
    tensors: dict[str, TensorInfo] = {}
    findings: list[Diagnostic] = []
    num_unknown = 0
    for stored, canonical in canonical_names(checkpoint.tensors).items():
        if canonical is None:
            num_unknown += 1
            if num_unknown <= _MAX_UNKNOWN:
                findings.append(_unknown_tensor(stored, checkpoint))
        elif ".unused_input_layernorm." in canonical:
            why = "in this spelling hidden_norm is the norm before attention of layers >= 1"
            findings.append(finding("tensor-unused", "note", f"{stored} is never used", checkpoint.where, why))
        elif canonical in tensors:
            first = next(stored for stored, name in names.items() if name == canonical)
            what, do = f"{stored} and {first} are the same tensor", "remove the one that does not belong to the draft"
            why = f"both mean {canonical}; which of them counts depends on the reader's order"
            findings.append(finding("tensor-ambiguous", "error", what, checkpoint.where, why, do, items=(stored,)))
        else:
            names[stored] = canonical
            tensors[canonical] = checkpoint.tensors[stored]
    if num_unknown > _MAX_UNKNOWN:
        what = f"{num_unknown - _MAX_UNKNOWN} more unknown tensors"
        why, do = "no EAGLE-3 draft that eyas knows has this many tensors", "check that it is the right folder"
        findings.append(finding("tensor-unknown", "error", what, checkpoint.where, why, do))
    return names, tensors, findings


def _unknown_tensor(stored: str, checkpoint: Checkpoint) -> Diagnostic:
    """The finding about a tensor name that no draft has."""
    info = checkpoint.tensors[stored]
    what, place = (
        f"unknown tensor {stored} {info.dtype} {list(info.shape)}",
        f"{checkpoint.where}: {info.file or 'dump'}",
    )
    why = "no EAGLE-3 draft that eyas knows has it: engines drop it in silence or crash on it"
    do = "remove it if it belongs to the trainer, or report it with `eyas header`"
    return finding("tensor-unknown", "error", what, place, why, do, items=(stored,))


def _aux(
    reader: ConfigReader,
    checkpoint: Checkpoint,
    target: TargetSpec | None,
    fields: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    source: ConfigSource,
) -> dict[str, Any]:
    boundaries, origin = _boundaries(reader, checkpoint, target, fields["draft_class"] == "mla")
    layers = target.num_layers if target else None
    stated = None
    for level in (source.switches, source.sizes):
        for key in ("num_aux_hidden_states", "num_aux_layers"):
            if type(level.get(key)) is int and 0 < level[key] <= 64 and stated is None:
                stated = level[key]
    if stated is None and boundaries is not None:
        stated = len(boundaries)
    fc, width = tensors.get("fc.weight"), int(fields["target_hidden_size"])
    eagle_config = checkpoint.config.get("eagle_config")
    is_off = isinstance(eagle_config, Mapping) and eagle_config.get("use_aux_hidden_state") is False
    if is_off and fc is None:
        num_aux, boundaries, source_of = 0, None, "eagle_config.use_aux_hidden_state is false, and there is no fc"
    elif stated is None and fc is not None and len(fc.shape) == 2 and fc.shape[1] % width == 0 and fc.shape[1]:
        num_aux, source_of = fc.shape[1] // width, FC_COLUMNS
    else:
        num_aux, source_of = stated or 3, "config.json" if stated else "the usual 3"
    if boundaries is None and layers is not None and num_aux == 3:
        boundaries, origin = default_boundaries(layers), f"no ids in the config: the default of a {layers}-layer target"
    provenance = fields["provenance"]
    provenance["num_aux"], provenance["aux_boundaries"] = source_of, origin
    return {"aux_boundaries": boundaries, "num_aux": num_aux, "provenance": provenance}


def _boundaries(
    reader: ConfigReader, checkpoint: Checkpoint, target: TargetSpec | None, is_mla: bool
) -> tuple[tuple[int, ...] | None, str]:
    recorded = _recorded_boundaries(checkpoint)
    if recorded is not None:
        return recorded, "eyas.json"
    top = reader.integers("eagle_aux_hidden_state_layer_ids")
    if top is not None:
        ids = LayerIds(ids=top, convention="boundary")
        return ids.boundaries(), f"{reader.level}: eagle_aux_hidden_state_layer_ids {list(top)}, as boundaries"
    nested = reader.level_below("eagle_config").integers("eagle_aux_hidden_state_layer_ids")
    if nested is None:
        return None, "no ids in the config, and the target's depth is not known"
    layers = target.num_layers if target else None
    convention, why = guess_convention(nested, layers, target.text_model_type if target else None, is_mla=is_mla)
    return LayerIds(ids=nested, convention=convention).boundaries(layers), f"eagle_config ids {list(nested)}: {why}"


def _recorded_boundaries(checkpoint: Checkpoint) -> tuple[int, ...] | None:
    sidecar = checkpoint.extra.get("eyas.json")
    # a config edited after eyas wrote it: its own words count
    if not isinstance(sidecar, Mapping) or sidecar.get("config_fingerprint") != of_json(checkpoint.config):
        return None
    contract = sidecar.get("contract")
    found = contract.get("aux_boundaries") if isinstance(contract, Mapping) else None
    if isinstance(found, list) and found and all(type(item) is int and 0 <= item < 1 << 20 for item in found):
        return tuple(found)
    return None


def _target_identity(checkpoint: Checkpoint, target: TargetSpec | None) -> Mapping[str, Any] | None:
    if target is not None:
        return target.as_known_unparsed()
    sidecar = checkpoint.extra.get("eyas.json")
    recorded = sidecar.get("target") if isinstance(sidecar, Mapping) else None
    if isinstance(recorded, Mapping):
        return recorded
    speculators = checkpoint.config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, Mapping) else None
    return verifier if isinstance(verifier, Mapping) else None
