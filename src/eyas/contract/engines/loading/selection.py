"""What a draft's config.json selects in an engine: a class with its load rules, or a refusal. Shared by all engines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eyas.contract.engines.loading.ledger import Reason, Verdict, reason
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.seen_config import SeenConfig
from eyas.contract.engines.releases import Releases
from eyas.contract.engines.version import EngineVersion, at_least
from eyas.diagnostic import Remedies


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the config selects.

    Attributes:
        rules: load rules of the class; with `reasons`, of the class that the draft is meant for; None where that
            cannot be told.
        config: as that class sees it.
        reasons: why it is refused or crashes before the first weight; () if it does not.
        class_name: of the runtime class, known or not.
    """

    rules: LoadRules | None = None
    config: SeenConfig | None = None
    reasons: tuple[Reason, ...] = ()
    class_name: str | None = None


def rules_for(table: Sequence[LoadRules], engine: EngineVersion, draft_class: str | None) -> LoadRules | None:
    """The newest rule set of `draft_class` that is not newer than the engine's version."""
    return next(
        (r for r in reversed(table) if r.draft_class == draft_class and at_least(engine.rules, r.since)),
        None,
    )


def architecture_of(config: Mapping[str, Any]) -> str | None:
    """The first class name under `architectures`."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names and isinstance(names[0], str) else None


def model_type_refusal(
    releases: Releases,
    engine: EngineVersion,
    config: Mapping[str, Any],
    where: str,
    why: str,
    do: Remedies,
    meant: LoadRules | None,
) -> Selection | None:
    """The refusal of a `model_type` that is missing, or unknown to engine and transformers; None if it is known."""
    model_type = config.get("model_type")
    if isinstance(model_type, str):
        own = releases.model_types.get(model_type)
        if own is not None and at_least(engine.rules, own):
            return None
        pinned = releases.of(engine.rules).transformers
        if any(model_type in names for since, names in _model_types().items() if at_least(pinned, since)):
            return None
    what = f"model_type {model_type!r} is unknown" if model_type else "config.json has no model_type"
    what = what if config else "there is no config.json, or an empty one"
    return stops("model-type-unknown", what, f"{where}: config.json: model_type", why, do, meant=meant, config=config)


def stops(
    code: str,
    what: str,
    where: str,
    why: str,
    do: Remedies,
    *,
    verdict: Verdict = "refuses",
    class_name: str | None = None,
    meant: LoadRules | None = None,
    config: Mapping[str, Any] | None = None,
) -> Selection:
    """A refused selection with its reason; `meant`: the rules that apply to `config` once that is fixed."""
    found = reason(code=code, verdict=verdict, what=what, where=where, why=why, do=do)
    seen = SeenConfig(values=config or {}, model_type="kimi_k2" if meant and meant.kind == "mla" else "llama")
    return Selection(reasons=(found,), class_name=class_name, rules=meant, config=seen)


@cache
def _model_types() -> dict[str, frozenset[str]]:
    file = Path(__file__).parent / "model_types.json"
    return {version: frozenset(names) for version, names in json.loads(file.read_text(encoding="utf-8")).items()}
