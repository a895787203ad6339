"""From a plan to a clean stop on an engine without a model: phases, verdict, crash, stall, key file, evidence."""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from eyas.contract.engines.launching.serve_options import ServeOptions
from eyas.contract.engines.registry import engine_named, parse_engine
from eyas.diagnostic import Diagnostic
from eyas.serve.facts.clock import SystemClock
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.facts.state import Event, Experiment, Snapshot, Stall, StateName
from eyas.serve.launch import flow, running_server
from eyas.serve.launch.environment import server_environment
from eyas.serve.launch.flow import PortBusy, flags_of, launch, launch_with_retries
from eyas.serve.launch.installed import find_engine
from eyas.serve.launch.launch_outcome import LaunchOutcome, LaunchSettings
from eyas.serve.launch.launch_plan import LaunchPlan, LaunchRequest
from eyas.serve.launch.memory_estimate import estimate_memory
from eyas.serve.launch.stop import Interrupts
from eyas.serve.log.tables import experiments_for, spec_config_of
from eyas.serve.look.endpoints import KeyUnsendable, require_sendable
from eyas.serve.look.engine_process import start_process
from eyas.serve.supervise.state_rules import Patience
from eyas.serve.supervise.supervisor import Supervisor
from eyas.serve.supervise.views import PlainView
from eyas.serve.verdict.canary_run import CanaryOptions
from recipes import recipe
from stub_engine import CRASH, free_port, make_site
from stub_server import Script, StubServer

VERSIONS = {"vllm": "0.25.1", "sglang": "0.5.15.post1"}
ENGINES = list(VERSIONS)
CANARY = CanaryOptions(min_rounds=200, max_seconds=20)


def plan_of(folder: Path, engine: str, *, key: str | None = None, forced: tuple[Diagnostic, ...] = (), **wish: object):
    """A plan whose engine is the stub, as `plan_launch` would make it for a draft without findings."""
    site = make_site(folder / "site", engine, VERSIONS[engine])
    caller = {**os.environ, "STUB_ENGINE": json.dumps(wish), **({"MY_KEY": key} if key else {})}
    options = ServeOptions(port=free_port())
    given = recipe(engine, VERSIONS[engine], options=options, key_variable="MY_KEY" if key else None)
    installed = find_engine(engine, environment={**caller, "PYTHONPATH": site})
    object.__setattr__(given, "python", installed.python)
    launching = engine_named(engine).launching
    command = launching.command(given)
    key = (given.key_variable, launching.key_variable)
    environment = server_environment(caller, command.environment, key=key, pythonpath=site)
    memory = estimate_memory(None, None, tensor_parallel=1, context_length=None, share=0.9)
    request = LaunchRequest(
        engine=engine,  # type: ignore[arg-type]
        target="T",
        target_folder=None,
        draft=Path("D"),
        options=options,
        key_variable=given.key_variable,
    )
    return LaunchPlan(
        request=request,
        engine=parse_engine(installed.spec),
        installed=installed,
        command=command,
        environment=environment,
        memory=memory,
        findings=forced,
        refused=(),
        overruled=forced,
        ledger="3 tensors are dropped",
        next_command="eyas convert D --to sglang OUT",
    )


class Lines:
    """Collects what a plain view says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.view = PlainView(self.said.append)


def run(folder: Path, plan: LaunchPlan, lines: Lines | None = None, **more: object) -> LaunchOutcome:
    settings = LaunchSettings(
        **({"canary": CANARY, "stop_after_verdict": True, "poll_s": 0.1} | more),  # type: ignore[arg-type]
        runs=folder / "runs",
        cache=folder / "cache",
    )
    return launch(plan, settings, (lines or Lines()).view, Interrupts())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_good_start_is_proven_stopped_and_leaves_its_evidence(tmp_path: Path, engine: str):
    lines = Lines()

    outcome = run(tmp_path, plan_of(tmp_path, engine), lines)

    assert outcome.snapshot.state is StateName.PROVEN
    assert outcome.exit_code == 0
    assert outcome.verdict is not None
    assert outcome.verdict.acceptance.accept_length == pytest.approx(2.5, abs=0.02)
    assert outcome.stopped is not None
    assert outcome.stopped.is_gone
    assert outcome.ready_s is not None
    names = {path.name for path in outcome.folder.iterdir()}
    assert {"launch.json", "engine.log", "events.jsonl", "timeline.json", "verdict.json", "outcome.json"} <= names
    assert any("weights" in line for line in lines.said)


def test_sglangs_503_is_warming_up_and_never_hung(tmp_path: Path):
    lines = Lines()

    outcome = run(tmp_path, plan_of(tmp_path, "sglang", warm_up_s=1.5), lines)

    states = [json.loads(line)["state"] for line in (outcome.folder / "events.jsonl").read_text().splitlines()]
    assert "warming-up" in states
    assert "stalled" not in states
    assert "unhealthy" not in states
    assert outcome.snapshot.state is StateName.PROVEN


@pytest.mark.parametrize("engine", ["vllm", pytest.param("sglang", marks=pytest.mark.soak)])
def test_a_dead_draft_ends_with_exit_one_and_the_words(tmp_path: Path, engine: str):
    outcome = run(tmp_path, plan_of(tmp_path, engine, accepted=[0]))

    assert outcome.exit_code == 1
    assert outcome.snapshot.state is StateName.READY
    assert outcome.verdict is not None
    assert "nothing is accepted; the ledger says: 3 tensors are dropped" in outcome.verdict.words
    written = json.loads((outcome.folder / "verdict.json").read_text())
    assert [f["code"] for f in written["findings"]] == ["nothing-accepted"]


def test_a_crash_in_the_start_is_reported_with_its_cause(tmp_path: Path):
    outcome = run(tmp_path, plan_of(tmp_path, "sglang", crash=CRASH))

    assert outcome.snapshot.state is StateName.CRASHED
    assert outcome.exit_code == 1
    assert outcome.snapshot.cause is not None
    assert "no such tensor: foo" in outcome.snapshot.cause.diagnostic.what
    assert outcome.verdict is None


def test_no_verdict_means_stop_at_ready(tmp_path: Path):
    outcome = run(tmp_path, plan_of(tmp_path, "vllm"), canary=None)

    assert outcome.snapshot.state is StateName.READY
    assert outcome.verdict is None
    assert outcome.exit_code == 0


def test_a_busy_port_is_found_before_anything_starts(tmp_path: Path):
    plan = plan_of(tmp_path, "vllm")
    with socket.create_server(("127.0.0.1", plan.request.options.port or 0)), pytest.raises(PortBusy):
        run(tmp_path, plan)

    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("engine", ["sglang", pytest.param("vllm", marks=pytest.mark.soak)])
def test_a_key_is_neither_in_the_process_list_nor_in_the_run_folder(tmp_path: Path, engine: str):
    secret = "sesame-open-4711"
    plan = plan_of(tmp_path, engine, key=secret)
    seen: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.append(process.read_bytes().decode(errors="replace"))
                except OSError:
                    continue

    watcher = threading.Thread(target=look)
    watcher.start()
    outcome = run(tmp_path, plan)
    done.set()
    watcher.join()

    assert outcome.snapshot.state is StateName.PROVEN
    assert not any(secret in words for words in seen)
    assert not any(secret in path.read_text(errors="replace") for path in outcome.folder.iterdir() if path.is_file())
    if engine == "sglang":
        assert any("--config" in words and str(plan.request.options.port) in words for words in seen)


def test_what_was_forced_is_recorded(tmp_path: Path):
    finding = Diagnostic(code="tensor-dropped", severity="fatal", what="w", where="x", why="y", do="z")

    outcome = run(tmp_path, plan_of(tmp_path, "vllm", forced=(finding,)))

    recorded = json.loads((outcome.folder / "launch.json").read_text())
    assert [f["code"] for f in recorded["forced"]] == ["tensor-dropped"]
    assert outcome.verdict is not None
    assert "--force tensor-dropped" in outcome.verdict.words


def test_an_interrupt_while_it_serves_ends_it_well(tmp_path: Path):
    plan = plan_of(tmp_path, "vllm")
    interrupts = Interrupts()
    settings = LaunchSettings(runs=tmp_path / "runs", cache=tmp_path / "cache", canary=CANARY, poll_s=0.1)

    class Once(Lines):
        def __init__(self) -> None:
            super().__init__()
            self.view.event = self.event  # type: ignore[method-assign]

        def event(self, event: object) -> None:
            if getattr(event, "kind", "") == "proof":
                interrupts.count = 1

    outcome = launch(plan, settings, Once().view, interrupts)

    assert outcome.stopped is not None
    assert outcome.stopped.exit_code == 0
    assert outcome.stopped.is_gone
    assert outcome.exit_code == 0


def test_a_server_that_took_the_port_meanwhile_is_not_taken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two launches at once find the port free; the first to be ready must not be judged in the other's place."""
    plan = plan_of(tmp_path, "vllm", freeze=True)
    monkeypatch.setattr("eyas.serve.launch.flow._require_free_port", lambda url: None)
    interrupts = Interrupts()
    settings = LaunchSettings(runs=tmp_path / "runs", cache=tmp_path / "cache", canary=CANARY, poll_s=0.1)
    lines = Lines()
    say = lines.view.event

    def event(event: Event) -> None:
        say(event)
        interrupts.count = int("not of this launch" in event.text)

    lines.view.event = event  # type: ignore[method-assign]
    with StubServer(Script(engine="vllm"), port=int(plan.command.url.rpartition(":")[2])):
        outcome = launch(plan, settings, lines.view, interrupts)

    assert outcome.ready_s is None
    assert outcome.verdict is None
    assert outcome.snapshot.state is StateName.STARTING


def test_patience_scales_how_long_a_phase_may_be_silent(tmp_path: Path):
    began = time.monotonic()
    patience = Patience(scale=0.005, second_sample_s=0.2)
    outcome = run(tmp_path, plan_of(tmp_path, "vllm", freeze=True), patience=patience)

    assert outcome.snapshot.state is StateName.STALLED
    assert time.monotonic() - began < 30, "a launch may be silent for minutes by default"


def test_an_interrupt_in_the_middle_of_the_verdict_leaves_no_thread_to_wait_for():
    """Python joins an executor's threads at its end: eyas would stay for as long as the verdict asks."""
    running_server._in_background(threading.Event().wait)  # type: ignore[arg-type]

    waiting = [t for t in threading.enumerate() if t.name == "eyas-verdict"]
    assert waiting
    assert all(t.daemon for t in waiting)


def test_each_launch_has_its_own_folder(tmp_path: Path):
    plan = plan_of(tmp_path, "vllm")

    first, second = run(tmp_path, plan, canary=None), run(tmp_path, plan, canary=None)

    assert first.folder != second.folder
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_an_experiments_flags_are_words_for_the_engine():
    plain = Experiment(id="sglang-graphs-off", title="x", add_flags=("--disable-cuda-graph",))

    assert flags_of(plain) == ("--disable-cuda-graph",)


def stalled(*experiments: str) -> Snapshot:
    tries = tuple(Experiment(id=name, title=name, add_flags=(f"--{name}",)) for name in experiments)
    stall = Stall(kind="graph-capture", what="stands still", experiments=tries)
    return Snapshot(
        at=0.0, elapsed_s=1.0, engine="vllm", version="0.25.1", state=StateName.STALLED, reason="r", stall=stall
    )


def ready() -> Snapshot:
    return Snapshot(at=0.0, elapsed_s=1.0, engine="vllm", version="0.25.1", state=StateName.READY, reason="r")


def retried(tmp_path: Path, snapshots: list[Snapshot]) -> tuple[list[LaunchOutcome], list[tuple[str, ...]], list[str]]:
    """Outcomes, the flags that each retry was planned with, and what was said, when launches end like this."""
    plan = plan_of(tmp_path, "vllm")
    settings = LaunchSettings(runs=tmp_path / "runs", cache=tmp_path / "cache")
    planned: list[tuple[str, ...]] = []
    said: list[str] = []
    left = iter(snapshots)

    def replan(words: tuple[str, ...], variables: Mapping[str, str]) -> LaunchPlan:
        planned.append(words)
        return plan

    def start(*_: object, experiment: Experiment | None = None) -> LaunchOutcome:
        return LaunchOutcome(
            folder=tmp_path, snapshot=next(left), ready_s=None, verdict=None, stopped=None, experiment=experiment
        )

    outcomes = launch_with_retries(plan, settings, Lines().view, Interrupts(), replan, said.append, start=start)
    return outcomes, planned, said


def test_a_stall_is_retried_with_one_thing_changed_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("eyas.serve.launch.flow.flags_of", lambda experiment: experiment.add_flags)

    outcomes, planned, said = retried(tmp_path, [stalled("a", "b", "c"), stalled("x"), ready()])

    assert planned == [("--a",), ("--b",)]
    assert [o.experiment.id if o.experiment else None for o in outcomes] == [None, "a", "b"]
    assert outcomes[-1].exit_code == 0
    assert len(said) == 2


def test_retries_end_after_three_or_when_nothing_is_left_to_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("eyas.serve.launch.flow.flags_of", lambda experiment: experiment.add_flags)

    many = retried(tmp_path / "1", [stalled("a", "b", "c", "d"), *[stalled()] * 3])
    few = retried(tmp_path / "2", [stalled("a"), stalled()])
    none = retried(tmp_path / "3", [ready()])

    assert [len(many[0]), len(few[0]), len(none[0])] == [4, 2, 1]
    assert many[0][-1].exit_code == 1


def test_keys_for_vllms_speculative_config_are_merged_by_its_command():
    (experiment, *_) = [e for e in experiments_for("graph-capture", "draft", "vllm", "0.33.0") if spec_config_of(e)]

    words = flags_of(experiment)

    assert words[-2] == "--speculative-config"
    merged = engine_named("vllm").launching.command(recipe("vllm", "0.33.0", *words))
    assert merged.findings == ()
    assert merged.argv.count("--speculative-config") == 1


def test_the_keys_file_is_in_memory_and_its_link_is_dead_without_the_engine():
    """kill -9 to eyas leaves a name that leads nowhere, never the key."""
    with flow._key_file("--config", "it's secret") as (words, inherited):
        link = Path(words[1])
        assert link.suffix == ".yaml"
        assert link.is_symlink()
        assert link.read_text() == "api-key: 'it''s secret'\n"
        target = os.readlink(link)

    assert not link.exists()
    assert not Path(target).exists() or "secret" not in Path(target).read_text()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(inherited[0])


def test_the_engine_reads_the_key_through_the_link(tmp_path: Path):
    """Below its guard, which is a process of its own: the descriptor has to come through both."""
    folder = RunFolder.create(tmp_path, engine="sglang")
    with flow._key_file("--config", "sesame") as (words, inherited):
        reader = [sys.executable, "-c", "import sys; print(open(sys.argv[2]).read())", *words]
        process = start_process(reader, dict(os.environ), folder, inherited=inherited)
        assert process.wait_gone(20)
        process.close()

    assert folder.log_path.read_text().strip() == "api-key: 'sesame'"


def test_links_that_killed_launches_left_are_swept_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old, new = tmp_path / "eyas-key-old", tmp_path / "eyas-key-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "key.yaml").symlink_to("/proc/self/fd/999")
    os.utime(old, (0, 0))
    with flow._key_file("--config", "k"):
        pass

    assert not old.exists()
    assert new.exists()


def test_a_deaf_engine_is_not_waited_for_in_silence(tmp_path: Path):
    """Up to 91 s passed after Ctrl-C without a word."""
    lines = Lines()
    plan = plan_of(tmp_path, "vllm")
    interrupts = Interrupts()
    settings = LaunchSettings(runs=tmp_path / "runs", cache=tmp_path / "cache", canary=None, poll_s=0.1)
    server = running_server.RunningServer(
        plan,
        settings,
        lines.view,
        interrupts,
        SystemClock(),
        None,
        None,
        _supervisor(),
        None,  # type: ignore[arg-type]
    )
    for waited in range(90):
        server.say_waiting(float(waited))

    assert len(lines.said) == 18
    assert "may drain for 90 s; Ctrl-C again ends it at once" in lines.said[0]


def _supervisor() -> Supervisor:
    from fake_world import FakeClock, World

    supervisor = Supervisor(engine="vllm", version=None, probes=World(), clock=FakeClock())
    supervisor.step()
    return supervisor


def test_the_terminals_end_ends_the_server_well_and_nohup_keeps_it():
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.asked()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.asked()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("key", ["schlüssel", "k\n", "k\x00", "”quoted”"])
def test_a_key_that_no_header_carries_is_refused_before_anything_starts(key: str):
    with pytest.raises(KeyUnsendable) as caught:
        require_sendable(key, "MY_KEY")

    assert key not in str(caught.value)


def test_a_verdict_whose_answers_do_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = Lines()
    monkeypatch.setattr(running_server, "_in_background", lambda work: Future())
    monkeypatch.setattr(running_server, "_COMPARING_S", 0.3)
    canary = CanaryOptions(min_rounds=200, max_seconds=0.2)

    outcome = run(tmp_path, plan_of(tmp_path, "vllm"), lines, canary=canary)

    assert outcome.verdict is None
    assert any("no verdict within" in line for line in lines.said)
