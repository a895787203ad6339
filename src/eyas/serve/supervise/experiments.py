"""Experiments for a stall: which single thing to change next, by engine version. Loads `experiments.toml`."""

import json
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from eyas.contract.engines.version import matches
from eyas.serve.facts.state import Experiment, ModelRole


def for_stall(kind: str, role: ModelRole | None, engine: str, version: str | None) -> tuple[Experiment, ...]:
    """What to try, cheapest first, each changing one variable of the start that stalled."""
    return tuple(_experiment(row) for row in _rows() if _fits(row, kind, role, engine, version))


def spec_config_of(experiment: Experiment) -> dict[str, Any]:
    """Keys that the experiment wants in vLLM's --speculative-config (empty for the others)."""
    row = next(row for row in _rows() if row["id"] == experiment.id)
    return dict(row.get("spec_config", {}))


def _fits(row: dict[str, Any], kind: str, role: ModelRole | None, engine: str, version: str | None) -> bool:
    return (
        kind in row["kinds"]
        and row["engine"] in ("any", engine)
        and matches(version, row.get("versions", ""))
        and (role is None or role in row.get("roles", (role,)))
    )


def _experiment(row: dict[str, Any]) -> Experiment:
    flags = list(row.get("flags", ()))
    if "spec_config" in row:
        flags += [f"(in --speculative-config) {json.dumps(row['spec_config'])}"]
    return Experiment(
        id=row["id"],
        title=row["title"],
        add_flags=tuple(flags),
        add_env=dict(row.get("env", {})),
        tells=row["tells"],
    )


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    text = resources.files("eyas.serve").joinpath("experiments.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["experiment"])
