"""A scriptable engine: replays a real log with its timing, answers endpoints, fails in any way. Run as a script.

    python fake_engine.py '{"log": "sglang-0.5.15.post1-eagle3.log", "scale": 0.02, "port": 30000, "warm_up_s": 3}'

Script keys (all optional):
  log           file below logs/ to print; until: stop before the line that holds this text; scale: of its own timing
  title         engine whose process titles the children carry ("sglang" | "vllm"); ranks: how many
  stall_at      sleep for ever, inside a function named like an engine's, when the line that holds this text comes
  stall_in      that function's name
  crash_at      raise RuntimeError at that line; exit: exit code at the end of the log (None = serve)
  kill_self_at  SIGKILL to itself at that line
  port          serve HTTP after the log; warm_up_s: answer /health with 503 for so long, printing nothing
  health        codes of /health by seconds since serving began: [[0, 503], [2, 200]]
  ready_line    printed when the warm-up is over; stop_after_s: end by itself with exit code 0
  ignore_term   SIGTERM does nothing; leak: children that ignore SIGTERM live in sessions of their own
  chain         begin a chain of processes of which each forks the next and ends at once
  bind          a port to bind before anything else (to meet a busy one); fill: a file to write until the disk is full
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LOGS = Path(__file__).parents[1] / "serve" / "logs"
_STAMP = re.compile(rb"(?:^|[ \[])(?:\d{4}-)?(\d\d-\d\d) (\d\d:\d\d:\d\d)")
TITLES = {
    "sglang": lambda rank: f"sglang::scheduler_TP{rank}",
    "vllm": lambda rank: "VLLM::EngineCore" if rank == 0 else f"VLLM::Worker_TP{rank - 1}",
}


def main() -> int:
    script: dict[str, Any] = json.loads(sys.argv[1])
    if "child" in script:
        return child(script)
    if script.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if "bind" in script:
        socket.socket().bind(("127.0.0.1", script["bind"]))
    if "fill" in script:
        fill(script["fill"])
    children = [start_child(script, rank) for rank in range(script.get("ranks", 0))]
    if script.get("chain"):
        start_chain()
    replay(script)
    if script.get("exit") is not None:
        return int(script["exit"])
    if "port" in script:
        serve(script)
    for process in children:
        process.terminate()
    return 0


def start_child(script: dict[str, Any], rank: int) -> "subprocess.Popen[bytes]":
    title = TITLES[script.get("title", "sglang")](rank)
    inner = json.dumps({"child": rank, "leak": script.get("leak", False), "parent": os.getpid()})
    # The title is argv[0], as setproctitle would make it.
    return subprocess.Popen(
        [title, __file__, inner], executable=sys.executable, start_new_session=bool(script.get("leak"))
    )


def start_chain() -> None:
    """Processes that fork the next and end within 20 ms, each in a session of its own."""
    line = 'setsid sh -c "$EYAS_TEST_LINE" & sleep 0.01'
    environment = {**os.environ, "EYAS_TEST_CHAIN": str(os.getpid()), "EYAS_TEST_LINE": line}
    subprocess.Popen(["sh", "-c", line], env=environment, start_new_session=True)
    time.sleep(0.3)


def child(script: dict[str, Any]) -> int:
    if script["leak"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while script["leak"] or os.getppid() == script["parent"]:
        time.sleep(0.05)
    return 0


def replay(script: dict[str, Any]) -> None:
    if "log" not in script:
        return
    first: float | None = None
    shown = 0.0
    for line in (LOGS / script["log"]).read_bytes().splitlines(keepends=True):
        if script.get("until", "\0").encode() in line:
            break
        match = _STAMP.search(line)
        if match:
            stamp = time.mktime(time.strptime(f"2026-{match[1].decode()} {match[2].decode()}", "%Y-%m-%d %H:%M:%S"))
            first = stamp if first is None else first
            time.sleep(max((stamp - first) * script.get("scale", 0.0) - shown, 0.0))
            shown = max(shown, (stamp - first) * script.get("scale", 0.0))
        os.write(2, line)
        happen(script, line)


def happen(script: dict[str, Any], line: bytes) -> None:
    if script.get("stall_at", "\0").encode() in line:
        name = script.get("stall_in", "capture_one_batch_size")
        space: dict[str, Any] = {"time": time}
        exec(f"def {name}():\n    while True:\n        time.sleep(1000)\n", space)  # the name is what py-spy must see
        space[name]()
    if script.get("crash_at", "\0").encode() in line:
        raise RuntimeError("the fake engine was told to crash here")
    if script.get("kill_self_at", "\0").encode() in line:
        os.kill(os.getpid(), signal.SIGKILL)


def serve(script: dict[str, Any]) -> None:
    began = time.monotonic()
    codes = script.get("health") or [[0, 503], [script.get("warm_up_s", 0), 200]]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            passed = time.monotonic() - began
            code = [c for at, c in codes if at <= passed][-1] if self.path == "/health" else 404
            if self.path == "/v1/models":
                code = 200
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": "m", "owned_by": script.get("title", "sglang")}]}).encode())

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", script["port"]), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if "warm_up_s" in script:
        time.sleep(script["warm_up_s"])
    if "ready_line" in script:
        print(script["ready_line"], file=sys.stderr, flush=True)
    time.sleep(script.get("stop_after_s", 1e6))


def fill(path: str) -> None:
    with open(path, "wb") as file:
        while True:
            file.write(b"x" * 65536)


if __name__ == "__main__":
    sys.exit(main())
