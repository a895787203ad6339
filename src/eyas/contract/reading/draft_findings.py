"""What is wrong with a draft itself, whatever the engine: tensors, vocabulary maps, head, fit to its target.

Engines' own faults (names they drop, keys they ignore) are the ledger's business.
Source of what trainers do: ModelOpt (double norm since bdd10c2d), SpecForge (`norm_output` with pre-norm feedback).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eyas.contract.files.checkpoint import DTYPE_BITS, TensorInfo
from eyas.contract.reading.lookalikes import with_lookalikes
from eyas.contract.reading.map_findings import map_findings
from eyas.contract.reading.target_fit import size_findings
from eyas.contract.spec.draft_spec import FC_COLUMNS, DraftReading, DraftSpec
from eyas.contract.spec.expected_tensors import Expected, expected_tensors
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import PACKED_WEIGHTS, SCALE_SUFFIXES, module_and_kind
from eyas.diagnostic import Diagnostic, Edit, Remedies, finding
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
        *_overstated_layers(spec, target, where),
        *_tensor_findings(spec, where),
        *(size_findings(spec, target, where) if target is not None else ()),
        *_trainer_findings(reading),
    ]


def _with_misspelt_size(of_config: Sequence[Diagnostic], of_maps: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The two findings merged, if an unknown key is a misspelt draft_vocab_size and that key is missing."""
    typo = next((f for f in of_config if f.code == "config-key-unknown" and "draft_vocab_size" in f.items), None)
    absent = next((f for f in of_maps if f.code == "draft-vocab-size-missing"), None)
    if typo is None or absent is None:
        return [*of_config, *of_maps]
    assert isinstance(absent.do, Edit), "map_findings says what to write"
    do = replace(absent.do, remark=f" in place of {typo.items[0]!r}")
    one = replace(absent, what=f"{absent.what}; {typo.what}", do=do)
    return [one if f is absent else f for f in (*of_config, *of_maps) if f is not typo]


def stored_layers(spec: DraftSpec) -> int:
    """Number of layers that some tensor belongs to, where they are the first ones; else what the config says."""
    layers = {int(name.split(".")[1]) for name in spec.tensors if name.startswith("layers.")}
    return len(layers) if layers == set(range(len(layers))) and layers else spec.num_layers


def _overstated_layers(spec: DraftSpec, target: TargetSpec | None, where: str) -> list[Diagnostic]:
    """One finding for all the tensors of layers that the file does not hold: the config is wrong, or the export."""
    stored = stored_layers(spec)
    if stored >= spec.num_layers:
        return []
    is_targets = target is not None and target.num_layers == spec.num_layers
    what = f"num_hidden_layers is {spec.num_layers}, the checkpoint holds {counted(stored, 'layer')}"
    why = f"{'that is the number of layers of the target; ' if is_targets else ''}engines build all of them, unfilled"
    do = (Edit("num_hidden_layers", stored), "export the draft again with all of its layers")
    return [finding("layers-overstated", "error", what, f"{where}: config.json", why, do, items=("num_hidden_layers",))]


def _tensor_findings(spec: DraftSpec, where: str) -> list[Diagnostic]:
    expected = expected_tensors(replace(spec, num_layers=min(spec.num_layers, stored_layers(spec))))
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
        if name == "mask_hidden":  # of parallel drafting; any shape that holds one fused state
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
    return [*findings, *_mixed_dtypes(spec, where), *_fc_unstated(spec, where)]


def _quantized_modules(spec: DraftSpec) -> dict[str, str]:
    """Module -> what its weight is stored as, for modules with scales beside the weight."""
    found: dict[str, str] = {}
    for name in spec.tensors:
        module, kind = module_and_kind(name)
        if kind in SCALE_SUFFIXES and kind not in ("k_scale", "v_scale"):
            stored = (spec.tensors.get(f"{module}.{kind}") for kind in ("weight", *PACKED_WEIGHTS))
            found[module] = next((info.dtype for info in stored if info is not None), "nothing")
    return found


def _is_quantized(name: str, quantized: Mapping[str, str]) -> bool:
    module, kind = module_and_kind(name)
    return kind == "weight" and quantized.get(module, "nothing") != "nothing"


def _missing(name: str, entry: Expected, where: str) -> Diagnostic:
    is_fatal = name in ("fc.weight", "lm_head.weight", "norm.weight")
    what = f"{name} {list(entry.shape)} is missing"
    why = "no engine notices: the parameter keeps what memory held (a norm: ones), and the draft proposes worse"
    do = "export the draft again with this tensor"
    return finding("tensor-missing", "fatal" if is_fatal else "error", what, where, why, do, items=(name,))


def _extra(name: str, info: TensorInfo, spec: DraftSpec, where: str) -> Diagnostic:
    if name.endswith(".bias"):
        key = "attention_bias" if ".self_attn." in name else "mlp_bias" if ".mlp." in name else "bias"
        what = f"{name} {list(info.shape)} is not part of the draft that config.json describes"
        dropped = f"{key} is not true there: engines drop the bias in silence"
        trained = Edit(key, True, " if the draft was trained with it (then see what the engine does)")
        return finding("extra-bias", "error", what, where, dropped, (trained, "remove the tensor"), items=(name,))
    do: Remedies = ("remove it", "set the switch that it belongs to")
    why = "no switch of the config asks for it"
    if name.startswith(("fc_norm.", "input_norm.")):
        key = "fc_norm" if name.startswith("fc_norm.") else "norm_before_fc"
        why, do = f"config.json does not set {key}: engines drop it or crash", Edit(key, True)
    elif name.startswith("layers.") and int(name.split(".")[1]) >= spec.num_layers:
        why, do = f"num_hidden_layers is {spec.num_layers}", "set num_hidden_layers to the layers that were trained"
    what = f"{name} {list(info.shape)} has no place in this draft"
    return finding("tensor-unexpected", "error", what, where, why, do, items=(name,))


def _shape(name: str, info: TensorInfo, entry: Expected, spec: DraftSpec, where: str) -> Diagnostic:
    what = f"{name} is {list(info.shape)}, the config makes it {list(entry.shape)}"
    if name == "fc.weight":
        why = (
            f"{spec.num_aux} aux states x target_hidden_size {spec.target_hidden_size} in, hidden_size"
            f" {spec.hidden_size} out ({spec.provenance.get('num_aux', '')})"
        )
        do = "correct the aux layer ids, num_aux_hidden_states or target_hidden_size, or export fc again"
        return finding("fc-width", "fatal", what, where, why, do, items=(name,))
    why, do = "an engine crashes on it, or cuts or pads it in silence", "correct the size in config.json"
    return finding("tensor-shape", "error", what, where, why, (do, "export the tensor again"), items=(name,))


def _dtype(name: str, info: TensorInfo, where: str) -> Diagnostic:
    is_fp8 = info.dtype in _FP8
    cast = "fp8 values without a scale: engines cast them into the weight" if is_fp8 else "engines cast the numbers"
    why = f"{cast} as they are; a weight is {', '.join(_FLOATS)}, or quantised with its scales beside it"
    return finding(
        "tensor-dtype", "error", f"{name} is {info.dtype}", where, why, "export the tensor again as BF16", items=(name,)
    )


def _quantized_note(spec: DraftSpec, quantized: Mapping[str, str], where: str) -> Diagnostic:
    kinds = sorted(set(quantized.values()))
    method = (spec.quantization or {}).get("quant_method") or (spec.quantization or {}).get("quant_algo")
    if spec.quantization is None:
        number = counted(len(quantized), "module is", "modules are")
        what = f"{number} quantised ({', '.join(kinds)}), config.json has no quantization_config"
        why, do = "engines build plain layers and lose or misread the scales", "add the exporter's quantization_config"
        return finding("quantization-undeclared", "error", what, where, why, do)
    if "nothing" in kinds:
        alone = next(module for module, kind in quantized.items() if kind == "nothing")
        what, why = f"{alone} has scales but no weight", "nothing to scale"
        return finding("tensor-missing", "error", what, where, why, "export it again", items=(alone,))
    bits = min(DTYPE_BITS[kind] for kind in kinds)
    number = counted(len(quantized), "module")
    what = f"a quantised draft: {method or 'no method named'}, {number}, {', '.join(kinds)}"
    why = f"recognised by the scales beside the weights; {bits}-bit storage, packed shapes are not checked"
    return finding("draft-quantized", "note", what, where, why)


def _mixed_dtypes(spec: DraftSpec, where: str) -> list[Diagnostic]:
    kinds = sorted({info.dtype for name, info in spec.tensors.items() if info.dtype in _FLOATS and "." in name})
    if len(kinds) < 2:
        return []
    why = "engines cast all of them to one dtype while loading"
    return [finding("tensor-dtypes-mixed", "note", f"weights are {' and '.join(kinds)}", where, why)]


def _fc_unstated(spec: DraftSpec, where: str) -> list[Diagnostic]:
    if spec.num_aux == 3 or spec.provenance.get("num_aux") != FC_COLUMNS:
        return []
    what = f"fc.weight takes {spec.num_aux} aux states, the config names none"
    why = "without layer ids or num_aux_hidden_states every engine builds fc for three"
    do = "write eagle_aux_hidden_state_layer_ids and num_aux_hidden_states as the draft was trained"
    return [finding("fc-width", "fatal", what, where, why, do, items=("fc.weight",))]


def _trainer_findings(reading: DraftReading) -> list[Diagnostic]:
    """Known faults of the trainer that wrote the draft, whether or not a checkpoint can show them."""
    spec, where, config = reading.spec, reading.checkpoint.where, reading.checkpoint.config
    if "eyas.json" in reading.checkpoint.extra:
        return []
    if reading.dialect == "modelopt":
        what = "a ModelOpt draft: it may have been trained with a second norm on the hidden states"
        why = (
            "since December 2025 its Hugging Face path norms them with input_layernorm before hidden_norm; names and"
            " shapes are the same, only a measurement can show it"
        )
        do = "compare accept length in training and by `eyas eval`; a large gap is this"
        return [finding("modelopt-double-norm", "note", what, where, why, do)]
    if reading.dialect == "sglang" and spec.feedback == "post-norm":
        # SpecForge's export writes both spellings of RoPE; others that write midlayer.* do not
        is_specforge = "rope_parameters" in config and "rope_scaling" in config and spec.embedding == "target"
        what = f"norm_output is true in a draft that SpecForge {'wrote' if is_specforge else 'may have written'}"
        why = "SpecForge trains with the pre-norm state fed back even then; engines feed back the normed one"
        do = "compare both with `eyas infer`, or set norm_output to false and measure"
        return [finding("specforge-norm-output", "warning" if is_specforge else "note", what, where, why, do)]
    return []
