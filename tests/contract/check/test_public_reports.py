"""Public reports about engines: the right answer for each input, and for further members of its kind."""

import json
from pathlib import Path

import pytest

import damage_matrix
from eyas.contract.check.check import CheckReport, check
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint

REPORTS = Path(__file__).resolve().parents[4] / "shared" / "cases" / "reports"
shared = pytest.mark.skipif(not REPORTS.is_dir(), reason="the reports are not beside this checkout")


def report_on(name: str, *engines: str) -> CheckReport:
    folder = REPORTS / name
    target = read_target_checkpoint(folder / "target.config.json")
    return check(read_checkpoint(folder / "draft.header.json"), target, [parse_engine(e) for e in engines])


def report_of(folder: Path, draft: damage_matrix.Draft, engine: str, **target: object) -> CheckReport:
    """What `check` says of a made draft for the matrix' target with some keys changed."""
    path = damage_matrix.write_target(folder / "target") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | target))
    checkpoint = read_checkpoint(damage_matrix.write(draft, folder / "draft"))
    return check(checkpoint, read_target_checkpoint(path), [parse_engine(engine)])


@shared
def test_gemma_3_is_tapped_after_its_last_layer():
    report = report_on("04b-gemma3-27b-last-layer", "sglang==0.5.23")

    assert report.ledgers["sglang==0.5.23"].verdict == "ok"


@pytest.mark.parametrize(
    ("engine", "architecture", "is_tapped"),
    [
        ("sglang==0.5.12", "Gemma3ForConditionalGeneration", True),
        ("sglang==0.5.23", "Gemma4ForCausalLM", True),
        ("sglang==0.5.20", "MiniMaxM3SparseForCausalLM", False),
        ("sglang==0.5.23", "MiniMaxM3SparseForCausalLM", True),
        ("sglang==0.5.23", "LlamaForCausalLM", False),
        ("sglang==0.5.23", "Qwen3MoeForCausalLM", False),
        ("vllm==0.33.0", "LlamaForCausalLM", True),
    ],
)
def test_a_tap_after_the_last_layer_is_a_matter_of_the_target_class_and_the_version(
    tmp_path: Path, engine: str, architecture: str, is_tapped: bool
):
    draft = damage_matrix.healthy()
    last = damage_matrix.LAYERS - 1
    draft.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 14, last]
    if engine.startswith("vllm"):
        draft.config["eagle_aux_hidden_state_layer_ids"] = [2, 15, last + 1]

    report = report_of(tmp_path, draft, engine, architectures=[architecture])

    counted = [f for f in report.findings if f.code == "aux-count"]
    assert (counted == []) == is_tapped
    assert is_tapped or "1 of them past the last layer" in counted[0].why
