"""What is wrong with a draft itself, whatever the engine: tensors, vocabulary maps, head, fit to its target.

Engines' own faults (names they drop, keys they ignore) are the ledger's business.
"""

from collections.abc import Sequence
from dataclasses import replace

from eyas.contract.files.checkpoint import DTYPE_BITS, TensorInfo
from eyas.contract.reading.lookalike_findings import with_lookalikes
from eyas.contract.reading.map_findings import map_findings
from eyas.contract.reading.target_findings import target_findings
from eyas.contract.reading.trainer_findings import trainer_findings
from eyas.contract.spec.draft_reading import DraftReading
from eyas.contract.spec.draft_spec import FC_COLUMNS, DraftSpec
from eyas.contract.spec.expected_tensors import Expected, expected_tensors
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import SCALE_SUFFIXES, module_and_kind
from eyas.diagnostic import Diagnostic, Edit, finding
from eyas.talk import counted

_FLOATS = ("BF16", "F16", "F32")
_FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")


def draft_findings(reading: DraftReading, target: TargetSpec | None = None) -> list[Diagnostic]:
    """All findings about the draft itself, those of its reading included, in reading order."""
    return with_lookalikes(_found(reading, target), reading, target, lambda renamed: _found(renamed, target))


def _found(reading: DraftReading, target: TargetSpec | None) -> list[Diagnostic]:
    spec, where = reading.spec, reading.checkpoint.where
    return [
        *_with_misspelt_size(reading.findings, map_findings(reading)),
        *_tensor_findings(spec, where),
        *(target_findings(spec, target, where) if target is not None else ()),
        *trainer_findings(reading),
    ]


def _with_misspelt_size(of_config: Sequence[Diagnostic], of_maps: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Both, where the unknown key that is draft_vocab_size misspelt and its absence are one finding."""
    typo = next((f for f in of_config if f.code == "config-key-unknown" and "draft_vocab_size" in f.items), None)
    absent = next((f for f in of_maps if f.code == "draft-vocab-size-missing"), None)
    if typo is None or absent is None:
        return [*of_config, *of_maps]
    assert isinstance(absent.do, Edit), "map_findings says what to write"
    do = replace(absent.do, remark=f" in place of {typo.items[0]!r}")
    one = replace(absent, what=f"{absent.what}; {typo.what}", do=do)
    return [one if f is absent else f for f in (*of_config, *of_maps) if f is not typo]


def _tensor_findings(spec: DraftSpec, where: str) -> list[Diagnostic]:
    expected = expected_tensors(spec)
    quantized = _quantized_modules(spec)
    findings = [
        _missing(name, entry, where)
        for name, entry in expected.items()
        if entry.required and name not in spec.tensors and name != "d2t" and not _is_quantized(name, quantized)
    ]
    for name, info in spec.tensors.items():
        module, kind = module_and_kind(name)
        if kind in SCALE_SUFFIXES:
            continue
        if name not in expected:
            findings.append(_extra(name, info, spec, where))
        elif module in quantized:
            continue
        elif info.shape != expected[name].shape:
            findings.append(_shape(name, info, expected[name], spec, where))
        elif kind and info.dtype not in _FLOATS:
            findings.append(_dtype(name, info, where))
    if quantized:
        findings.append(_quantized_note(spec, quantized, where))
    findings += _mixed_dtypes(spec, where)
    findings += _fc_unstated(spec, where)
    return findings


def _quantized_modules(spec: DraftSpec) -> dict[str, str]:
    """Module -> what its weight is stored as, for modules with scales beside the weight."""
    found: dict[str, str] = {}
    for name in spec.tensors:
        module, kind = module_and_kind(name)
        if kind in SCALE_SUFFIXES and kind not in ("k_scale", "v_scale"):
            weight = next(
                (
                    spec.tensors[f"{module}.{k}"]
                    for k in ("weight", "weight_packed", "qweight")
                    if f"{module}.{k}" in spec.tensors
                ),
                None,
            )
            found[module] = weight.dtype if weight is not None else "nothing"
    return found


def _is_quantized(name: str, quantized: dict[str, str]) -> bool:
    module, kind = module_and_kind(name)
    return kind == "weight" and quantized.get(module, "nothing") != "nothing"


def _missing(name: str, entry: Expected, where: str) -> Diagnostic:
    is_fatal = name in ("fc.weight", "lm_head.weight") or name == "norm.weight"
    return finding(
        "tensor-missing",
        "fatal" if is_fatal else "error",
        f"{name} {list(entry.shape)} is missing",
        where,
        "no engine notices: the parameter keeps what memory held (a norm: ones), and the draft proposes worse",
        "export the draft again with this tensor",
        items=(name,),
    )


def _extra(name: str, info: TensorInfo, spec: DraftSpec, where: str) -> Diagnostic:
    if name.endswith(".bias"):
        key = "attention_bias" if ".self_attn." in name else "mlp_bias" if ".mlp." in name else "bias"
        return finding(
            "extra-bias",
            "error",
            f"{name} {list(info.shape)} is not part of the draft that config.json describes",
            where,
            f"{key} is not true there: engines drop the bias in silence",
            f"set {key} to true if the draft was trained with it (then see what the engine does), else remove it",
        )
    reason, do = "no switch of the config asks for it", "remove it, or set the switch it belongs to"
    if name.startswith(("fc_norm.", "input_norm.")):
        key = "fc_norm" if name.startswith("fc_norm.") else "norm_before_fc"
        reason, do = f"config.json does not set {key}: engines drop it or crash", f"set {key} to true in config.json"
    elif name.startswith("layers.") and int(name.split(".")[1]) >= spec.num_layers:
        reason, do = f"num_hidden_layers is {spec.num_layers}", "set num_hidden_layers to the layers that were trained"
    return finding(
        "tensor-unexpected", "error", f"{name} {list(info.shape)} has no place in this draft", where, reason, do
    )


def _shape(name: str, info: TensorInfo, entry: Expected, spec: DraftSpec, where: str) -> Diagnostic:
    if name == "fc.weight":
        return finding(
            "fc-width",
            "fatal",
            f"fc.weight is {list(info.shape)}, the config makes it {list(entry.shape)}",
            where,
            f"{spec.num_aux} aux states x target_hidden_size {spec.target_hidden_size} in, hidden_size"
            f" {spec.hidden_size} out ({spec.provenance.get('num_aux', '')})",
            "correct the aux layer ids, num_aux_hidden_states or target_hidden_size, or export fc again",
        )
    return finding(
        "tensor-shape",
        "error",
        f"{name} is {list(info.shape)}, the config makes it {list(entry.shape)}",
        where,
        "an engine crashes on it, or cuts or pads it in silence",
        "correct the size in config.json, or export the tensor again",
    )


def _dtype(name: str, info: TensorInfo, where: str) -> Diagnostic:
    why = "engines cast the numbers as they are"
    if info.dtype in _FP8:
        why = "fp8 values without a scale: engines cast them into the weight as they are"
    return finding(
        "tensor-dtype",
        "error",
        f"{name} is {info.dtype}",
        where,
        f"{why}; a weight is {', '.join(_FLOATS)}, or quantised with its scales beside it",
        "export the tensor again as BF16",
    )


def _quantized_note(spec: DraftSpec, quantized: dict[str, str], where: str) -> Diagnostic:
    kinds = sorted(set(quantized.values()))
    method = (spec.quantization or {}).get("quant_method") or (spec.quantization or {}).get("quant_algo")
    if spec.quantization is None:
        return finding(
            "quantization-undeclared",
            "error",
            f"{counted(len(quantized), 'module is', 'modules are')} quantised ({', '.join(kinds)}), config.json has no"
            " quantization_config",
            where,
            "engines build plain layers and lose or misread the scales",
            "add the quantization_config that the exporter used",
        )
    if "nothing" in kinds:
        alone = next(module for module, kind in quantized.items() if kind == "nothing")
        return finding(
            "tensor-missing", "error", f"{alone} has scales but no weight", where, "nothing to scale", "export it again"
        )
    bits = min(DTYPE_BITS[kind] for kind in kinds)
    return Diagnostic(
        code="draft-quantized",
        severity="note",
        what=f"a quantised draft: {method or 'no method named'}, {counted(len(quantized), 'module')},"
        f" {', '.join(kinds)}",
        where=where,
        why=f"recognised by the scales beside the weights; {bits}-bit storage, packed shapes are not checked",
    )


def _mixed_dtypes(spec: DraftSpec, where: str) -> list[Diagnostic]:
    kinds = sorted({info.dtype for name, info in spec.tensors.items() if info.dtype in _FLOATS and "." in name})
    if len(kinds) < 2:
        return []
    return [
        Diagnostic(
            code="tensor-dtypes-mixed",
            severity="note",
            what=f"weights are {' and '.join(kinds)}",
            where=where,
            why="engines cast all of them to one dtype while loading",
        )
    ]


def _fc_unstated(spec: DraftSpec, where: str) -> list[Diagnostic]:
    if spec.num_aux == 3 or spec.provenance.get("num_aux") != FC_COLUMNS:
        return []
    return [
        finding(
            "fc-width",
            "fatal",
            f"fc.weight takes {spec.num_aux} aux states, the config names none",
            where,
            "without layer ids or num_aux_hidden_states every engine builds fc for three",
            "write eagle_aux_hidden_state_layer_ids and num_aux_hidden_states as the draft was trained",
        )
    ]
