"""Whatever a config says, `check` answers in bounded time and memory, and every number has a type and a range."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import damage_matrix
from checked_drafts import checked
from damage_matrix import Draft, healthy
from eyas.cli.app import main
from eyas.contract.files.git_lfs import refuse_pointer_file
from eyas.contract.files.json_file import JsonInvalid, parse_json


def _many_tensors() -> Draft:
    draft = healthy()
    for i in range(20_000):
        draft.add(f"blocks.{i}.junk.weight", 3)
    return draft


ENDLESS: dict[str, Callable[[], Draft]] = {
    "a million layers": lambda: healthy().set(num_hidden_layers=1_000_000),
    "many keys": lambda: healthy().set(**{f"key_number_{i}": 1 for i in range(200_000)}),
    "many nested keys": lambda: healthy().set(eagle_config={f"key_number_{i}": 1 for i in range(200_000)}),
    "many tensors": _many_tensors,
    "many layer types": lambda: healthy().set(layer_types=["full_attention"] * 1_000_000),
    "many aux ids": lambda: healthy().set(eagle_aux_hidden_state_layer_ids=list(range(300_000))),
}


@pytest.mark.parametrize("build", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_config_is_answered_soon_and_shortly(build: Callable[[], Draft]):
    draft, begin = build(), time.monotonic()

    report = checked(draft)

    assert time.monotonic() - begin < 20  # minutes and gigabytes before
    assert len(report.findings) < 600
    assert sum(len(str(finding)) for finding in report.findings) < 300_000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", 3),
        ("rope_theta", 0),
        ("rope_theta", -1.0),
        ("rope_theta", "big"),
        ("partial_rotary_factor", -1),
        ("partial_rotary_factor", 3),
        ("rope_scaling", {"rope_type": "linear", "factor": 0}),
        ("rope_scaling", {"rope_type": "linear", "factor": -2.0}),
        ("rope_scaling", {"rope_type": "linear", "factor": "2"}),
        ("rope_scaling", {"rope_type": "nope", "factor": 2.0}),
        ("rope_scaling", [1, 2]),
        ("rope_parameters", {"rope_type": "default", "rope_theta": -5.0}),
        ("vocab_size", 1 << 40),
        ("hidden_size", 1 << 40),
        ("num_key_value_heads", 1 << 40),
        ("num_hidden_layers", 1 << 62),
        ("sliding_window", 1 << 62),
        ("max_position_embeddings", -1),
        ("rope_scaling", {"rope_type": [], "factor": 2.0}),
        ("rope_scaling", {"rope_type": {}, "factor": 2.0}),
        ("rope_parameters", {"type": ["linear"], "factor": 2.0}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0, "attention_factor": "x"}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0, "mscale": -1}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0, "truncate": "no"}),
        ("rope_scaling", {"rope_type": "longrope", "short_factor": 1.0, "long_factor": [2.0]}),
        ("rope_scaling", {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [0]}),
        ("rope_scaling", {"rope_type": "longrope", "short_factor": [1.0]}),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}),
        ("rope_scaling", {"rope_type": "linear", "factor": None}),
        ("rope_scaling", {"type": "mrope", "mrope_section": 16}),
        ("rope_is_neox_style", "yes"),
        ("original_max_position_embeddings", "x"),
        ("num_aux_hidden_states", "x"),
        ("num_aux_hidden_states", 0.5),
        ("use_sliding_window", "x"),
        ("layer_types", "full_attention"),
        ("layer_types", [1]),
        ("max_window_layers", -1),
        ("quantization_config", "fp8"),
        ("dtype", 0),
        ("torch_dtype", []),
        ("architectures", "LlamaForCausalLMEagle3"),
        ("eos_token_id", 2.5),
        ("pad_token_id", "x"),
    ],
)
def test_a_value_outside_its_range_is_an_error(key: str, value: Any):
    found = [f for f in checked(healthy().set(**{key: value})).findings if f.code == "config-value-invalid"]

    assert found
    assert any(item.startswith(key) for item in found[0].items)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1},
        {"type": "dynamic", "factor": 2},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"type": "mrope", "mrope_section": [16, 24, 24]},
        {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
    ],
)
def test_the_known_kinds_of_rope_are_no_alarm(scaling: dict[str, Any]):
    report = checked(healthy().set(rope_scaling=scaling))

    assert "config-value-invalid" not in {f.code for f in report.findings}


@pytest.mark.parametrize("opening", [b'{"a":', b"["])
def test_a_document_of_many_levels_is_refused_before_anything_walks_it(opening: bytes):
    closing = b"}" if opening.startswith(b"{") else b"]"
    for depth in (100, 900, 100_000):
        with pytest.raises(JsonInvalid):
            parse_json(opening * depth + b"1" + closing * depth, "x")
    assert parse_json(opening * 60 + b"1" + closing * 60, "x")


def test_a_deep_config_and_a_fifo_end_in_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draft = damage_matrix.write(healthy(), tmp_path / "draft")
    (draft / "config.json").write_text('{"a":' * 900 + "1" + "}" * 900)
    assert main(["check", str(draft)]) == 2
    for name in ("config.json", "model.safetensors"):
        folder = damage_matrix.write(healthy(), tmp_path / name)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        assert main(["check", str(folder)]) in (1, 2)
    os.mkfifo(tmp_path / "fifo")
    refuse_pointer_file(tmp_path / "fifo")
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("shape", [[1 << 62], [1 << 62, 1 << 62], [1 << 31] * 60])
def test_shapes_that_no_memory_holds_are_refused_in_a_dump(
    shape: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    tensors = {"fc.weight": {"dtype": "BF16", "shape": shape, "file": None}}
    document = {"schema": "eyas.header/1", "name": "x", "config": healthy().config, "tensors": tensors}
    path = tmp_path / "d.json"
    path.write_text(json.dumps(document))

    assert main(["check", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["code"] == "dump-invalid"
