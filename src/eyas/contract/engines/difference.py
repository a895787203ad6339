"""What changed between two versions of one engine: what `eyas engines --diff A B` prints."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from eyas.contract.engines.launching.recipe import DraftLaunch
from eyas.contract.engines.launching.serve_options import Counting
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.selection import rules_for
from eyas.contract.engines.loading.target_hooks import target_hook
from eyas.contract.engines.registry import engine_named
from eyas.contract.engines.serving_engine import ServingEngine
from eyas.contract.engines.version import EngineVersion, matches

_UNTOLD = ("since", "source", "engine", "draft_class")
_LOG_TABLES = ("markers", "failures", "experiments", "frames")
_ROPES = ("default", "yarn")


def difference(a: EngineVersion, b: EngineVersion) -> dict[str, Any]:
    """What differs between `a` and `b`, by part; {} or [] where nothing does.

    Both are versions of one engine. A version between two known ones stands for the one before it.
    """
    assert a.engine == b.engine, f"{a.label} and {b.label} are different engines"
    engine = engine_named(a.engine)
    before, after = (engine.releases.of(v.version) for v in (a, b))
    flags = [engine.launching.flags.known(v.version).names for v in (a, b)]
    return {
        "transformers": [] if before.transformers == after.transformers else [before.transformers, after.transformers],
        "rules": _rules(engine, a, b),
        "targets": _targets(engine, a, b),
        "flags": _sets(*flags),
        "launch": _sets(_launch(engine, a), _launch(engine, b)),
        "log": {name: found for name in _LOG_TABLES if any((found := _log(engine, name, a, b)).values())},
    }


def _sets(before: Iterable[str], after: Iterable[str]) -> dict[str, list[str]]:
    old, new = set(before), set(after)
    return {"added": sorted(new - old), "gone": sorted(old - new)}


def _rules(engine: ServingEngine, a: EngineVersion, b: EngineVersion) -> list[dict[str, Any]]:
    table = engine.loading.rules
    rows = []
    for name in dict.fromkeys(rules.draft_class for rules in table):
        old, new = rules_for(table, a, name), rules_for(table, b, name)
        if old is None or new is None:
            if old is not new:
                rows.append(_row(name, "", "no such class" if old is None else "known", "known" if new else "gone"))
            continue
        differing = (f.name for f in fields(LoadRules) if f.name not in _UNTOLD)
        rows += [
            _row(name, f, getattr(old, f), getattr(new, f)) for f in differing if getattr(old, f) != getattr(new, f)
        ]
    return rows


def _row(name: str, field: str, before: Any, after: Any) -> dict[str, Any]:
    return {"draft_class": name, "field": field, "from": before, "to": after}


def _targets(engine: ServingEngine, a: EngineVersion, b: EngineVersion) -> list[dict[str, str]]:
    rows = []
    for name in engine.loading.hooks:
        states = []
        for version in (a, b):
            hook = target_hook(engine.loading.hooks, version, [name])
            end = ", also after the last layer" if hook.taps_end and hook.convention != "boundary" else ""
            states.append(f"ids {hook.convention}{end}" if hook.status == "present" else hook.status)
        if states[0] != states[1]:
            rows.append({"architecture": name, "from": states[0], "to": states[1]})
    return rows


def _launch(engine: ServingEngine, version: EngineVersion) -> list[str]:
    """Lines about a draft whose config allows fewer tokens than its target's, with plain and with scaled RoPE."""
    found = [engine.launching.warning(version.version)]
    for rope in _ROPES:
        draft = DraftLaunch(
            engine=version,
            draft="DRAFT",
            counting=Counting.chain(3),
            length=2048,
            scaled_length=2048,
            rope_type=rope,
            target_length=32768,
        )
        launch = engine.launching.draft_launch(draft)
        found += [*launch.notes, " ".join(launch.flags), *(f"{k}={v}" for k, v in launch.environment.items())]
    return [line.replace(version.label, engine.name) for line in found if line]


def _log(engine: ServingEngine, name: str, a: EngineVersion, b: EngineVersion) -> dict[str, list[str]]:
    file = engine.folder / f"{name}.toml"
    if not file.is_file():
        return {"added": [], "gone": []}
    tables: Mapping[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    rows = [row for part in tables.values() if isinstance(part, list) for row in part]
    named = [(next(str(row[key]) for key in ("id", "code", "pattern", *row) if key in row), row) for row in rows]
    here = [[n for n, row in named if matches(v.version, row.get("versions", ""))] for v in (a, b)]
    return _sets(*here)
