"""The flow of `eyas serve` after the plan: start, supervise, first-minute verdict, serve on, stop well; retry a stall.

Whatever happens, the run folder keeps the command, the raw log, the events, the timeline and the verdict, and nothing
that was started outlives this function.
"""

import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from eyas.errors import ExitCode, EyasError
from eyas.records.atomic import write_text
from eyas.serve.facts.clock import Clock, SystemClock
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.facts.state import Experiment, Snapshot, Stall, StateName
from eyas.serve.launch.draining import draining
from eyas.serve.launch.launch_outcome import LaunchOutcome, LaunchSettings
from eyas.serve.launch.launch_plan import LaunchPlan
from eyas.serve.launch.running_server import RunningServer
from eyas.serve.launch.spool_folder import spool_folder
from eyas.serve.launch.stop import Interrupts, StopOutcome, stop
from eyas.serve.log.tables import spec_config_of
from eyas.serve.look.engine_process import EngineProcess, start_process
from eyas.serve.look.probes import live_probes
from eyas.serve.look.stacks import LiveStackTaker
from eyas.serve.look.subject import Subject
from eyas.serve.supervise.phase_times import PhaseMemory, StartKey
from eyas.serve.supervise.supervisor import Supervisor
from eyas.serve.supervise.views import View

_MAX_EXPERIMENTS = 3
_LINKS = "eyas-key-"  # folders in the temporary one
_OLD_LINK_S = 7 * 86400.0  # the engine reads it in its first minute


class PortBusy(EyasError):
    """The port is in use already."""

    code = "port-busy"
    exit_code = ExitCode.ENVIRONMENT


def launch(
    plan: LaunchPlan,
    settings: LaunchSettings,
    view: View,
    interrupts: Interrupts,
    *,
    clock: Clock | None = None,
    experiment: Experiment | None = None,
) -> LaunchOutcome:
    """Start what was planned and stay with it until it ends or is to be stopped.

    Raises: as `opened`.
    """
    with opened(plan, settings, view, interrupts, clock=clock, experiment=experiment) as run:
        return _finish(run, run.until_end(), experiment)


@contextmanager
def opened(
    plan: LaunchPlan,
    settings: LaunchSettings,
    view: View,
    interrupts: Interrupts,
    *,
    clock: Clock | None = None,
    experiment: Experiment | None = None,
) -> Iterator[RunningServer]:
    """Start what was planned; nothing of it outlives the block.

    Raises:
        PortBusy: the port is in use already.
        EngineNotStarted: the command cannot be executed.
        WriteFailed: the run folder cannot be written.
        SpoolInUse: another server's rows wait in the folder for rows.
    """
    assert plan.may_start, "a refused plan must not be started"
    clock = clock or SystemClock()
    _require_free_port(plan.command.url)
    folder = RunFolder.create(settings.runs, engine=plan.request.engine)
    for name, text in plan.command.files.items():
        write_text(folder.path / name, text)
    argv = [str(folder.path / word) if word in plan.command.files else word for word in plan.command.argv]
    forced = [f.as_document() for f in plan.overruled]
    extra = {"forced": forced, "notes": [*plan.notes, *plan.command.notes], "experiment": experiment and experiment.id}
    folder.write_launch(
        argv,
        plan.environment.shown,
        engine=plan.request.engine,
        version=plan.engine.version,
        extra={**extra, "plan": plan.as_document()},
    )
    variable = plan.request.key_variable
    api_key = plan.environment.variables.get(variable) if variable else None
    spool = plan.capture.spool if plan.capture else None
    request = plan.request
    with (
        spool_folder(plan.capture),
        draining(spool, request.store, request.target_folder, settings.say),
        _key_file(plan.command.key_flag, api_key) as (key_words, inherited),
    ):
        process = start_process([*argv, *key_words], plan.environment.variables, folder, inherited=inherited)
        try:
            yield RunningServer(
                plan,
                settings,
                view,
                interrupts,
                clock,
                folder,
                process,
                _supervisor(plan, settings, folder, process, api_key, interrupts),
                api_key,
            )
        finally:
            process.close()


def stopped(run: RunningServer) -> StopOutcome:
    """End a server that is not needed any more, well."""
    run.supervisor.note_stop_asked()
    return stop(run.process, hurry=run.interrupts.hurry, on_wait=run.say_waiting, clock=run.clock)


def launch_with_retries(
    plan: LaunchPlan,
    settings: LaunchSettings,
    view: View,
    interrupts: Interrupts,
    replan: Callable[[tuple[str, ...], Mapping[str, str]], LaunchPlan],
    say: Callable[[str], None],
    *,
    start: Callable[..., LaunchOutcome] = launch,
) -> list[LaunchOutcome]:
    """Launch; when it stalls at start, try the proposed experiments one by one, each in its own run folder.

    Args:
        replan: the plan with further flags and variables.
        say: what is tried and what it tells.
        start: `launch`, or what stands for it in a test.
    """
    once = replace(settings, stop_after_verdict=True)
    outcomes = [start(plan, once, view, interrupts)]
    tried: set[str] = set()
    while outcomes[-1].snapshot.state is StateName.STALLED and len(tried) < _MAX_EXPERIMENTS and not interrupts.asked():
        stall = outcomes[0].snapshot.stall
        experiment = next((e for e in _changes(stall) if e.id not in tried), None)
        if experiment is None:
            break
        tried.add(experiment.id)
        say(f"retry {len(tried)}: {experiment.title}; {experiment.tells}")
        changed = replan(flags_of(experiment), experiment.add_env)
        if not changed.may_start:
            say(f"not tried: {changed.refused[0].what}")
            continue
        outcomes.append(start(changed, once, view, interrupts, experiment=experiment))
    return outcomes


def flags_of(experiment: Experiment) -> tuple[str, ...]:
    """An experiment's flags as words for the engine; keys for vLLM's --speculative-config are merged by its command."""
    config = spec_config_of(experiment)
    words = tuple(w for w in experiment.add_flags if not w.startswith("(in "))
    return (*words, "--speculative-config", json.dumps(config)) if config else words


def _changes(stall: Stall | None) -> tuple[Experiment, ...]:
    """The experiments that change the launch (others are for a person to do)."""
    return tuple(e for e in (stall.experiments if stall else ()) if e.add_flags or e.add_env)


def _finish(run: RunningServer, snapshot: Snapshot, experiment: Experiment | None) -> LaunchOutcome:
    is_over = snapshot.state.is_final and run.process.is_gone
    ended = None if is_over else stopped(run)
    outcome = LaunchOutcome(
        folder=run.folder.path,
        snapshot=snapshot,
        ready_s=run.ready_s,
        verdict=run.verdict,
        stopped=ended,
        experiment=experiment,
    )
    run.supervisor.journal.write("outcome.json", outcome.as_document)
    run.supervisor.journal.write("timeline.json", run.supervisor.timeline_document)
    return outcome


def _supervisor(
    plan: LaunchPlan,
    settings: LaunchSettings,
    folder: RunFolder,
    process: EngineProcess,
    api_key: str | None,
    interrupts: Interrupts,
) -> Supervisor:
    request = plan.request
    subject = Subject.of_process(process, url=plan.command.url or None)
    key = StartKey(
        engine=plan.engine.label,
        version=plan.engine.version,
        target=request.target,
        draft=str(request.draft or "none"),
        hardware=str(plan.memory.gpu_total or "cpu"),
        flags=" ".join(request.extra),
    )
    return Supervisor(
        engine=request.engine,
        version=plan.engine.version,
        probes=live_probes(subject, engine=request.engine, version=plan.engine.version, api_key=api_key),
        stacks=LiveStackTaker(interrupted=interrupts.asked),
        patience=settings.patience,
        folder=folder,
        memory=PhaseMemory(settings.cache / "phases"),
        key=key,
    )


def _require_free_port(url: str) -> None:
    if not url:
        return
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 0
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.settimeout(1)
        if probe.connect_ex((host, port)) == 0:
            raise PortBusy(
                f"port {port} is in use already",
                url,
                "the engine would fail after loading, or another server would be judged in its place",
                f"choose another --port; see what it is: eyas watch {url}",
            )


@contextmanager
def _key_file(flag: str | None, api_key: str | None) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """For an engine that reads its key only from a file: a YAML file in memory that only this launch holds open.

    On the disk is only a link to it, with the name that the engine wants (".yaml"): dead, and without the key, when
    the last process that holds the file has ended.

    Yields: words for the command, and the descriptor that the engine inherits.
    """
    if flag is None or api_key is None:
        yield [], ()
        return
    _sweep_links()
    folder, memory = tempfile.mkdtemp(prefix=_LINKS), os.memfd_create("eyas-key")
    link = Path(folder) / "key.yaml"
    try:
        escaped = api_key.replace("'", "''")
        os.write(memory, f"api-key: '{escaped}'\n".encode())
        os.fchmod(memory, 0o600)
        link.symlink_to(f"/proc/self/fd/{memory}")
        yield [flag, str(link)], (memory,)
    finally:
        os.close(memory)
        shutil.rmtree(folder, ignore_errors=True)


def _sweep_links() -> None:
    """Remove the broken links that killed launches left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_LINKS}*"):
        with suppress(OSError):
            if folder.stat().st_uid == os.getuid() and time.time() - folder.stat().st_mtime > _OLD_LINK_S:
                shutil.rmtree(folder, ignore_errors=True)
