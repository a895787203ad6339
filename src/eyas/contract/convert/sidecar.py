"""`eyas.json` beside a draft: every size and switch spelled out, so that nothing is guessed again."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from eyas import __version__
from eyas.contract.convert.conversion import ConversionPlan
from eyas.contract.files.header_dump import without_paths
from eyas.contract.spec.draft_spec import DraftSpec
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


def sidecar_document(plan: ConversionPlan, samples: Mapping[str, str]) -> dict[str, Any]:
    """The sidecar of what `plan` wrote.

    Args:
        samples: stored name -> fingerprint of three samples of its data, as read back.
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
                "sample": samples[tensor.name],
            }
            for tensor in plan.tensors
        },
        "tensors_fingerprint": _fingerprint(plan, samples),
        "copied_from_target": list(plan.copied_from_target),
        "dropped": dict(plan.dropped),
        "allowed": dict(plan.allowed),
        "notes": list(plan.notes),
    }


def _fingerprint(plan: ConversionPlan, samples: Mapping[str, str]) -> str:
    """Fingerprint of the draft's own tensors under canonical names: the same in every format (t2d follows from d2t)."""
    own = [tensor for tensor in plan.tensors if tensor.canonical != "t2d" and tensor.origin != "zeros"]
    own = [tensor for tensor in own if tensor.canonical not in plan.copied_from_target]
    return of_json(sorted([t.canonical, t.dtype, list(t.shape), samples[t.name]] for t in own))
