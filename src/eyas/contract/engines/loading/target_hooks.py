"""Which targets an engine can tap for EAGLE-3, by architecture and version: aux capture hook, `get_embed_and_head`.

Read mechanically from the engines' model files (`engines/data/target_hooks.json`: for each architecture the versions
at which something changed, with file and line). Says nothing of drafts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from eyas.contract.engines.version import EngineVersion, at_least
from eyas.contract.spec.layer_ids import Convention

_TABLE = Path(__file__).parents[1] / "data" / "target_hooks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetHook:
    """What one engine version offers for one target architecture.

    Attributes:
        status: present; absent = the class has no capture hook; no-head = it has, but not `get_embed_and_head`;
            unregistered = this version does not know the architecture; unknown = not in the table.
        convention: how ids of a draft are read (SGLang; vLLM takes them as boundaries).
        default_shift: added to the default boundaries as well (a quirk of one class).
        first: first version with everything that is needed, None if there is none in the table.
        source: file (and line) in the engine.
    """

    status: Literal["present", "absent", "no-head", "unregistered", "unknown"]
    architecture: str
    convention: Convention = "boundary"
    default_shift: int = 0
    first: str | None = None
    source: str = ""


def target_hook(engine: EngineVersion, architectures: Sequence[str]) -> TargetHook:
    """The hook of `engine` for a target with these `architectures` (the first one counts)."""
    if not architectures:
        return TargetHook(status="unknown", architecture="")
    architecture = architectures[0]
    steps = _table()[engine.engine].get(architecture)
    if not steps:
        return TargetHook(status="unknown", architecture=architecture)
    first = next((s["since"] for s in steps if _works(s)), None)
    # a step dated at the oldest version read holds for all before it
    reached = [s for s in steps if at_least(engine.rules, s["since"])]
    if not reached:
        return TargetHook(status="unregistered", architecture=architecture, first=first)
    step = reached[-1]
    if not step["hook"]:
        return TargetHook(status="absent", architecture=architecture, first=first, source=step["source"])
    if not step.get("embed_and_head", True):
        return TargetHook(status="no-head", architecture=architecture, first=first, source=step["source"])
    convention, shift = _convention(step["hook"])
    return TargetHook(
        status="present",
        architecture=architecture,
        convention=convention,
        default_shift=shift,
        first=first,
        source=step["source"],
    )


def known_targets(engine_name: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The whole table of one engine: architecture -> its steps, for `eyas engines --targets`."""
    return _table()[engine_name]


def _works(step: Mapping[str, Any]) -> bool:
    return bool(step["hook"]) and bool(step.get("embed_and_head", True))


def _convention(hook: object) -> tuple[Convention, int]:
    if hook is True:  # vLLM: ids are boundaries
        return "boundary", 0
    if hook == "after-layer-also-default":
        return "after-layer", 1
    assert hook in ("after-layer", "first-is-1", "last-is-n"), f"unknown hook kind {hook!r} in {_TABLE.name}"
    return hook, 0


@cache
def _table() -> dict[str, dict[str, list[dict[str, Any]]]]:
    loaded: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return loaded
