"""A reader that stops reading costs the view, not the looking, nor the answer to Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eyas.cli.patient_view import OutputNotRead, PatientView
from eyas.serve.facts.state import Event, StateName
from eyas.serve.supervise.views import PlainView
from stub_engine import free_port, make_site
from tiny_checkpoints import write_draft, write_target

EVENT = Event(at=0.0, elapsed_s=0.0, kind="note", state=StateName.READY, text="hello", data={})


def fill(pipe: int, piece: int = 1) -> None:
    os.set_blocking(pipe, False)
    try:
        while True:
            os.write(pipe, b"x" * piece)
    except BlockingIOError:
        os.set_blocking(pipe, True)


def test_a_full_pipe_is_waited_for_once_and_written_to_when_it_is_read_again():
    reader, writer = os.pipe()
    view = PatientView(PlainView(lambda text: os.write(writer, text.encode()) and None), limit_s=0.1, again_s=0.3)
    before = signal.getsignal(signal.SIGALRM)
    fill(writer, 4096)

    with pytest.raises(OutputNotRead):
        view.event(EVENT)
    start = time.monotonic()
    view.event(EVENT)
    assert time.monotonic() - start < 0.1, "it is left out for a while"
    os.read(reader, 1 << 20)
    time.sleep(0.3)
    view.event(EVENT)

    assert b"hello" in os.read(reader, 1 << 20)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_launch_whose_output_nobody_reads_still_ends_its_engine_at_a_signal(tmp_path: Path):
    site = make_site(tmp_path / "site", "vllm", "0.25.1")
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft")
    command = ["serve", "--engine", "vllm", "--target", target, "--draft", draft, "--runs", tmp_path / "runs"]
    command += ["--pythonpath", site, "--port", free_port(), "--no-verdict"]
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "eyas", *map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=writer,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    said = b""
    while b"  starting: " not in said:
        said += os.read(reader, 256)
    fill(writer)
    (log,) = (tmp_path / "runs").glob("*/engine.log")
    time.sleep(3)  # ready by now, which could not be said
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    outcome = log.with_name("outcome.json")
    while not outcome.exists() and time.monotonic() - start < 20:
        time.sleep(0.05)
    ended_s = time.monotonic() - start
    os.set_blocking(reader, False)
    while process.poll() is None:
        try:
            os.read(reader, 65536)
        except BlockingIOError:
            time.sleep(0.05)

    assert ended_s < 5
    assert process.returncode == 0


@pytest.mark.parametrize(("command", "number"), [("watch", signal.SIGTERM), ("engines", signal.SIGINT)])
def test_a_result_that_is_not_read_does_not_keep_a_signal_waiting(command: str, number: int, tmp_path: Path):
    """Neither stdout nor stderr is read: what is told of the interruption is not waited for."""
    log = tmp_path / "server.log"
    log.write_text("[2026-11-29 14:03:50] server_args=ServerArgs(model_path='x')\n")
    reader, writer = os.pipe()
    fill(writer, 4096)
    fill(writer)
    arguments = [command, str(log)] if command == "watch" else [command]
    process = subprocess.Popen([sys.executable, "-m", "eyas", *arguments], stdout=writer, stderr=writer)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.send_signal(number)
        code = process.wait(5)
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        os.close(writer)

    assert code == (0 if command == "watch" else 128 + signal.SIGINT)
