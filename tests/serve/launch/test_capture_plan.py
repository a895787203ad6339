"""`serve --capture`: the command that it composes, what it refuses, and the folder that rows wait in."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eyas.cli.app import main
from eyas.contract.engines.capturing import CaptureWish
from eyas.contract.engines.launching.serve_options import ServeOptions, ServeOptionsInvalid
from eyas.serve.launch.capture_plan import CaptureOptions, plan_capture
from eyas.serve.launch.launch_plan import LaunchPlan, LaunchRequest
from eyas.serve.launch.spool_folder import SpoolInUse, spool_folder
from eyas.talk import Silent

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 30}
MLA = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "kv_lora_rank": 16,
}
KIMI = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": MLA}


def plan(
    folder: Path,
    engine: Any,
    version: str,
    config: Mapping[str, Any] = LLAMA,
    *extra: str,
    capture: CaptureOptions | None = None,
    options: ServeOptions | None = None,
) -> LaunchPlan:
    target = folder / "target"
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps(config))
    request = LaunchRequest(
        engine=engine,
        target=str(target),
        target_folder=target,
        draft=None,
        options=options or ServeOptions(),
        extra=extra,
        engine_version=version,
    )
    return plan_capture(
        request, capture or CaptureOptions(), caller={"PYTHONPATH": "/mine"}, cache=folder / "cache", talk=Silent()
    )


def ids(found: LaunchPlan) -> Any:
    return json.loads(found.environment.variables["EYAS_CAPTURE"])["layer_ids"]


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("0.5.10", None),
        ("0.5.12", "--disable-piecewise-cuda-graph"),
        ("0.5.15.post1", "--disable-prefill-cuda-graph"),
        ("0.5.23", "--disable-prefill-cuda-graph"),
    ],
)
def test_sglang_computes_every_row_whole_and_outside_graphs(tmp_path: Path, version, flag):
    found = plan(tmp_path, "sglang", version)

    assert found.may_start, found.refused
    assert "--disable-radix-cache" in found.command.argv
    assert [word for word in found.command.argv if "cuda-graph" in word] == ([flag] if flag else [])
    assert not [word for word in found.command.argv if "speculative" in word]
    site, shared, mine = found.environment.variables["PYTHONPATH"].split(":")
    assert (Path(site) / "sitecustomize.py").exists()
    assert (Path(shared) / "eyas_spool.py").exists()
    assert mine == "/mine"


@pytest.mark.parametrize(
    ("version", "config", "boundaries", "wanted"),
    [
        ("0.5.15.post1", LLAMA, None, [1, 14, 26]),  # of 2, 15, 27: the class adds one
        ("0.5.12", MLA, (2, 4, 5), [1, 3, 4]),
        ("0.5.13", MLA, (2, 4, 5), [1, 3, 4]),  # adds one since the first is 1 ...
        ("0.5.13", MLA, (3, 4, 5), [3, 4, 5]),  # ... and here not
        ("0.5.23", KIMI, (3, 4, 5), [3, 4, 5]),
    ],
)
def test_layer_ids_are_written_as_the_target_s_class_reads_them(tmp_path: Path, version, config, boundaries, wanted):
    assert ids(plan(tmp_path, "sglang", version, config, capture=CaptureOptions(boundaries=boundaries))) == wanted


def test_vllm_keeps_states_in_the_place_of_a_draft_and_hands_them_to_our_connector(tmp_path: Path):
    found = plan(tmp_path, "vllm", "0.25.1")

    assert found.may_start, found.refused
    argv = found.command.argv
    draft = json.loads(argv[argv.index("--speculative-config") + 1])
    connector = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    assert draft["method"] == "extract_hidden_states"
    assert draft["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 15, 27, 30]
    site = found.environment.variables["PYTHONPATH"].split(":")[0]
    assert (Path(site) / f"{connector['kv_connector_module_path']}.py").exists()
    assert json.loads(connector["kv_connector_extra_config"]["eyas_capture"])["boundaries"] == [2, 15, 27]


@pytest.mark.parametrize(
    ("engine", "version", "config", "extra", "code", "says"),
    [
        ("sglang", "0.5.9", LLAMA, (), "capture-version", "no request ids"),
        ("vllm", "0.20.0", LLAMA, (), "capture-version", "use 0.25.1 or newer"),
        ("vllm", "0.33.0", MLA, (), "capture-target", "use --engine sglang"),
        (
            "sglang",
            "0.5.10",
            {**LLAMA, "architectures": ["MixtralForCausalLM"]},
            (),
            "capture-target",
            "no capture hook",
        ),
        ("sglang", "0.5.23", LLAMA | {"logits_mup_width_multiplier": 0.5}, (), "capture-target", "arrives scaled"),
        ("sglang", "0.5.23", LLAMA, ("--enable-dp-attention",), "capture-flag", "padded together"),
        ("sglang", "0.5.23", LLAMA, ("--pp-size", "2"), "capture-flag", "earlier stages"),
        ("sglang", "0.5.23", LLAMA, ("--speculative-algorithm", "EAGLE3"), "capture-flag", "its own layers"),
        ("vllm", "0.33.0", LLAMA, ("--enable-prefix-caching",), "capture-flag", "computed whole"),
    ],
)
def test_what_would_give_wrong_rows_is_refused_before_the_start(tmp_path, engine, version, config, extra, code, says):
    found = plan(tmp_path, engine, version, config, *extra)

    (finding,) = [f for f in found.refused if f.code.startswith("capture-")]
    assert finding.code == code
    assert says in str(finding)


def test_a_boundary_that_the_class_cannot_give_is_named(tmp_path: Path):
    found = plan(tmp_path, "sglang", "0.5.23", capture=CaptureOptions(boundaries=(2, 30)))

    assert "boundary 30 is not in 1 .. 29" in str(found.refused[0])


def test_an_engine_without_a_way_is_refused(tmp_path: Path):
    with pytest.raises(ServeOptionsInvalid, match="cannot hand over the states"):
        plan(tmp_path, "tensorrt-llm", "1.0.0")


def test_what_waits_is_bounded_by_the_option_and_told(tmp_path: Path):
    found = plan(tmp_path, "sglang", "0.5.23", capture=CaptureOptions(spool=tmp_path / "s", spool_gb=0.001))

    assert found.capture is not None
    assert found.capture.limit_bytes == 1_000_000
    assert any("0.0 GB; a row may have 976 tokens" in note for note in found.notes)


@pytest.mark.parametrize("wrong", [{"boundaries": (3, 2)}, {"boundaries": (2, 2)}, {"spool_gb": 0.0}])
def test_impossible_options_are_refused(wrong):
    with pytest.raises(ServeOptionsInvalid):
        CaptureOptions(**wrong)


def wish(folder: Path) -> CaptureWish:
    return CaptureWish(boundaries=(1,), num_layers=4, spool=str(folder), limit_bytes=1)


def test_the_folder_is_ours_while_the_server_runs_and_gone_after_it(tmp_path: Path):
    with spool_folder(wish(tmp_path / "spool")):
        (tmp_path / "spool" / "a.row").write_text("x")
        with pytest.raises(SpoolInUse, match="another launch holds its lock"), spool_folder(wish(tmp_path / "spool")):
            pass
    assert not (tmp_path / "spool").exists()


def test_what_a_killed_launch_left_is_removed_and_foreign_files_are_not(tmp_path: Path):
    left, foreign = tmp_path / "left", tmp_path / "foreign"
    for folder in (left, foreign):
        folder.mkdir()
        (folder / "old.row").write_text("x")
    (left / "eyas.lock").touch()

    with spool_folder(wish(left)):
        assert [path.name for path in left.iterdir()] == ["eyas.lock"]
    with pytest.raises(SpoolInUse, match="which eyas did not put there"), spool_folder(wish(foreign)):
        pass
    assert (foreign / "old.row").exists()


def test_one_of_draft_and_capture_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--engine", "sglang", "--target", str(tmp_path), "--print"]) == 2
    assert "--draft is missing (or --capture" in capsys.readouterr().err
    assert main(["serve", "--engine", "sglang", "--target", "T", "--draft", "D", "--capture", "S", "--print"]) == 2
    assert "not with --draft" in capsys.readouterr().err
