"""`eyas bench --engine NAME`: both servers are started, measured and ended, one after the other."""

import json
from pathlib import Path

import psutil
import pytest

from eyas.cli.app import main
from eyas.contract.engines.launching.recipe import EngineCommand, without_speculation
from eyas.contract.engines.launching.serve_options import Counting
from eyas.contract.engines.registry import ENGINES
from stub_engine import free_port, make_site
from tiny_checkpoints import write_draft, write_target


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    site = make_site(tmp_path / "site", "vllm", "0.25.1")
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft")
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": f"question {n}"}]}) + "\n" for n in range(3))
    )
    options = ["--engine", "vllm", "--target", target, "--draft", draft, "--pythonpath", site, "--port", free_port()]
    options += ["--data", tmp_path / "rows.jsonl", "--runs", tmp_path / "runs", "--out", tmp_path / "bench.json"]
    options += ["--engine-flags", "--max-num-seqs 4"]
    return ["bench", *map(str, options), "--max-new-tokens", "16", "--repeats", "1"]


def test_both_are_started_measured_and_ended(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = main(command)

    said = capsys.readouterr()
    assert code in (0, 1), said.err
    document = json.loads((tmp_path / "bench.json").read_text())
    figures = document["points"][0]["figures"]
    commands = [json.loads(path.read_text())["command"] for path in sorted((tmp_path / "runs").glob("*/launch.json"))]
    assert code in (0, 1), said.err  # a stub's speed is its own
    assert set(figures) == {"server", "baseline"}
    assert figures["server"]["accepted"]["accept_length"] > 1
    assert figures["baseline"]["accepted"] is None
    assert [any(word.startswith("--speculative") for word in argv) for argv in commands] == [True, False]
    assert all("--max-num-seqs" in argv for argv in commands)
    assert said.err.count("ended after") == 2
    here = str(tmp_path / "site")
    assert not [p for p in psutil.process_iter(["cmdline"]) if here in " ".join(p.info["cmdline"] or ())]


def test_one_that_does_not_start_is_told_and_ended(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("STUB_ENGINE", json.dumps({"crash": "Traceback (most recent call last):\nRuntimeError: no"}))

    assert main(command) == 1
    assert "error[server-not-ready]: the server did not get ready: crashed" in capsys.readouterr().err


def test_a_baseline_and_an_engine_of_its_own_are_not_both_given(command: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([*command, "--baseline", "http://127.0.0.1:1"]) == 2
    assert "--engine starts its own baseline" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ENGINES)
def test_what_speculates_is_left_out_of_a_command_and_nothing_else(engine: str):
    prefixes = ENGINES[engine].launching.speculation_flags
    of_draft = [word for prefix in prefixes for word in (f"{prefix}x", "value", f"{prefix}y=3", f"{prefix}switch")]
    argv = ("python", "-m", "engine", "--model", "t", *of_draft, "--port", "3", "--trust-remote-code", "--tp", "2")
    command = EngineCommand(argv=argv, environment={}, url="", counting=Counting.chain(3))

    found = without_speculation(command, prefixes).argv

    assert found == tuple(word for word in argv if word not in of_draft)
