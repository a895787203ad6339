"""Which targets an engine can tap for EAGLE-3, by architecture and version: aux capture hook, `get_embed_and_head`.

Read mechanically from the engines' model files (`target_hooks.json` in each engine's folder: for each architecture the
versions at which something changed, with file and line). Says nothing of drafts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eyas.contract.engines.version import EngineVersion, at_least
from eyas.contract.spec.layer_ids import Convention

Hooks = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetHook:
    """What one engine version offers for one target architecture.

    Attributes:
        status: present; absent = the class has no capture hook; no-head = it has, but not `get_embed_and_head`;
            unregistered = this version does not know the architecture; unknown = not in the table.
        convention: how ids of a draft are read.
        default_shift: added to the default boundaries as well (a quirk of one class).
        taps_end: the state after the last layer can be captured.
        first: first version with everything that is needed, None if there is none in the table.
        source: file (and line) in the engine.
    """

    status: Literal["present", "absent", "no-head", "unregistered", "unknown"]
    architecture: str
    convention: Convention = "boundary"
    default_shift: int = 0
    taps_end: bool = False
    first: str | None = None
    source: str = ""


def load_hooks(folder: Path) -> Hooks:
    """The table of one engine: architecture -> its steps, oldest first."""
    hooks: Hooks = json.loads((folder / "target_hooks.json").read_text(encoding="utf-8"))
    return hooks


def target_hook(hooks: Hooks, engine: EngineVersion, architectures: Sequence[str]) -> TargetHook:
    """The hook of `engine` for a target with these `architectures` (the first one counts)."""
    architecture = architectures[0] if architectures else ""
    steps = hooks.get(architecture)
    if not steps:
        return TargetHook(status="unknown", architecture=architecture)
    working = next((s for s in steps if s["hook"] and s.get("embed_and_head", True)), None)
    first = working["since"] if working else None
    # a step dated at the oldest version read holds for all before it
    step = next((s for s in reversed(steps) if at_least(engine.rules, s["since"])), None)
    if step is None:
        return TargetHook(status="unregistered", architecture=architecture, first=first)
    # of a class that cannot be tapped: as the first version that can, which is what a patch would bring
    used = step if step["hook"] else working or {"hook": False}
    convention, shift = _convention(used["hook"])
    has_head = step.get("embed_and_head", True)
    return TargetHook(
        status="absent" if not step["hook"] else "present" if has_head else "no-head",
        architecture=architecture,
        convention=convention,
        default_shift=shift,
        taps_end=used.get("taps_end", used["hook"] is True),
        first=first,
        source=step["source"],
    )


def _convention(hook: object) -> tuple[Convention, int]:
    if hook in (True, False):  # ids are boundaries
        return "boundary", 0
    if hook == "after-layer-also-default":
        return "after-layer", 1
    assert hook in ("after-layer", "first-is-1", "last-is-n"), f"unknown hook kind {hook!r}"
    return hook, 0
