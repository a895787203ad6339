"""The two servers of `eyas bench --engine NAME`: started one after the other by what `eyas serve` starts them with."""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from eyas.bench.bench_config import BenchConfigInvalid
from eyas.bench.served.config import StartOptions
from eyas.bench.served.load import Arm
from eyas.bench.served.run import BASELINE, SERVER
from eyas.cli.patient_view import PatientView
from eyas.cli.server_view import server_view
from eyas.cli.target_option import cache_folder
from eyas.cli.terminal import Terminal
from eyas.client.address import ServerAddress, await_answer, open_http
from eyas.contract.engines.launching.recipe import without_speculation
from eyas.contract.engines.launching.serve_options import ServeOptions
from eyas.contract.engines.registry import EngineName, engine_named
from eyas.contract.engines.server_at import server_at
from eyas.errors import ExitCode, EyasError
from eyas.serve.launch.flow import opened, stopped
from eyas.serve.launch.launch_outcome import LaunchSettings
from eyas.serve.launch.launch_plan import LaunchPlan, LaunchRequest, plan_launch
from eyas.serve.launch.running_server import PORT_LAG_S
from eyas.serve.launch.stop import Interrupts
from eyas.serve.supervise.views import final_text


class ServerNotReady(EyasError):
    """A server that was started to be measured did not get ready."""

    code = "server-not-ready"
    exit_code = ExitCode.FINDINGS


class LaunchRefused(EyasError):
    """What was to be started and measured is a launch that `eyas serve` refuses."""

    code = "launch-refused"
    exit_code = ExitCode.FINDINGS


def plans_of(
    engine: EngineName, target: Path, draft: Path, num_draft_tokens: int, options: StartOptions, talk: Terminal
) -> dict[str, LaunchPlan]:
    """The launch with the draft, and the same without speculation.

    Raises:
        BenchConfigInvalid: this engine's speculation cannot be left out of the command.
        LaunchRefused: `eyas serve` would refuse to start it.
    """
    request = LaunchRequest(
        engine=engine,
        target=str(target),
        target_folder=target,
        draft=draft.expanduser().resolve(),
        options=ServeOptions(
            num_draft_tokens=num_draft_tokens, tensor_parallel=options.tensor_parallel, port=options.port
        ),
        extra=_words(options.engine_flags),
        python=options.python,
        pythonpath=options.pythonpath,
    )
    prefixes = engine_named(engine).launching.speculation_flags
    if not prefixes:
        raise BenchConfigInvalid(
            f"eyas cannot start {engine} without its speculation",
            f"--engine {engine}",
            "its settings of speculation are not flags of their own",
            "start both servers, and give their URLs: eyas bench URL --baseline URL2",
        )
    plan = plan_launch(request, caller=os.environ, cache=cache_folder(), talk=talk)
    if not plan.may_start:
        first = plan.refused[0]
        raise LaunchRefused(
            f"the launch is refused: {first.what}",
            first.where,
            first.why,
            f"see all of it: eyas serve --print --engine {engine} --target {target} --draft {draft}",
        )
    return {SERVER: plan, BASELINE: replace(plan, command=without_speculation(plan.command, prefixes))}


@contextmanager
def started(name: str, plan: LaunchPlan, runs: Path, talk: Terminal) -> Iterator[Sequence[Arm]]:
    """One server while it is measured; it is ended well afterwards, whatever happened.

    Raises:
        ServerNotReady.
        What `eyas.serve.launch.flow.opened` raises.
    """
    talk.line(f"starting the {name}: {plan.shell()}")
    settings = LaunchSettings(runs=runs, cache=cache_folder(), canary=None)
    view, interrupts = PatientView(server_view(talk, json=False)), Interrupts()
    with opened(plan, settings, view, interrupts) as run:
        try:
            with interrupts:
                snapshot = run.until_ready()
            view.close()
            if interrupts.asked():
                raise KeyboardInterrupt
            if not snapshot.state.is_serving:
                raise ServerNotReady(
                    f"the {name} did not get ready: {snapshot.state}",
                    str(run.folder.path),
                    final_text(snapshot)[:1000],
                    f"read {run.folder.log_path}",
                )
            yield [Arm(name, _address(plan))]
        finally:
            with interrupts:
                talk.line(f"the {name} {stopped(run)}")


def _address(plan: LaunchPlan) -> ServerAddress:
    bare = ServerAddress(url=plan.command.url)
    with open_http(bare) as http:  # it says that it is ready a moment before the port is listened on
        await_answer(http, bare, PORT_LAG_S)
    return server_at(plan.command.url)


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        do = "quote its parts as for a shell"
        raise BenchConfigInvalid("--engine-flags cannot be read", text[:200], str(error), do) from error
