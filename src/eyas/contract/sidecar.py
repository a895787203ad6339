"""`eyas.json`: what a draft is, beside it, in eyas' own words; so that no switch is ever guessed again."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from eyas import __version__
from eyas.contract.conversion import ConversionPlan
from eyas.contract.draft_spec import DraftSpec
from eyas.contract.header_dump import without_paths
from eyas.records.fingerprint import of_json

SCHEMA = "eyas.draft/1"
NAME = "eyas.json"
_NOT_SWITCHES = ("tensors", "source_names", "provenance", "target", "token_ids", "dialect", "quantization")


def contract_document(spec: DraftSpec) -> dict[str, Any]:
    """Every size and switch of `spec` as a JSON object."""
    values = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name not in _NOT_SWITCHES}
    rope, mla = values.pop("rope"), values.pop("mla")
    document = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    document["rope"] = {f.name: _plain(getattr(rope, f.name)) for f in fields(rope)}
    document["mla"] = {f.name: getattr(mla, f.name) for f in fields(mla)} if mla is not None else None
    return document


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def sidecar_document(plan: ConversionPlan, checksums: Mapping[str, str]) -> dict[str, Any]:
    """The sidecar of what `plan` wrote.

    Args:
        checksums: stored name -> CRC-32 of the data as read back, 8 hex digits.
    """
    reading = plan.reading
    return {
        "schema": SCHEMA,
        "eyas_version": __version__,
        "dialect": plan.dialect,
        "contract": contract_document(reading.spec),
        "provenance": dict(reading.spec.provenance),
        "config_fingerprint": of_json(plan.config),
        "target": without_paths(plan.target.as_document() if plan.target else reading.spec.target),
        "source": {
            "dialect": reading.dialect,
            "evidence": list(reading.evidence),
            "config_fingerprint": of_json(reading.checkpoint.config),
            "files": list(reading.checkpoint.files),
        },
        "tensors": {
            tensor.name: {
                "canonical": tensor.canonical,
                "origin": tensor.origin,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "crc32": checksums[tensor.name],
            }
            for tensor in plan.tensors
        },
        "tensors_fingerprint": of_json(sorted((t.canonical, checksums[t.name]) for t in plan.tensors)),
        "copied_from_target": list(plan.copied_from_target),
        "dropped": dict(plan.dropped),
        "allowed": dict(plan.allowed),
        "notes": list(plan.notes),
    }
