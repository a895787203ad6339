"""Each format is recognised by its content, with the evidence, and every switch has a source."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from drafts import (
    DraftBuild,
    flat_config,
    modelopt_config,
    sglang_name,
    speculators_config,
    tensors,
    write_draft,
    write_folder,
    write_target,
)
from eyas.contract.dialects.registry import DialectUnknown, NotADraft, dialect_named
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.reading.draft_findings import draft_findings
from eyas.contract.reading.read_draft import read_draft
from eyas.contract.spec.config_reader import DraftConfigIncomplete
from eyas.contract.spec.draft_spec import DraftReading
from eyas.contract.spec.target_spec import read_target
from eyas.diagnostic import SEVERITIES


def errors(reading: DraftReading, **kwargs: Any) -> list[str]:
    found = draft_findings(reading, **kwargs)
    return [f.code for f in found if SEVERITIES.index(f.severity) >= SEVERITIES.index("warning")]


def midlayer(build: DraftBuild) -> dict[str, Any]:
    return {sglang_name(name): value for name, value in tensors(build).items()}


def test_speculators_are_recognised_and_read(tmp_path: Path):
    build = DraftBuild(residual=True, norm_before_fc=True, norm_output=True, qk_norm=True, own_embedding=True)
    folder = write_folder(tmp_path, speculators_config(build), tensors(build))

    reading = read_draft(read_checkpoint(folder))

    assert reading.dialect == "speculators"
    assert "speculators_config in config.json" in reading.evidence
    spec = reading.spec
    assert (spec.residual, spec.aux_norm, spec.feedback) == ("post-norm", "over-concat", "post-norm")
    assert (spec.qk_norm, spec.embedding, spec.aux_boundaries) == (True, "own", (2, 6, 9))
    assert spec.provenance["residual"] == "config.json: norm_before_residual"
    assert "transformer_layer_config" in spec.provenance["hidden_size"]
    assert errors(reading) == []


def test_a_speculators_config_silent_on_the_residual_is_an_error(tmp_path: Path):
    config = speculators_config(DraftBuild())
    del config["norm_before_residual"]
    assert "residual-unstated" in errors(
        read_draft(read_checkpoint(write_folder(tmp_path, config, tensors(DraftBuild()))))
    )


def test_modelopt_is_recognised_and_its_ids_count_after_layers(tmp_path: Path):
    build = DraftBuild(t2d=False, aux=(3, 6, 10))
    reading = read_draft(read_checkpoint(write_folder(tmp_path, modelopt_config(build), tensors(build))))
    assert reading.dialect == "modelopt"
    assert reading.spec.aux_boundaries == (3, 6, 10)
    assert "modelopt-double-norm" in [f.code for f in draft_findings(reading)]
    assert errors(reading) == []


@pytest.mark.parametrize(
    ("changes", "dialect"),
    [
        ({}, "sglang"),
        ({"architectures": ["LlamaForCausalLM"]}, "eagle"),
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, "angelslim"),
        ({"target_model_type": "qwen3"}, "sglang"),
        ({"_torchspec_version": "0.1"}, "torchspec"),
    ],
)
def test_midlayer_formats_are_told_apart_by_their_config(tmp_path: Path, changes: dict[str, Any], dialect: str):
    config = {**flat_config(DraftBuild()), **changes}
    reading = read_draft(read_checkpoint(write_folder(tmp_path, config, midlayer(DraftBuild()))))
    assert reading.dialect == dialect
    assert reading.evidence
    assert errors(reading) == []


def test_a_bin_with_midlayer_is_the_eagle_repository(tmp_path: Path):
    torch = pytest.importorskip("torch")
    dtypes = {"BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool}
    state = {
        name: torch.frombuffer(bytearray(data), dtype=dtypes[dtype]).reshape(shape)
        for name, (dtype, shape, data) in midlayer(DraftBuild()).items()
    }
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(flat_config(DraftBuild())))
    reading = read_draft(read_checkpoint(tmp_path))
    assert (reading.dialect, reading.evidence) == ("eagle", ("weights in a .bin",))
    assert errors(reading) == []


def test_the_path_says_nothing(tmp_path: Path):
    folder = write_draft(tmp_path / "speculators-eagle3-midlayer.bin", names="layers")
    assert read_draft(read_checkpoint(folder)).dialect == "vllm"


def test_layers_formats_without_other_evidence_are_raw_vllm(tmp_path: Path):
    reading = read_draft(read_checkpoint(write_draft(tmp_path, residual=True, sliding_window=32)))
    assert reading.dialect == "vllm"
    assert (reading.spec.residual, reading.spec.sliding_window) == ("post-norm", 32)
    assert errors(reading) == []


@pytest.mark.parametrize("names", ["layers", "midlayer"])
def test_deeper_layers_are_canonical_in_either_spelling(tmp_path: Path, names: str):
    reading = read_draft(read_checkpoint(write_draft(tmp_path, layers=3, names=names)))
    assert reading.spec.num_layers == 3
    assert "layers.2.input_layernorm.weight" in reading.spec.tensors
    assert "layers.2.hidden_norm.weight" not in reading.spec.tensors
    assert errors(reading) == []


def test_an_mla_draft_is_read(tmp_path: Path):
    reading = read_draft(read_checkpoint(write_draft(tmp_path, mla=True, fc_norm=True)))
    assert reading.spec.draft_class == "mla"
    assert reading.spec.rope.interleaved
    assert errors(reading) == []


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_legacy_aux_norm_names_and_a_model_prefix_are_known(tmp_path: Path, prefix: str):
    build = DraftBuild(fc_norm=True)
    old = {"fc_norm.0": "aux_norm_low", "fc_norm.1": "aux_norm_mid", "fc_norm.2": "aux_norm_high"}
    found = {}
    for name, value in midlayer(build).items():
        for new, legacy in old.items():
            name = name.replace(new, legacy)
        found[prefix + name if name not in ("d2t", "t2d") else name] = value
    config = {**flat_config(build), "use_aux_norm": True}
    del config["fc_norm"]
    reading = read_draft(read_checkpoint(write_folder(tmp_path, config, found)))
    assert reading.spec.aux_norm == "per-state"
    assert errors(reading) == []


def test_the_targets_depth_gives_the_default_boundaries(tmp_path: Path):
    config = flat_config(DraftBuild())
    del config["eagle_aux_hidden_state_layer_ids"]
    folder = write_folder(tmp_path / "d", config, midlayer(DraftBuild()))
    assert read_draft(read_checkpoint(folder)).spec.aux_boundaries is None
    spec = read_draft(read_checkpoint(folder), read_target(write_target(tmp_path / "t"))).spec
    assert spec.aux_boundaries == (2, 6, 9)
    assert "default" in spec.provenance["aux_boundaries"]


def test_something_else_is_not_a_draft(tmp_path: Path):
    with pytest.raises(NotADraft):
        read_draft(read_checkpoint(write_target(tmp_path)))


def test_an_unknown_format_name_is_answered_with_the_known_ones():
    with pytest.raises(DialectUnknown, match="speculators"):
        dialect_named("onnx")
    assert dialect_named("SpecForge").name == "sglang"


def test_a_config_without_heads_cannot_be_completed(tmp_path: Path):
    config = flat_config(DraftBuild())
    del config["num_attention_heads"]
    with pytest.raises(DraftConfigIncomplete, match="num_attention_heads"):
        read_draft(read_checkpoint(write_folder(tmp_path, config, midlayer(DraftBuild()))))


def test_weights_without_a_config_are_told_that_it_is_missing(tmp_path: Path):
    with pytest.raises(DraftConfigIncomplete, match=r"no config\.json, or an empty one") as caught:
        read_draft(read_checkpoint(write_folder(tmp_path, {}, midlayer(DraftBuild()))))
    assert "beside its weights" in caught.value.do


def test_sizes_that_are_missing_come_from_the_tensors(tmp_path: Path):
    config = flat_config(DraftBuild())
    for key in ("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_aux_hidden_states"):
        del config[key]
    reading = read_draft(read_checkpoint(write_folder(tmp_path, config, midlayer(DraftBuild()))))
    assert (reading.spec.hidden_size, reading.spec.intermediate_size, reading.spec.vocab_size) == (16, 24, 64)
    assert reading.spec.provenance["hidden_size"] == "length of norm.weight"


def test_public_drafts_are_read_as_they_were_trained(shared: Path, tmp_path: Path):
    sys.path.insert(0, str(shared / "cases"))
    try:
        import make  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    for file in sorted((shared / "cases").glob("*.json")):
        case = json.loads(file.read_text())
        make.write_draft(case, tmp_path / case["id"] / "draft")
        make.write_target(case, tmp_path / case["id"] / "target")
        target = read_target(tmp_path / case["id"] / "target")
        reading = read_draft(read_checkpoint(tmp_path / case["id"] / "draft"), target)
        assert list(reading.spec.aux_boundaries or ()) == case["trained_aux"]["boundaries"], case["id"]
        found = errors(reading, target=target)
        if case["healthy"]:
            assert found == [], case["id"]
        else:
            wanted = {"b11": "d2t-missing", "b13": "d2t-absolute", "b25": None}[case["id"][:3]]
            assert found == ([wanted] if wanted else []), case["id"]
