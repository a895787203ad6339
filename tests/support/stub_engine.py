"""An engine without a model: a folder for PYTHONPATH whose `vllm` or `sglang` prints a start and serves `StubServer`.

The variable STUB_ENGINE (JSON) tells what it does: `accepted` (drafts per round), `speculates`, `warm_up_s` (503 on
/health after the port is open), `crash` (a traceback instead of a server), `freeze` (silence before the port).
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

_MODULES = {"vllm": "vllm.entrypoints.openai.api_server", "sglang": "sglang.launch_server"}
_START = {
    "vllm": (
        "(APIServer pid=1) INFO {month_day} {time} [utils.py:299] non-default args: ",
        "(EngineCore pid=2) INFO {month_day} {time} [core.py:105] Initializing a V1 LLM engine (v0.25.1) with config: ",
        "(EngineCore pid=2) INFO {month_day} {time} [model_runner.py:300] Loading model from scratch...",
        "(EngineCore pid=2) INFO {month_day} {time} [default_loader.py:384] Loading weights took 0.10 seconds",
        "(APIServer pid=1) INFO {month_day} {time} [api_server.py:500] Starting vLLM server on http://127.0.0.1",
        "INFO:     Application startup complete.",
    ),
    "sglang": (
        "[{date} {time}] server_args=ServerArgs(model_path='x')",
        "[{date} {time}] Load weight begin. avail mem=139.09 GB",
        "[{date} {time}] Load weight end. elapsed=0.14 s, type=LlamaForCausalLM, avail mem=138.83 GB",
        "INFO:     Application startup complete.",
        "[{date} {time}] max_total_num_tokens=3119000, chunked_prefill_size=8192, max_running_requests=48",
    ),
}
CRASH = 'Traceback (most recent call last):\n  File "x.py", line 1, in load\nRuntimeError: no such tensor: foo'
READY = {"vllm": "", "sglang": "[{date} {time}] The server is fired up and ready to roll!"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_site(folder: Path, engine: str, version: str) -> str:
    """Write the package and its metadata below `folder`; the value for --pythonpath."""
    name = _MODULES[engine]
    info = folder / f"{engine}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {engine}\nVersion: {version}\n")
    *packages, module = name.split(".")
    place = folder
    for package in packages:
        place = place / package
        place.mkdir()
        (place / "__init__.py").write_text("")
    (place / f"{module}.py").write_text(f"import stub_engine\n\nstub_engine.main({engine!r})\n")
    return f"{folder}:{Path(__file__).parent}"


def main(engine: str) -> None:
    """Be the engine."""
    if any(word.startswith("--help") for word in sys.argv):
        sys.exit(0)
    wish = json.loads(os.environ.get("STUB_ENGINE", "{}"))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for line in _START[engine]:
        _say(line)
        if wish.get("crash") and "oad" in line:
            print(wish["crash"], file=sys.stderr, flush=True)
            os._exit(1)
        if wish.get("freeze") and "oad" in line:
            _wait()
    _serve(engine, wish)


def _say(line: str) -> None:
    now = time.localtime()
    stamps = {"date": "%Y-%m-%d", "month_day": "%m-%d", "time": "%H:%M:%S"}
    print(line.format(**{k: time.strftime(v, now) for k, v in stamps.items()}), file=sys.stderr, flush=True)


def _serve(engine: str, wish: dict[str, object]) -> None:
    from stub_server import Script, StubServer

    port = int(sys.argv[sys.argv.index("--port") + 1])
    script = Script(
        engine=engine,
        version=str(wish.get("version", "0.5.15.post1")),
        accepted=tuple(wish.get("accepted", (3, 1, 2, 0))),  # type: ignore[arg-type]
        speculates=bool(wish.get("speculates", any("--speculative" in word for word in sys.argv))),
    )
    stub = StubServer(script, port=port)
    stub.health = 503 if engine == "sglang" else 200
    with stub:
        time.sleep(float(str(wish.get("warm_up_s", 0))))
        stub.health = 200
        _say(READY[engine])
        _wait()


def _wait() -> None:
    """For ever, in pieces: a signal that another thread takes would not wake a lock in the main thread."""
    while True:
        time.sleep(0.2)
