"""`eyas serve` as a person meets it: refused with the cause and the fix, forced on record, printed, served, proven."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eyas.cli.app import main
from eyas.serve.look.process_tree import is_alive, tree_of
from stub_engine import CRASH, free_port, make_site
from tiny_checkpoints import write_draft, write_target


class World:
    """A target, drafts and engines without a model below one folder; `serve` is the command, in this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        self.target = write_target(folder / "target")
        self.good = write_draft(folder / "good")
        self.layers0 = write_draft(folder / "layers0", layer="layers.0")
        self.variables: dict[str, str] = {}

    def serve(self, *words: str, draft: Path | None = None, engine: str = "sglang", **wish: object) -> "Answer":
        variables = self.variables | {"XDG_CACHE_HOME": str(self.folder / "cache"), "STUB_ENGINE": json.dumps(wish)}
        fixed = ["serve", "--engine", engine, "--target", str(self.target), "--draft", str(draft or self.good)]
        with self._monkeypatch.context() as patch:
            patch.chdir(self.folder)
            for name, value in variables.items():
                patch.setenv(name, value)
            code = main([*fixed, "--runs", str(self.folder / "runs"), "--json", *words])
        out, err = self._capsys.readouterr()
        lines = out.strip().splitlines()
        return Answer(code, json.loads(lines[-1]) if lines else {}, err)

    def installed(self, engine: str, version: str) -> tuple[str, ...]:
        site = make_site(self.folder / f"site-{engine}-{version}", engine, version)
        return ("--pythonpath", site, "--port", str(free_port()), "--stop-after-verdict")


class Answer:
    """Exit code, the JSON document, and what a person read."""

    def __init__(self, code: int, document: dict[str, object], text: str) -> None:
        self.code, self.document, self.text = code, document, text


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    return World(tmp_path, monkeypatch, capsys)


def test_the_afternoon_ends_before_it_begins(world: World):
    """layers.0.* for SGLang 0.5.9: refused, with the cause and the one command that fixes it; and that one works."""
    answer = world.serve(*world.installed("sglang", "0.5.9"), draft=world.layers0)

    assert answer.code == 1
    assert not (world.folder / "runs").exists()
    assert "layers.0" in answer.text
    fix = re.search(r"eyas convert \S+ --to sglang \S+", answer.text)
    assert fix is not None, answer.text
    assert "not started" in answer.text
    words = fix.group().replace("OUT", str(world.folder / "fixed")).split()[1:]
    command = [sys.executable, "-m", "eyas", *words, "--target", str(world.target)]
    converted = subprocess.run(command, capture_output=True, text=True, check=False)
    assert converted.returncode == 0, converted.stderr
    again = world.serve("--print", "--engine-version", "0.5.9", draft=Path(words[-1]))
    assert again.code == 0, again.text


@pytest.mark.soak
def test_the_same_draft_is_served_where_its_names_are_known(world: World):
    answer = world.serve(*world.installed("sglang", "0.5.12"), draft=world.layers0, version="0.5.12")

    assert answer.code == 0, answer.text
    assert answer.document["schema"] == "eyas.serve/1"
    assert "speculation works" in answer.text


@pytest.mark.soak
def test_a_forced_start_serves_and_says_what_it_is(world: World):
    refused = world.serve(*world.installed("sglang", "0.5.9"), draft=world.layers0)
    codes = list(dict.fromkeys(refused.document["refused"]))  # type: ignore[call-overload]
    force = [word for code in codes for word in ("--force", code)]

    answer = world.serve(
        "--pythonpath", str(world.folder / "site-sglang-0.5.9") + ":" + str(Path(__file__).parents[1] / "support"),
        "--port", str(free_port()), "--stop-after-verdict", *force,
        draft=world.layers0, accepted=[0], version="0.5.9",
    )  # fmt: skip

    assert answer.code == 1
    first = answer.document["verdict"]["words"].splitlines()[0]  # type: ignore[index]
    assert re.match(r"accept length 1\.00 over \d+ rounds \(.*\): nothing is accepted; the ledger says: ", first)
    assert "next: eyas convert" in first
    (folder,) = (world.folder / "runs").iterdir()
    recorded = json.loads((folder / "launch.json").read_text())
    assert {f["code"] for f in recorded["forced"]} == set(codes)


def test_a_crash_is_told_with_its_cause_and_exit_one(world: World):
    answer = world.serve(*world.installed("vllm", "0.25.1"), engine="vllm", crash=CRASH)

    assert answer.code == 1
    assert "no such tensor: foo" in answer.text


def test_print_starts_nothing_and_needs_no_engine(world: World):
    answer = world.serve("--print", "--engine-version", "0.5.23", "-k", "5", "--", "--cuda-graph-max-bs-decode", "8")

    assert answer.code == 0, answer.text
    argv = answer.document["argv"]
    assert argv[-2:] == ["--cuda-graph-max-bs-decode", "8"]  # type: ignore[index]
    assert "--speculative-num-draft-tokens 6" in answer.text
    assert "K = 5 drafts per verify pass" in answer.text
    assert "KV cache" in answer.text
    assert not (world.folder / "runs").exists()


def test_print_shows_no_secret_and_names_the_key_file(world: World):
    world.variables = {"MY_KEY": "sesame-4711", "HF_TOKEN": "hf_abcdefgh", "NCCL_DEBUG": "INFO"}

    answer = world.serve("--print", "--engine-version", "0.5.23", "--api-key-env", "MY_KEY")

    everything = answer.text + json.dumps(answer.document)
    assert "sesame-4711" not in everything
    assert "hf_abcdefgh" not in everything
    assert "NCCL_DEBUG=INFO" in answer.text
    assert "--config FILE" in answer.text


def test_a_key_on_the_command_line_is_refused(world: World):
    answer = world.serve("--print", "--engine-version", "0.33.0", "--", "--api-key", "sesame", engine="vllm")

    assert answer.code == 1
    assert "key-on-command-line" in answer.document["refused"]  # type: ignore[operator]
    assert "sesame" not in answer.text


def test_a_key_variable_that_is_empty_is_said(world: World):
    answer = world.serve("--print", "--engine-version", "0.5.23", "--api-key-env", "NOT_SET_ANYWHERE")

    assert (answer.code, answer.document["code"]) == (2, "api-key-missing")


def test_an_unknown_flag_is_refused_before_anything_starts(world: World):
    answer = world.serve(*world.installed("vllm", "0.33.0"), "--", "--enforce-eagr", engine="vllm")

    assert answer.code == 1
    assert "use --enforce-eager" in answer.text
    assert not (world.folder / "runs").exists()


def test_a_missing_engine_is_an_environment_problem(world: World):
    answer = world.serve()

    assert (answer.code, answer.document["code"]) == (3, "engine-not-installed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine-version", "0.5.23"), "--engine-version is for --print"),
        (("--no-verdict", "--expect", "rows.jsonl", "--verdict-rounds", "0"), "2 options of serve cannot be used"),
    ],
)
def test_options_that_cannot_be_meant_start_nothing(world: World, words: tuple[str, ...], said: str):
    answer = world.serve(*words)

    assert (answer.code, answer.document["code"]) == (2, "serve-options-invalid")
    assert said in answer.text


def test_an_unknown_hub_target_can_be_printed_without_download_and_is_not_vouched_for(world: World):
    world.target = Path("nobody/no-such-model")

    answer = world.serve("--print", "--engine-version", "0.5.23")

    assert answer.code == 0
    assert "nobody/no-such-model" in answer.text
    assert "eyas has no headers of the target" in answer.text
    assert "as it was trained" not in answer.text
    [line] = [line for line in answer.text.splitlines() if line.startswith("ledger: ")]
    assert "checked alone, target unknown" in line


def test_a_target_that_is_not_there_is_an_error_also_when_only_printed(world: World):
    world.target = world.folder / "tarrget"

    answer = world.serve("--print", "--engine-version", "0.5.23")

    assert (answer.code, answer.document["code"]) == (2, "target-unknown")


def test_a_config_alone_is_used_for_what_it_tells(world: World):
    config = json.loads((world.target / "config.json").read_text())
    given = world.folder / "config-only"
    given.mkdir()
    for width in (config["hidden_size"], 2 * config["hidden_size"]):
        (given / "config.json").write_text(json.dumps(config | {"hidden_size": width}))
        for world.target in (given, given / "config.json"):
            answer = world.serve("--print", "--engine-version", "0.5.23")
            fits = width == config["hidden_size"]
            assert (answer.code, "target-hidden-size" in answer.text) == (0 if fits else 1, not fits), answer.text
            assert "no weights at" in answer.text
            assert answer.document["target"] == str(given)
    served = world.serve()
    assert (served.code, served.document["code"]) == (2, "target-incomplete")


def test_a_refused_launch_prints_no_command_to_copy(world: World):
    world.layers0 = world.layers0.rename(world.folder / "layers 0")
    refused = world.serve("--print", "--engine-version", "0.5.9", draft=world.layers0)
    assert f"eyas convert '{world.layers0}' --to sglang OUT" in refused.text
    assert refused.code == 1
    assert "sglang.launch_server" not in refused.text
    assert refused.document["argv"] is None
    assert "serve refuses this launch (parameters-unfilled" in refused.document["argv_withheld"]  # type: ignore[operator]
    force = [word for code in dict.fromkeys(refused.document["refused"]) for word in ("--force", code)]
    assert " ".join(force) in refused.text

    forced = world.serve("--print", "--engine-version", "0.5.9", *force, draft=world.layers0)
    assert forced.code == 0
    assert "sglang.launch_server" in forced.text


def test_ctrl_c_ends_the_server_well_and_leaves_nothing_behind(world: World):
    site, port = make_site(world.folder / "site", "vllm", "0.25.1"), str(free_port())
    words = ["--engine", "vllm", "--target", str(world.target), "--draft", str(world.good), "--pythonpath", site]
    process = subprocess.Popen(
        [sys.executable, "-m", "eyas", "serve", *words, "--port", port, "--runs", str(world.folder / "runs"), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(world.folder / "cache"), "STUB_ENGINE": "{}"},
    )
    assert process.stdout is not None
    everyone: list[int] = []
    document: dict[str, object] = {}
    for line in process.stdout:
        document = json.loads(line)
        if document.get("kind") == "proof":
            everyone = [p.pid for p in tree_of(process.pid) if p.pid != process.pid]
            process.send_signal(signal.SIGINT)

    assert process.wait(30) == 0
    assert document["schema"] == "eyas.serve/1"
    assert document["stopped"]["is_gone"]  # type: ignore[index]
    assert everyone
    assert not [pid for pid in everyone if is_alive(pid)]
