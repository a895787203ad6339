"""The launch on TensorRT-LLM: what is tapped stands in the file that the command names."""

import json

import pytest

import damage_matrix
from eyas.cli.app import main as eyas
from eyas.contract.check.check import CheckOptions, check
from eyas.contract.engines.launching.recipe import DraftLaunch
from eyas.contract.engines.launching.serve_options import Counting, ServeOptions
from eyas.contract.engines.registry import engine_named, parse_engine
from eyas.contract.engines.tensorrt_llm.launching import CONFIG_FILE, config_text, layers_to_capture
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint

ENGINE = parse_engine("tensorrt-llm==1.3.0rc27")


def _draft(**more) -> DraftLaunch:
    counting = Counting.of(ServeOptions(num_draft_tokens=4))
    return DraftLaunch(engine=ENGINE, draft='/models/my "draft": a#b', counting=counting, **more)


@pytest.fixture
def folders(tmp_path):
    draft = damage_matrix.healthy()
    draft.config.pop("eagle_config", None)
    draft.set(eagle_aux_hidden_state_layer_ids=[3, 16, 28])
    return damage_matrix.write(draft, tmp_path / "draft"), damage_matrix.write_target(tmp_path / "target")


def _plan(folders, capsys, *words):
    draft, target = folders
    asked = ["serve", "--engine", "tensorrt-llm", "--engine-version", "1.3.0rc27", "--print", "--json"]
    status = eyas([*asked, "--target", str(target), "--draft", str(draft), *words])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("boundaries", "num_layers", "ids"),
    [
        ((2, 15, 27), 30, ()),  # the engine's default
        ((2, 15, 27), None, (1, 14, 26)),
        ((3, 16, 28), 30, (2, 15, 27)),
        ((30, 2, 15), 30, (1, 14, 29)),
        ((0, 15, 27), 30, (14, 26)),
        ((2, 2, 2), 5, (1,)),  # too few layers for the default
        ((), 30, ()),
        (None, None, ()),
    ],
)
def test_layers_are_written_where_the_default_would_tap_others(boundaries, num_layers, ids):
    assert layers_to_capture(boundaries, num_layers) == ids


def test_the_file_is_what_the_engine_reads():
    text = config_text(_draft(boundaries=(3, 16, 28), target_layers=30), "kv_cache_config:\n  free: 0.5\n\n")

    assert text.splitlines() == [
        "kv_cache_config:",
        "  free: 0.5",
        "speculative_config:",
        "  decoding_type: Eagle3",
        "  max_draft_len: 4",
        '  speculative_model: "/models/my \\"draft\\": a#b"',
        "  eagle3_layers_to_capture: [2, 15, 27]",
        "enable_iter_perf_stats: true",
    ]


def test_check_prints_the_file_with_the_trained_layers(folders):
    draft, target = folders

    report = check(read_checkpoint(draft), read_target_checkpoint(target), [ENGINE], CheckOptions(num_draft_tokens=5))

    launch = report.launch[ENGINE.label]
    assert report.ledgers[ENGINE.label].aux == (3, 16, 28)
    assert "eagle3_layers_to_capture: [2, 15, 27]" in launch.files[CONFIG_FILE]
    assert "max_draft_len: 5" in launch.files[CONFIG_FILE]
    assert launch.flags == ("--config", CONFIG_FILE)


@pytest.mark.parametrize(
    ("boundaries", "names"), [((3, 16, 28), "the file names the"), ((2, 15, 27), "names no tapped")]
)
def test_the_note_on_tapped_layers_is_true_of_the_file(boundaries, names):
    draft = _draft(boundaries=boundaries, target_layers=30)

    launch = engine_named("tensorrt-llm").launching.draft_launch(draft)

    assert any(names in note for note in launch.notes)
    assert ("eagle3_layers_to_capture" in launch.files[CONFIG_FILE]) == (names == "the file names the")


def test_serve_composes_the_whole_command(folders, capsys):
    status, plan = _plan(folders, capsys, "-k", "5", "--tensor-parallel", "1", "--context-length", "1024")

    draft, target = folders
    assert (status, plan["refused"]) == (0, [])
    assert plan["argv"][1:5] == ["-m", "tensorrt_llm.commands.serve", "serve", str(target)]
    words = plan["argv"][5:]
    flags = dict(zip(words[::2], words[1::2], strict=True))
    assert flags == {
        "--host": "127.0.0.1",
        "--port": "8000",
        "--tp_size": "1",
        "--max_seq_len": "1024",
        "--config": CONFIG_FILE,
    }
    assert f"speculative_model: {json.dumps(str(draft))}" in plan["files"][CONFIG_FILE]
    assert any("never run" in note for note in plan["notes"])


def test_the_printed_command_makes_the_file_first(folders, capsys):
    draft, target = folders
    asked = ["serve", "--engine", "tensorrt-llm", "--engine-version", "1.3.0rc27", "--print"]
    assert eyas([*asked, "--target", str(target), "--draft", str(draft)]) == 0

    out = capsys.readouterr().out
    assert f"cat > {CONFIG_FILE} <<'END'\nspeculative_config:" in out
    assert out.index("cat >") < out.index("-m tensorrt_llm.commands.serve")


def test_the_users_own_file_is_taken_in(folders, tmp_path, capsys):
    own = tmp_path / "mine.yaml"
    own.write_text("kv_cache_config:\n  free_gpu_memory_fraction: 0.5\n")

    status, plan = _plan(folders, capsys, "--", "--extra_llm_api_options", str(own), "--trust_remote_code")

    assert (status, plan["refused"]) == (0, [])
    assert plan["files"][CONFIG_FILE].startswith(
        "kv_cache_config:\n  free_gpu_memory_fraction: 0.5\nspeculative_config:"
    )
    assert plan["argv"].count("--config") == 1
    assert "--extra_llm_api_options" not in plan["argv"]
    assert plan["argv"][-1] == "--trust_remote_code"


@pytest.mark.parametrize("text", ["speculative_config: {}\n", "enable_iter_perf_stats: false\n", None])
def test_a_file_that_cannot_be_taken_in_is_refused(text, folders, tmp_path, capsys):
    own = tmp_path / "mine.yaml"
    if text is not None:
        own.write_text(text)

    status, plan = _plan(folders, capsys, "--", f"--config={own}")

    assert status == 1
    assert plan["refused"] == ["config-file-unusable"]


@pytest.mark.parametrize(
    "words",
    [
        ("--topk", "4"),
        ("--data-parallel", "2"),
        ("--nodes", "2", "--head-address", "a:1"),
        ("--quantization", "fp8"),
        ("--draft-attention-backend", "fa3"),
        ("--api-key-env", "EYAS_TEST_KEY"),
    ],
)
def test_what_it_does_not_have_is_refused(words, folders, capsys, monkeypatch):
    monkeypatch.setenv("EYAS_TEST_KEY", "secret")

    status, plan = _plan(folders, capsys, *words)

    assert status == 1
    assert "option-not-supported" in plan["refused"]


def test_faked_acceptance_is_refused(folders, capsys, monkeypatch):
    monkeypatch.setenv("TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS", "2")

    assert _plan(folders, capsys)[1]["refused"] == ["acceptance-faked"]


@pytest.mark.parametrize(
    ("version", "word", "code"),
    [
        ("1.3.0rc27", "--kv_cache_fraction", "flag-unknown"),
        ("1.3.0rc27", "--tp_size", "flag-given-twice"),
        ("1.3.0rc27", "--tensor_parallel_size", "flag-given-twice"),
    ],
)
def test_flags_are_held_against_its_own(version, word, code, folders, capsys):
    assert _plan(folders, capsys, "--", word, "2")[1]["refused"] == [code]
