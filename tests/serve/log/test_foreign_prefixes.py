"""A log tells the same with whatever stands before each of its lines: containers, journals, launchers, constants."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.serve.supervise.supervisor import Supervisor
from fake_world import LOGS, FakeClock
from log_once import Once

Prefix = Callable[[int], str]
ISO = "2026-11-30T18:{:02d}:{:02d}.123456789Z"


def iso(n: int) -> str:
    return ISO.format(n // 60 % 60, n % 60)


SHARED = Path(__file__).parents[4] / "shared"

PREFIXES: dict[str, Prefix] = {
    "compose": lambda n: "llm0-1  | ",
    "compose, two services": lambda n: ("llm-0      | ", "llm-router | ")[n % 2],
    "docker logs -t": lambda n: f"{iso(n)} ",
    "CRI": lambda n: f"{iso(n)} stderr F ",
    "journald": lambda n: f"Nov 30 18:{n // 60 % 60:02d}:{n % 60:02d} node-3 sglang[4711]: ",
    "journald, iso": lambda n: f"2026-11-30T18:{n // 60 % 60:02d}:{n % 60:02d}+0000 node-3 python3[4711]: ",
    "kubectl --prefix": lambda n: "[pod/llm-7d9f-x2x/server] ",
    "kubectl --prefix --timestamps": lambda n: f"[pod/llm-7d9f-x2x/server] {iso(n)} ",
    "Ray": lambda n: "\x1b[36m(ServeReplica:llm pid=4711)\x1b[0m ",
    "Ray, another node": lambda n: "(RayWorkerWrapper pid=4711, ip=10.0.0.3) ",
    "srun -l": lambda n: f"{n % 16}: ",
    "a constant": lambda n: "engine> ",
    "a constant in brackets": lambda n: "[llm] ",
    "a time": lambda n: f"18:{n // 60 % 60:02d}:{n % 60:02d}.123 ",
    "a date with slashes": lambda n: f"2026/11/30 18:{n // 60 % 60:02d}:{n % 60:02d} ",
    "a date in words": lambda n: f"Mon Nov 30 18:{n // 60 % 60:02d}:{n % 60:02d} 2026 | ",
    "a counter": lambda n: f"#{n:06d} ",
    "a file": lambda n: "/var/log/llm.log:",
}
DOCKER_JSON = "docker's json-file"
BARE = sorted(
    path for path in (*LOGS.glob("*.log"), *SHARED.glob("engine_logs/*.log")) if path.stat().st_size < 400_000
)


def prefixed(data: bytes, name: str) -> bytes:
    lines = data.decode(errors="replace").split("\n")
    if name == DOCKER_JSON:
        rows = [{"log": line + "\n", "stream": "stderr", "time": iso(n)} for n, line in enumerate(lines)]
        return "\n".join(json.dumps(row) for row in rows).encode()
    return "\n".join(PREFIXES[name](n) + line if line else line for n, line in enumerate(lines)).encode()


def told(data: bytes) -> dict[str, object]:
    """What a log says: engine, state, phases, cause, acceptance."""
    watcher = Supervisor(engine="unknown", version=None, probes=Once(data), clock=FakeClock(), log_only=True)
    last = watcher.step()
    cause = last.cause.diagnostic if last.cause is not None else None
    return {
        "engine": last.engine,
        "version": last.version,
        "state": last.state,
        "phases": [row["key"] for row in watcher.timeline_document()["phases"]],
        "cause": cause and (cause.code, cause.what, cause.where.partition(" (pid")[0], cause.advice),
        "proof": last.proof and (last.proof.ok, last.proof.accept_length),
        "warnings": last.warnings,
    }


@pytest.mark.parametrize("name", [*PREFIXES, DOCKER_JSON])
@pytest.mark.parametrize("path", BARE, ids=lambda path: path.stem)
def test_a_log_says_the_same_behind_any_prefix(path: Path, name: str):
    data = path.read_bytes()
    bare = told(data)

    assert told(prefixed(data, name)) == bare


@settings(max_examples=60, deadline=None)
@given(
    before=st.from_regex(r"[a-z\[\]()<>{}#@=+*/_.-]{1,12}", fullmatch=True),
    has_time=st.booleans(),
    after=st.sampled_from([" ", ": ", " | ", "> ", "] "]),
    path=st.sampled_from(BARE[:6]),
)
def test_a_log_says_the_same_behind_a_prefix_that_no_program_prints(
    before: str, has_time: bool, after: str, path: Path
):
    data = path.read_bytes()
    prefix = f"{before}{' 18:00:01' if has_time else ''}{after}"

    assert told(b"\n".join(prefix.encode() + line for line in data.split(b"\n"))) == told(data)


@pytest.mark.parametrize("name", ["compose-sglang.log", "compose-vllm-low-accept.log"])
def test_the_prefixed_logs_of_public_reports_say_what_their_bare_ones_say(name: str):
    path = SHARED / "cases" / "reports" / "28-prefixed-logs" / name
    if not path.exists():
        pytest.skip("the shared cases are not here")
    data = path.read_bytes()
    bare = b"\n".join(line.partition(b"| ")[2] for line in data.split(b"\n"))

    assert told(data) == told(bare)
    assert told(data)["engine"] == name.split("-")[1].removesuffix(".log")


def test_in_a_bare_log_no_prefix_is_learned_from_what_a_user_wrote():
    data = (LOGS / "sglang-0.5.15.post1-eagle3.log").read_bytes()
    forged = b"he said: [2026-11-29 14:04:00] kill_process_tree called: parent_pid=1, include_parent=True, pid=1\n"

    assert told(data + forged)["state"] == told(data)["state"]
