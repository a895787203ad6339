"""A launch without a draft: the server hands over its target's states. What `serve --capture` starts, or why not."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from eyas.contract.engines.capturing import CaptureWish, python_path, spool_folders
from eyas.contract.engines.launching.recipe import DraftLaunch, Recipe, code_of
from eyas.contract.engines.launching.serve_options import Counting, ServeOptionsInvalid, refuse_where
from eyas.contract.engines.registry import engine_named
from eyas.contract.engines.version import EngineVersion
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.files.read_checkpoint import read_target_checkpoint
from eyas.contract.spec.layer_ids import default_boundaries
from eyas.contract.spec.target_spec import TargetSpec, target_spec
from eyas.diagnostic import errors_of, worst_first
from eyas.serve.launch.environment import server_environment
from eyas.serve.launch.launch_plan import (
    LaunchPlan,
    LaunchRequest,
    by_force,
    engine_of,
    flags_of,
    memory_of,
    secrets_on_the_command_line,
)
from eyas.talk import Talk, gigabytes

_MOST_BYTES, _LEAST_BYTES = 8 << 30, 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """How a server hands over its target's states."""

    boundaries: Annotated[tuple[int, ...] | None, Parameter(consume_multiple=True, negative="")] = None
    """With --capture: numbers of decoder layers after which states are taken; default 2, N/2 and N-3 of N layers."""

    spool: Path | None = None
    """With --capture: folder where rows wait to be fetched; default is one in memory (/dev/shm)."""

    spool_gb: float | None = None
    """With --capture: GB that waiting rows may take before the engine waits; default is half of what is free, at most
    8.6. A row may take half of it."""

    def __post_init__(self) -> None:
        chosen = self.boundaries
        refuse_where(
            (f"--boundaries {chosen} are not increasing", bool(chosen) and list(chosen or ()) != _ordered(chosen)),
            (f"--spool-gb {self.spool_gb} is not above 0", self.spool_gb is not None and not self.spool_gb > 0),
        )


def plan_capture(
    request: LaunchRequest, options: CaptureOptions, *, caller: Mapping[str, str], cache: Path, talk: Talk
) -> LaunchPlan:
    """Compose and judge a launch that hands over states.

    Raises:
        EngineNotInstalled, PythonUnusable: as `plan_launch`.
        ServeOptionsInvalid: the engine has no way to do it, or the target's depth is not known.
    """
    engine_entry = engine_named(request.engine)
    capturing = engine_entry.capturing
    if capturing is None or request.target_folder is None:
        why = "eyas knows no way in which it does" if capturing is None else "its config.json is not at hand"
        what = f"{request.engine} cannot hand over the states of {request.target}"
        raise ServeOptionsInvalid(what, "--capture", why, "use --engine sglang or vllm, and a target's folder")
    sites = (*python_path(engine_entry.folder), *((request.pythonpath,) if request.pythonpath else ()))
    key = (request.key_variable, engine_entry.launching.key_variable)
    paths = ":".join(sites)
    environment = server_environment(caller, {}, key=key, pythonpath=request.pythonpath)
    installed, engine = engine_of(request, environment)
    headers = read_target_checkpoint(request.target_folder, weights=True)
    target = target_spec(headers)
    wish = _wish(request, options, target, engine_entry.launching.default_port)
    recipe = Recipe(
        python=installed.python if installed else request.python or "python",
        target=request.target,
        draft=_no_draft(request, engine, headers, target),
        options=request.options,
        known=flags_of(request, engine, installed, environment, cache, talk),
        target_headers=headers,
        extra=request.extra,
        key_variable=request.key_variable,
    )
    command = capturing.command(recipe, wish)
    environment = server_environment(caller, command.environment, key=key, pythonpath=paths)
    memory = replace(memory_of(recipe, engine), draft_weights=0, draft_per_token=0)
    found = (*command.findings, *environment.findings, *memory.findings())
    findings = worst_first([*found, *secrets_on_the_command_line(request.extra)])
    refused, overruled = by_force(tuple(errors_of(findings)), request.forced)
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
        ledger="",
        next_command="eyas engines",
        notes=tuple(_notes(request, wish, target, command.url)),
        capture=wish,
    )


def _wish(request: LaunchRequest, options: CaptureOptions, target: TargetSpec, default_port: int) -> CaptureWish:
    boundaries = options.boundaries or tuple(sorted(set(default_boundaries(target.num_layers))))
    folders = spool_folders(request.options.port or default_port)
    folder = options.spool or next((f for f in folders if _half_free(f) >= _LEAST_BYTES), folders[-1])
    limit = int(options.spool_gb * 1e9) if options.spool_gb else min(_half_free(folder), _MOST_BYTES)
    return CaptureWish(
        boundaries=boundaries, num_layers=target.num_layers, spool=str(folder.absolute()), limit_bytes=limit
    )


def _notes(request: LaunchRequest, wish: CaptureWish, target: TargetSpec, url: str) -> list[str]:
    per_token = 2 * (len(wish.boundaries) + 1) * target.hidden_size
    place = url.partition("//")[2] or "HOST:PORT"
    return [
        f"states after {', '.join(map(str, wish.boundaries))} of {wish.num_layers} layers and the last one are handed"
        f" over: {per_token / 1024:.1f} KiB a token",
        f"rows wait in {wish.spool}, at most {gigabytes(wish.limit_bytes)}; a row may have"
        f" {wish.limit_bytes // 2 // per_token} tokens",
        f"only requests that ask for states leave any: eyas extract --from {request.engine}://{place} ...",
        *(f"rows that no client fetches go into {request.store}" for _ in range(1) if request.store),
    ]


def _no_draft(request: LaunchRequest, engine: EngineVersion, headers: Checkpoint, target: TargetSpec) -> DraftLaunch:
    launch = DraftLaunch.of_headers(engine, "", headers, Counting.of(request.options))
    return replace(
        launch,
        target_length=target.max_position_embeddings,
        target_code=code_of(target.config),
        served_length=request.options.context_length,
    )


def _half_free(folder: Path) -> int:
    """Half of the bytes free where `folder` is or will be; 0 where that is nowhere, or not ours to write."""
    parent = folder if folder.exists() else folder.parent
    return shutil.disk_usage(parent).free // 2 if parent.is_dir() and os.access(parent, os.W_OK) else 0


def _ordered(boundaries: tuple[int, ...] | None) -> list[int]:
    return sorted(set(boundaries or ()))
