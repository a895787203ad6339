"""The verdict's last step: what a replay says weighs in the verdict, and a replay that fails costs nothing else."""

import json
import threading
import time
from pathlib import Path

import pytest

from eyas.client.address import ServerAddress, open_http
from eyas.contract.engines.registry import server_api
from eyas.decode.accept_length import Acceptance
from eyas.serve.verdict import parity_step
from eyas.serve.verdict.canary_run import CanaryOptions, RankResult
from eyas.serve.verdict.losslessness import Losslessness
from eyas.serve.verdict.parity_step import ParityFound, ParityStep, source_of
from eyas.serve.verdict.verdict import Verdict, conclude, first_minute
from eyas.serve.verdict.verdict_findings import VerdictContext
from stub_server import Script, StubServer

SAME = {"accept_length": 2.5, "rounds": 90}


def document(verdict: str, served: float = 2.5, suspects: tuple[str, ...] = ()) -> dict[str, object]:
    return {
        "schema": "eyas.parity/1",
        "verdict": verdict,
        "first_different_position": 2 if verdict == "different" else None,
        "served": {**SAME, "accept_length": served},
        "replayed": SAME,
        "suspects": [{"name": name} for name in suspects],
        "rows": [{"prompt_ids": [1], "response_ids": [2]}],
    }


def step(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> ParityStep:
    """A step whose `eyas parity` is a shell script; $OUT is the file it should write."""
    program = folder / "program"
    program.write_text(f'#!/bin/sh\nwhile [ "$1" != --out ]; do shift; done\nOUT="$2"\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setattr(parity_step.sys, "executable", str(program))
    return ParityStep(
        url="http://127.0.0.1:1", api_key=None, draft=folder, num_draft_tokens=3, source=("--probe", "p"), folder=folder
    )


def concluded(replay: ParityFound | None) -> Verdict:
    counts = Acceptance(300, (200, 150, 100), (300, 300, 300))
    result = RankResult(rank=None, acceptance=counts, num_answers=9, num_looping=0, num_tokens=700)
    none = Losslessness(num_compared=0, num_equal=0, num_tokens=0, note="not given")
    return conclude([result], none, True, CanaryOptions(), VerdictContext(ledger="o_proj is lost"), replay=replay)


def test_equal_counts_are_said_and_recorded(tmp_path, monkeypatch):
    found = step(tmp_path, monkeypatch, f"echo '{json.dumps(document('equal'))}' > \"$OUT\"").run(20)
    verdict = concluded(found)

    assert verdict.ok
    assert not verdict.findings
    assert "replay: the server accepts what the draft's replay accepts: 2.500 served, 2.500 replayed" in verdict.words
    shown = verdict.as_document()
    assert (shown["prediction"], shown["replay"]["verdict"]) == (2.5, "equal")
    assert "rows" not in shown["replay"]


@pytest.mark.parametrize(("served", "severity"), [(1.6, "error"), (2.47, "warning")])
def test_other_counts_weigh_by_what_they_cost_and_name_the_fault(tmp_path, monkeypatch, served, severity):
    told = document("different", served, ("attention lost (v or o)",))
    found = step(tmp_path, monkeypatch, f"echo '{json.dumps(told)}' > \"$OUT\"; exit 1").run(20)
    verdict = concluded(found)

    (finding,) = verdict.findings
    assert (finding.code, finding.severity) == ("served-unlike-trained", severity)
    assert "the counts part at position 2; as with: attention lost (v or o)" in finding.what
    assert "o_proj is lost" in finding.why
    assert verdict.ok is (severity == "warning")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 4", "ended with exit code 4"),
        ('echo \'{"schema": "eyas.error/1", "what": "no ids", "why": "text only"}\'; exit 3', "no ids: text only"),
        ("echo '{\"schema\": \"eyas.parity/1\"}' > \"$OUT\"", "(KeyError)"),
        ("echo '[[[' > \"$OUT\"", "(JSONDecodeError)"),
        ("sleep 60", "no answer within"),
    ],
)  # fmt: skip
def test_a_replay_that_fails_leaves_the_rest_of_the_verdict(tmp_path, monkeypatch, script, words):
    monkeypatch.setattr(parity_step, "_LEAST_S", 0.1)
    found = step(tmp_path, monkeypatch, script).run(0.5 if "sleep" in script else 20)
    verdict = concluded(found)

    assert verdict.ok
    assert not verdict.findings
    assert words in str(verdict.replay)
    assert "replay: not made: " in verdict.words


def test_it_ends_with_the_server_at_once(tmp_path, monkeypatch):
    running = step(tmp_path, monkeypatch, "exec sleep 60")
    found: list[ParityFound] = []
    thread = threading.Thread(target=lambda: found.append(running.run(60)))
    thread.start()
    while running._process is None:
        time.sleep(0.01)
    began = time.monotonic()
    running.stop()
    thread.join(2)

    assert time.monotonic() - began < 2
    assert (found[0].verdict, found[0].words) == ("not-made", "the server was stopped")
    assert running._process.poll() is not None
    assert running.run(60).words == "the server was stopped"


def test_no_time_is_left(tmp_path, monkeypatch):
    assert "--verdict-seconds" in step(tmp_path, monkeypatch, "exit 9").run(3).words


def test_what_there_is_to_replay_on(tmp_path, monkeypatch):
    pack = tmp_path / "pack"
    (tmp_path / "model.safetensors").write_bytes(b"x" * 64)
    none = {"is_tree": False, "is_quantised": False}

    assert source_of(pack, None, **none) == (("--probe", str(pack)), "")
    assert source_of(None, tmp_path, **none) == (("--target", str(tmp_path)), "")
    assert source_of(None, None, **none) == ((), "")
    assert "trees" in source_of(pack, None, is_tree=True, is_quantised=False)[1]
    assert "quantises" in source_of(pack, None, is_tree=False, is_quantised=True)[1]
    monkeypatch.setattr(parity_step, "_SMALL_TARGET_BYTES", 32)
    assert source_of(None, tmp_path, **none) == ((), "")


def test_an_error_of_ours_and_a_silent_server_are_contained():
    def broken(seconds: float) -> ParityFound:
        raise RuntimeError(f"{seconds > 0}")

    for accepted, words in (((3, 1), "eyas failed (RuntimeError: True)"), ((), "no verify passes")):
        script = Script(engine="sglang", accepted=accepted or (0,), speculates=bool(accepted))
        with StubServer(script) as stub:
            address = ServerAddress(url=stub.url, api=server_api("sglang"), version=script.version, model="stub")
            with open_http(address, timeout_s=20) as http:
                verdict = first_minute(http, address, CanaryOptions(max_seconds=20), VerdictContext(), replay=broken)
        assert verdict.replay is not None
        assert words in verdict.replay.words
