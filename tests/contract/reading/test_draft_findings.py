"""Faults planted in a draft are found by name; the intact draft has none."""

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drafts import (
    DraftBuild,
    draft_ids,
    flat_config,
    sglang_name,
    tensors,
    write_draft,
    write_folder,
    write_target,
)
from eyas.contract.files.header_dump import dump_document
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.files.safetensors_header import FileTruncated
from eyas.contract.reading.draft_findings import draft_findings
from eyas.contract.reading.open_draft import DraftDamaged, DraftWithoutWeights, open_draft
from eyas.contract.reading.read_draft import read_draft
from eyas.contract.spec.target_spec import read_target
from eyas.diagnostic import SEVERITIES, Diagnostic

BUILD = DraftBuild()
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
Damage = Callable[[dict[str, Any], Tensors], None]


def damaged(folder: Path, damage: Damage, build: DraftBuild = BUILD) -> Path:
    config = flat_config(build)
    found = {sglang_name(name): value for name, value in tensors(build).items()}
    damage(config, found)
    return write_folder(folder, config, found)


def findings(folder: Path, target: Path | None = None) -> list[Diagnostic]:
    spec = read_target(target) if target else None
    return draft_findings(read_draft(read_checkpoint(folder), spec), spec)


def serious(found: list[Diagnostic]) -> dict[str, str]:
    return {f.code: f.severity for f in found if SEVERITIES.index(f.severity) >= SEVERITIES.index("warning")}


def drop(*names: str) -> Damage:
    return lambda config, found: [found.pop(name) for name in names] and None


def put(name: str, shape: tuple[int, ...], dtype: str = "BF16") -> Damage:
    size = {"BF16": 2, "F8_E4M3": 1, "I32": 4, "F32": 4}[dtype]
    count = 1
    for length in shape:
        count *= length

    def change(config: dict[str, Any], found: Tensors) -> None:
        found[name] = (dtype, shape, b"\1" * (count * size))

    return change


def keys(**changes: Any) -> Damage:
    def change(config: dict[str, Any], found: Tensors) -> None:
        for key, value in changes.items():
            config.pop(key, None)
            if value is not ...:
                config[key] = value

    return change


def offsets(make: Callable[[list[int]], list[int]]) -> Damage:
    def change(config: dict[str, Any], found: Tensors) -> None:
        values = make(draft_ids(BUILD))
        found["d2t"] = ("I64", (len(values),), array("q", values).tobytes())

    return change


def both(*damages: Damage) -> Damage:
    def change(config: dict[str, Any], found: Tensors) -> None:
        for damage in damages:
            damage(config, found)

    return change


def test_an_intact_draft_has_no_finding_worth_a_warning(tmp_path: Path):
    assert serious(findings(damaged(tmp_path, lambda config, found: None))) == {}


SHIFTED = {"d2t-out-of-range": "fatal", "t2d-disagrees": "error"}
MIXED = {"d2t-unsorted": "warning", "t2d-disagrees": "error"}
CASES: list[tuple[str, Damage, dict[str, str]]] = [
    ("no fc", drop("fc.weight"), {"tensor-missing": "fatal"}),
    ("no q", drop("midlayer.self_attn.q_proj.weight"), {"tensor-missing": "error"}),
    ("no hidden_norm", drop("midlayer.hidden_norm.weight"), {"tensor-missing": "error"}),
    ("no head", drop("lm_head.weight"), {"lm-head-missing": "fatal"}),
    ("no d2t", drop("d2t"), {"d2t-missing": "fatal"}),
    ("no t2d", drop("t2d"), {}),
    ("float offsets", put("d2t", (40,), "F32"), {"d2t-unreadable": "error"}),
    ("a float mask", put("t2d", (64,), "F32"), {"d2t-unreadable": "error"}),
    ("a mask of two dimensions", put("t2d", (8, 8), "I32"), {"d2t-unreadable": "error", "tensor-shape": "error"}),
    ("absolute ids", offsets(lambda ids: ids), {"d2t-absolute": "fatal"}),
    ("absolute ids, no t2d", both(offsets(lambda ids: ids), drop("t2d")), {"d2t-absolute": "fatal"}),
    ("shifted by one", offsets(lambda ids: [t - i + 1 for i, t in enumerate(ids)]), SHIFTED),
    ("shifted down", offsets(lambda ids: [max(-i, t - i - 1) for i, t in enumerate(ids)]), MIXED),
    ("arange", offsets(lambda ids: list(range(len(ids) - 10)) + [0] * 10), MIXED),
    ("zeros", offsets(lambda ids: [0] * len(ids)), {"d2t-zero": "warning", "t2d-disagrees": "error"}),
    ("q bias", put("midlayer.self_attn.q_proj.bias", (32,)), {"extra-bias": "error"}),
    ("fc bias", put("fc.bias", (16,)), {"extra-bias": "error"}),
    ("mlp bias", put("midlayer.mlp.up_proj.bias", (24,)), {"extra-bias": "error"}),
    ("fc for two states", put("fc.weight", (16, 32)), {"fc-width": "fatal"}),
    ("fc of odd width", put("fc.weight", (16, 47)), {"fc-width": "fatal"}),
    ("two ids", keys(eagle_aux_hidden_state_layer_ids=[2, 6], num_aux_hidden_states=...), {"fc-width": "fatal"}),
    (
        "two states, none named",
        both(put("fc.weight", (16, 32)), keys(eagle_aux_hidden_state_layer_ids=..., num_aux_hidden_states=...)),
        {"fc-width": "fatal"},
    ),
    ("short q", put("midlayer.self_attn.q_proj.weight", (31, 32)), {"tensor-shape": "error"}),
    ("q without the embedding half", put("midlayer.self_attn.q_proj.weight", (32, 16)), {"tensor-shape": "error"}),
    ("input_norm without its flag", put("input_norm.weight", (48,)), {"tensor-unexpected": "error"}),
    ("fc_norm without its flag", put("fc_norm.0.weight", (16,)), {"tensor-unexpected": "error"}),
    ("a second layer", put("layers.1.mlp.up_proj.weight", (24, 16)), {"tensor-unexpected": "error"}),
    ("a stranger", put("midlayer.self_attn.rotary_emb.inv_freq", (4,), "F32"), {"tensor-unknown": "error"}),
    ("a prefix", put("eagle_module.fc.weight", (16, 48)), {"tensor-unknown": "error"}),
    ("one tensor twice", put("layers.0.mlp.up_proj.weight", (24, 16)), {"tensor-ambiguous": "error"}),
    ("fp8 without a scale", put("midlayer.mlp.up_proj.weight", (24, 16), "F8_E4M3"), {"tensor-dtype": "error"}),
    ("flag without input_norm", keys(norm_before_fc=True), {"tensor-missing": "error"}),
    ("an unknown key", keys(norm_befor_fc=True), {"config-key-unknown": "error"}),
    ("a wrong type", keys(norm_output="yes"), {"config-value-invalid": "error"}),
    ("a head without its key", keys(draft_vocab_size=...), {"draft-vocab-size-missing": "error"}),
    ("a switch nobody knows", keys(logit_scale=0.5), {"config-switch-unsupported": "error"}),
    ("two thetas", keys(rope_parameters={"rope_theta": 1.0}), {"rope-spellings-disagree": "error"}),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_planted_fault_is_found_by_name(tmp_path: Path, damage: Damage, wanted: dict[str, str]):
    assert serious(findings(damaged(tmp_path, damage))) == wanted


def test_a_planted_fault_stops_open_draft_and_strict_off_does_not(tmp_path: Path):
    folder = damaged(tmp_path, drop("fc.weight"))
    with pytest.raises(DraftDamaged, match=r"fc\.weight"):
        open_draft(folder)
    assert "fc.weight" not in open_draft(folder, strict=False).tensors


@pytest.mark.parametrize("what", ["dump", "config"])
def test_what_has_no_weights_is_refused_by_name(tmp_path: Path, what: str):
    folder = write_draft(tmp_path)
    (folder / "dump.json").write_text(json.dumps(dump_document(read_checkpoint(folder))))
    with pytest.raises(DraftWithoutWeights, match="no weights"):
        open_draft(folder / ("dump.json" if what == "dump" else "config.json"))


def test_open_draft_says_where_each_tensor_lies(tmp_path: Path):
    folder = write_draft(tmp_path)
    spec = open_draft(folder)
    info = spec.tensors["layers.0.mlp.up_proj.weight"]
    assert (folder / str(info.file)).read_bytes()[info.begin : info.end] == tensors(BUILD)[
        "layers.0.mlp.up_proj.weight"
    ][2]


def test_a_truncated_file_is_named_before_anything_else(tmp_path: Path):
    folder = write_draft(tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(FileTruncated):
        open_draft(folder)


def test_arange_offsets_are_recognised(tmp_path: Path):
    build = DraftBuild(draft_vocab=20)
    folder = damaged(tmp_path, lambda c, f: f.update(d2t=("I64", (20,), array("q", range(20)).tobytes())), build)
    assert "d2t-arange" in serious(findings(folder))


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"hidden_size": 32}, "target-hidden-size"),
        ({"vocab_size": 128}, "vocab-size"),
        ({"num_hidden_layers": 8}, "aux-out-of-range"),
    ],
)
def test_a_draft_for_another_target_is_named(tmp_path: Path, config: dict[str, Any], code: str):
    import json

    target = write_target(tmp_path / "t", weights=False)
    text = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(text | config))
    assert code in serious(findings(write_draft(tmp_path / "d"), target))


def test_unsorted_layers_are_named(tmp_path: Path):
    assert "aux-unsorted" in serious(findings(write_draft(tmp_path / "d", aux=(9, 2, 6)), write_target(tmp_path / "t")))


def test_a_quantised_draft_is_recognised_by_its_scales(tmp_path: Path):
    damage = both(
        put("midlayer.mlp.up_proj.weight", (24, 16), "F8_E4M3"),
        put("midlayer.mlp.up_proj.weight_scale", (24, 1), "F32"),
        keys(quantization_config={"quant_method": "compressed-tensors"}),
    )
    found = findings(damaged(tmp_path, damage))
    assert serious(found) == {}
    note = next(f for f in found if f.code == "draft-quantized")
    assert "compressed-tensors" in note.what
    assert "F8_E4M3" in note.what


def test_scales_without_a_quantisation_config_are_an_error(tmp_path: Path):
    damage = both(
        put("midlayer.mlp.up_proj.weight_packed", (24, 2), "I32"),
        put("midlayer.mlp.up_proj.weight_scale", (24, 1)),
        drop("midlayer.mlp.up_proj.weight"),
    )
    assert serious(findings(damaged(tmp_path, damage))) == {"quantization-undeclared": "error"}


def test_every_serious_finding_says_what_to_do(tmp_path: Path):
    for number, (_, damage, _) in enumerate(CASES):
        for finding in findings(damaged(tmp_path / str(number), damage)):
            assert finding.severity == "note" or finding.advice, finding


def test_inert_keys_are_one_note(tmp_path: Path):
    found = findings(damaged(tmp_path, keys(use_cache=True, initializer_range=0.02)))
    notes = [f for f in found if f.code == "config-key-inert"]
    assert len(notes) == 1
    assert "initializer_range, use_cache" in notes[0].why


def test_the_dtype_is_not_inert_since_sglang_computes_in_it(tmp_path: Path):
    found = findings(damaged(tmp_path, keys(torch_dtype="bfloat16", dtype="bfloat16")))
    assert not {"config-key-inert", "config-key-unknown"} & {f.code for f in found}
