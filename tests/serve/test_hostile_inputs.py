"""Thousands of hostile log lines and answers: alive, bounded, nothing raw on the terminal, the right state afterwards.

The fast version runs in CI, ten thousand of each in `make soak`. Then signals: every wait ends within two seconds.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eyas.cli.terminal import Terminal
from eyas.client.address import ServerAddress, open_http
from eyas.client.counters import read
from eyas.client.generate import generate
from eyas.client.server_api import GenerationOptions
from eyas.contract.engines.registry import server_api
from eyas.errors import EyasError
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.look.endpoints import Endpoints
from eyas.serve.supervise.views import PlainView
from fake_world import World, sglang
from odd_server import whole
from server_in_fake_time import ready_world, running
from stub_engine import make_site

BYTES = [b"\x00", b"\x1b]52;c;aGk=\x07", b"\x1bc", b"\x9b2J", b"\xff\xfe", "\u202e".encode(), b"\r\r\r", b"\t"]
NUMBERS = ["nan", "inf", "-1", "1e309", "9" * 400, "1.2.3", "", "ä", "0x10", "10" * 15, "-0", "١٢"]
LINES = (
    "Decode batch. #running-req: {}, accept len: {}, gen throughput (token/s): {}",
    "SpecDecoding metrics: Mean acceptance length: {}, Drafted: {} tokens, Per-position acceptance rate: {}, {}",
    "Engine 000: Avg generation throughput: {} tokens/s, Running: {} reqs, Waiting: {} reqs",
    "Capturing batches: {}%|██| {}/{} [{}<{}, 1s/it]",
    "Loading safetensors checkpoint shards: {}%|#| {}/{} [{}<{}]",
    'INFO:     1.2.3.4:1 - "GET /?{}%|./{}[{}<{} HTTP/1.1" 404 Not Found',
    "Uvicorn running on http://{}:{}",
    "max_total_num_tokens={}, chunked_prefill_size={}",
    "GPU KV cache size: {} tokens",
    "(Worker_TP{} pid={}) ERROR 99-99 99:99:99 [x.py:{}] {}",
    "[9999-99-99 99:99:99 TP{}] {}",
    '{{"log": "{}", "stream": {}}}',
    "Error: {} {} {}",
)


def hostile_line(randomness: random.Random) -> bytes:
    """A line that an engine might print, with what none prints in it."""
    text = randomness.choice(LINES)
    values = [randomness.choice(NUMBERS) for _ in range(6)]
    line = text.format(*values)
    if randomness.random() < 0.7:
        line = sglang(randomness.randrange(100), line, randomness.choice(("", "TP0", "DP9 TP9")))[:-1]
    data = line.encode()
    if randomness.random() < 0.5:
        at = randomness.randrange(len(data) + 1)
        data = data[:at] + randomness.choice(BYTES) * randomness.choice((1, 1, 1, 5000)) + data[at:]
    return data + randomness.choice((b"\n", b"\n", b"\n", b"\r", b"\r\n", b""))


def hostile_body(randomness: random.Random) -> bytes:
    """What a server can say where JSON, metrics or a stream of events is wanted."""
    value = randomness.choice([*NUMBERS[:6], "null", "[]", '"x"', "{}", "1e400", "Infinity", "[[[[1]]]]", "true"])
    return randomness.choice(
        (
            f'{{"data": {value}, "version": {value}, "status": {value}}}',
            f'{{"data": [{{"id": {value}, "owned_by": {value}}}]}}',
            f'data: {{"text": {value}, "output_ids": {value}, "meta_info": {{"spec_verify_ct": {value}, '
            f'"spec_correct_drafts_histogram": [{value}], "completion_tokens": {value}}}}}\n\ndata: [DONE]\n\n',
            f'vllm:spec_decode_num_drafts{{engine="{value}"}} {value}\n'
            f'vllm:spec_decode_num_accepted_tokens_per_pos{{engine="{value}",position="{value}"}} {value}\n'
            f"vllm:generation_tokens {value}\nvllm:num_requests_running {value}\n",
            "<html>" * 50,
            "[" * 5000,
            "\x1b]0;x\x07" * 20,
            "",
        )
    ).encode() * randomness.choice((1, 1, 1, 50))


# ---------------------------------------------------------------------- lines


def survive_lines(folder: Path, capfd: pytest.CaptureFixture[str], num: int, seed: int = 17) -> None:
    randomness = random.Random(seed)
    world: World = ready_world()
    per_look = num // 50
    for look in range(50):
        world.log(5 + look, b"".join(hostile_line(randomness) for _ in range(per_look)) + b"\n")
        world.at(5 + look, health=randomness.choice((200, 503, 404, 302, "timeout", "broken", "refused", 0, 999)))
        world.at(5 + look, port=randomness.choice(("open", "refused", "unknown")))
    world.log(58, sglang(58, "Decode batch. #running-req: 1, accept len: 2.40, gen throughput (token/s): 90.0"))
    world.at(57, health=200, port="open")
    server, _ = running(world, RunFolder(folder), looks=70, view=PlainView(Terminal().line))
    tracemalloc.start()
    last = server.until_end()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    shown = "".join(capfd.readouterr())

    assert server.interrupts.count, "it ended before it was asked to"
    assert last.state.is_serving, last.reason
    assert peak < 200 << 20
    assert not any(char in shown for char in "\x00\x07\x9b\u202e")
    assert "\x1b" not in shown
    assert len(server.supervisor.journal.timeline.events) <= 10_000


def test_hostile_lines_change_nothing_for_good(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    survive_lines(tmp_path, capfd, 1000)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(5))
def test_ten_thousand_hostile_lines_change_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str], part: int):
    survive_lines(tmp_path, capfd, 2000, seed=part)


# ---------------------------------------------------------------------- answers


@contextmanager
def answering_with(respond: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server of which each connection is answered by `respond` in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def one(connection: socket.socket) -> None:
            with connection:
                try:
                    connection.settimeout(5)
                    connection.recv(65536)
                    respond(connection)
                except OSError:
                    return

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def survive_answers(num: int, seed: int = 18) -> None:
    randomness = random.Random(seed)
    lock = threading.Lock()

    def respond(connection: socket.socket) -> None:
        with lock:
            body, kind = hostile_body(randomness), randomness.random()
            code = randomness.choice((200, 200, 200, 204, 301, 401, 404, 500, 503, 999))
            extra = randomness.choice((b"", b"\r\nContent-Encoding: gzip", b"\r\nContent-Type: x; charset=zlib"))
        if kind < 0.05:
            connection.sendall(body[:200])
        elif kind < 0.1:
            return
        else:
            whole(body, f"HTTP/1.1 {code} X".encode() + extra)(connection)

    with answering_with(respond) as url:
        endpoints = Endpoints(url, "vllm", None)
        asks: tuple[Callable[[], Any], ...] = (
            lambda: endpoints.ask("/health", 2.0),
            endpoints.identify,
            endpoints._read_counters,
            *(ask_of(url, engine) for engine in ("sglang", "vllm")),
        )
        slowest = 0.0
        for n in range(num):
            start = time.monotonic()
            try:
                asks[n % len(asks)]()
            except EyasError as error:
                str(error)
            slowest = max(slowest, time.monotonic() - start)

    assert slowest < 20
    assert threading.active_count() < 60


def ask_of(url: str, engine: str) -> Callable[[], object]:
    address = ServerAddress(url=url, api=server_api(engine))

    def ask() -> object:
        with open_http(address, timeout_s=2) as http:
            read(replace(address), http=http)
            return generate(http, address, "hello", GenerationOptions(max_new_tokens=4, max_seconds=2.0))

    return ask


def test_hostile_answers_are_errors_of_ours_or_nothing():
    survive_answers(300)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_hostile_answers_are_errors_of_ours_or_nothing(part: int):
    survive_answers(1000, seed=part)


# ---------------------------------------------------------------------- signals


@contextmanager
def silent_port() -> Iterator[int]:
    """It accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield int(server.getsockname()[1])


def ends_within(command: list[str], number: int, limit_s: float, *, until: str = "", **more: Any) -> int:
    """Start eyas, let it wait, send the signal: the exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "eyas", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )
    assert process.stderr is not None
    text = ""
    end = time.monotonic() + 30
    while time.monotonic() < end and (until not in text or not text):
        text += process.stderr.readline()
    time.sleep(1.0)
    start = time.monotonic()
    process.send_signal(number)
    try:
        code = process.wait(timeout=30)
    finally:
        process.kill()
        process.stderr.close()
    assert time.monotonic() - start < limit_s, " ".join(command)
    return code


WAITS = ("a silent port", "a pipe", "a log", "a process", "a long pause", "a long pause of a silent port")


def wait_of(name: str, folder: Path, port: int) -> list[str]:
    if name == "a pipe":
        os.mkfifo(folder / "pipe")
        return [str(folder / "pipe")]
    if name == "a log":
        (folder / "log").write_text(sglang(0, "server_args=ServerArgs(x)"))
        return [str(folder / "log"), "--follow"]
    if name == "a process":
        return [str(os.getpid()), "--engine", "vllm", "--interval", "5"]
    pause = ["--interval", "3600"] if "pause" in name else []
    return [f"http://127.0.0.1:{port}", "--canary", "10", *pause]


@pytest.mark.parametrize("name", ["a silent port", *(pytest.param(w, marks=pytest.mark.soak) for w in WAITS[1:])])
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_every_wait_of_a_watch_ends_with_a_signal(tmp_path: Path, name: str, number: int):
    with silent_port() as port:
        ends_within(["watch", *wait_of(name, tmp_path, port)], number, 3.0)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("phase", ["starting", "serving"])
def test_every_wait_of_a_launch_ends_with_a_signal(tmp_path: Path, number: int, phase: str):
    """The engine (without a model) ends at SIGTERM at once; eyas has nothing else to wait for."""
    site = make_site(tmp_path / "site", "vllm", "0.25.1")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_launch_flow import plan_of; from pathlib import Path;"
        "from eyas.serve.launch.flow import launch; from eyas.serve.launch.launch_outcome import LaunchSettings;"
        "from eyas.serve.launch.stop import Interrupts; from eyas.serve.supervise.views import PlainView;"
        "say = lambda text: print(text, file=sys.stderr, flush=True); folder = Path(sys.argv[2]);"
        "plan = plan_of(folder, 'vllm', **({'freeze': True} if sys.argv[3] == 'starting' else {}));"
        "settings = LaunchSettings(runs=folder / 'runs', cache=folder / 'cache', canary=None);\n"
        "with Interrupts() as interrupts:\n    launch(plan, settings, PlainView(say), interrupts)"
    )
    paths = f"{Path(__file__).parent / 'launch'}"
    process = subprocess.Popen(
        [sys.executable, "-c", code, paths, str(tmp_path / "x"), phase],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{site}:{Path(__file__).parents[1]}/support",
        },
    )
    assert process.stderr is not None
    text = ""
    while "weights" not in text if phase == "starting" else "ready:" not in text:
        line = process.stderr.readline()
        assert line, text
        text += line
    start = time.monotonic()
    process.send_signal(number)
    process.communicate(timeout=30)

    assert time.monotonic() - start < 4
