"""Public reports about engines: the right answer for each input, and for further members of its kind."""

import json
from pathlib import Path

import pytest

import damage_matrix
from eyas.cli.app import main
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


@shared
def test_a_float16_draft_under_a_bfloat16_target_crashes_on_sglang_unless_dtype_is_given():
    report = report_on("17-sglang-draft-dtype", "sglang==0.5.23", "vllm==0.33.0")

    assert report.ledgers["sglang==0.5.23"].verdict == "crash"
    (found,) = [f for f in report.findings if f.code == "draft-dtype"]
    assert 'write "torch_dtype": "bfloat16"' in found.advice
    assert "--dtype bfloat16" in " ".join(report.launch["sglang==0.5.23"].flags)
    assert report.withheld("sglang==0.5.23") is None
    assert report.ledgers["vllm==0.33.0"].verdict == "ok"


def test_another_dtype_hides_no_damage_of_the_load(tmp_path: Path):
    draft = damage_matrix.healthy(layer="layers.0").set(torch_dtype="float16")

    stages = report_of(tmp_path, draft, "sglang==0.5.9").ledgers["sglang==0.5.9"].stages

    assert (stages["load"], stages["capture"]) == (("silent-damage", "fatal"), ("crash", None))


@pytest.mark.parametrize(
    ("dtype", "target", "crashes"),
    [
        ("float16", "bfloat16", True),
        (None, "bfloat16", True),
        ("float32", "bfloat16", True),
        ("bfloat16", "float16", True),
        ("bfloat16", "bfloat16", False),
        ("torch.bfloat16", "bfloat16", False),
        ("float32", "float16", False),
        (None, "float32", False),
    ],
)
def test_sglang_serves_draft_and_target_each_in_the_dtype_of_its_config(
    tmp_path: Path, dtype: str | None, target: str, crashes: bool
):
    draft = damage_matrix.healthy().set(torch_dtype=dtype)

    report = report_of(tmp_path, draft, "sglang==0.5.12", torch_dtype=target)

    assert ("draft-dtype" in {f.code for f in report.findings}) == crashes
    assert ("--dtype" in report.launch["sglang==0.5.12"].flags) == crashes


def without_states(hidden: int = damage_matrix.H) -> damage_matrix.Draft:
    """A draft that sees the target's last hidden state and has no fc, as NVIDIA publishes some."""
    draft = damage_matrix.healthy().drop("fc.weight")
    draft.config["eagle_config"] = {"use_aux_hidden_state": False}
    return draft


@pytest.mark.parametrize("engine", ["sglang==0.5.9", "sglang==0.5.23", "vllm==0.25.1", "vllm==0.33.0"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MixtralForCausalLM"])
def test_a_draft_that_was_trained_without_aux_states_is_served_as_trained(
    tmp_path: Path, engine: str, architecture: str
):
    report = report_of(tmp_path, without_states(), engine, architectures=[architecture])

    assert report.ledgers[engine].verdict == "ok"
    assert {f.severity for f in report.findings} == {"note"}
    assert "aux-none" in {f.code for f in report.findings}


def test_the_same_switch_on_a_draft_with_an_fc_is_fatal(tmp_path: Path):
    draft = damage_matrix.healthy()
    draft.config["eagle_config"]["use_aux_hidden_state"] = False

    report = report_of(tmp_path, draft, "sglang==0.5.23")

    assert (report.ledgers["sglang==0.5.23"].verdict, report.ledgers["sglang==0.5.23"].severity) == (
        "silent-damage",
        "fatal",
    )


def test_without_the_switch_a_missing_fc_stays_fatal(tmp_path: Path):
    draft = without_states()
    draft.config["eagle_config"] = {}

    report = report_of(tmp_path, draft, "vllm==0.33.0")

    assert "tensor-missing" in {f.code for f in report.findings}


def test_without_aux_states_the_widths_must_be_equal(tmp_path: Path):
    report = report_of(tmp_path, without_states(), "vllm==0.33.0", hidden_size=2 * damage_matrix.H)

    assert "target-hidden-size" in {f.code for f in report.findings}


def parallel(key: str | None = "ptd_token_id", layer: str = "layers.0") -> damage_matrix.Draft:
    """A raw P-EAGLE draft: EAGLE-3 with a mask state and a mask token."""
    draft = damage_matrix.healthy(layer=layer).set(eagle_aux_hidden_state_layer_ids=list(damage_matrix.AUX))
    draft.add("mask_hidden", 1, 3 * damage_matrix.H)
    return draft.set(**{key: 5}) if key else draft


@pytest.mark.parametrize("key", ["ptd_token_id", "pard_token", "mask_token_id"])
@pytest.mark.parametrize("engine", ["vllm==0.25.1", "vllm==0.33.0"])
def test_a_raw_p_eagle_draft_is_launched_with_parallel_drafting_on_vllm(tmp_path: Path, key: str, engine: str):
    report = report_of(tmp_path, parallel(key), engine)

    assert report.ledgers[engine].verdict == "ok"
    assert '"parallel_drafting": true' in report.launch[engine].flags[1]
    assert {f.severity for f in report.findings} == {"note"}


@pytest.mark.parametrize("engine", ["sglang==0.5.9", "sglang==0.5.23"])
def test_sglang_drafts_it_one_token_a_step_and_nothing_is_lost(tmp_path: Path, engine: str):
    report = report_of(tmp_path, parallel(layer="midlayer"), engine)

    assert report.ledgers[engine].verdict == "ok"
    assert any("one token a step" in note for note in report.launch[engine].notes)


def test_a_mask_state_without_a_mask_token_is_not_launched_in_parallel(tmp_path: Path):
    report = report_of(tmp_path, parallel(None), "vllm==0.33.0")

    assert "parallel_drafting" not in report.launch["vllm==0.33.0"].flags[1]


def test_a_conversion_keeps_mask_state_and_mask_token(tmp_path: Path):
    from eyas.cli.app import main

    draft = damage_matrix.write(parallel(layer="midlayer"), tmp_path / "draft")
    target = damage_matrix.write_target(tmp_path / "target")

    assert main(["convert", str(draft), str(tmp_path / "out"), "--to", "vllm", "--target", str(target)]) == 0

    written = read_checkpoint(tmp_path / "out")
    assert written.tensors["mask_hidden"].shape == (1, 3 * damage_matrix.H)
    assert written.config["ptd_token_id"] == 5


@shared
@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("sglang==0.5.23", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"),
        ("vllm==0.25.1", "positions past 2048 are out of range; --max-model-len 2048"),
        ("vllm==0.33.0", "lowers the TARGET's max_model_len from 128000 to 2048"),
    ],
)
@pytest.mark.parametrize("command", ["check", "serve"])
def test_of_a_short_mrope_draft_one_thing_is_said_about_its_context(
    command: str, engine: str, says: str, capsys: pytest.CaptureFixture[str]
):
    folder = REPORTS / "02-qwen25vl-mrope"
    name, _, version = engine.partition("==")
    pair = ["--target", str(folder / "target.config.json")]
    words = ["check", str(folder / "draft.header.json"), *pair, "--for", engine]
    if command == "serve":
        words = ["serve", "--engine", name, "--engine-version", version, *pair, "--print"]
        words += ["--draft", str(folder / "draft.header.json"), "--force", "all"]

    main(words)

    told = capsys.readouterr()
    notes = [line for line in (told.out + told.err).splitlines() if "2048 tokens" in line]
    assert len(notes) == 1, notes
    assert says in notes[0]
