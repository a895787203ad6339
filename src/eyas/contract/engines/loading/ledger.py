"""What one engine does with one draft, both ways: every checkpoint tensor, every runtime parameter, every config key.

Only the shape of the answer lives here; `engines/` fills it in.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from eyas.contract.engines.version import EngineVersion
from eyas.diagnostic import Diagnostic, Remedies, Severity

# What becomes of a checkpoint tensor.
TensorFate = Literal["used", "shared", "overwritten", "by-design", "dropped", "crash"]
# What a runtime parameter holds when the engine starts to serve.
# unused = built, but never applied by this class.
ParameterState = Literal["filled", "partly", "ones", "zeros", "uninitialised", "target", "absent", "unused", "crash"]
KeyFate = Literal["read", "inert", "ignored", "unknown", "crash"]
Verdict = Literal["ok", "silent-damage", "crash", "refuses"]
DamageSeverity = Literal["mild", "severe", "fatal"]
# What a reason is about, judged independently: the class's constructor, loading the weights, the target's states.
Stage = Literal["start", "load", "capture"]

_SEVERITY: Mapping[DamageSeverity, Severity] = {"mild": "warning", "severe": "error", "fatal": "fatal"}
_DAMAGE_ORDER: tuple[DamageSeverity, ...] = ("mild", "severe", "fatal")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One checkpoint tensor.

    Attributes:
        fate: used = loaded into `parameter`; shared = equals the target's, which is used; overwritten = loaded, then
            replaced by the target's; by-design = not wanted by this engine and without effect (t2d); dropped = lost;
            crash = the loader raises.
        parameter: runtime parameter it went into; None if it went nowhere.
        remark: how, if not plainly: "fused as q", "cast F32 -> BF16", "rows 64.. cut off", the log line of a drop.
    """

    name: str
    fate: TensorFate
    parameter: str | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterEntry:
    """One runtime parameter of the draft.

    Attributes:
        state: filled = by checkpoint tensors; partly = a fused parameter with a shard missing (the rest holds
            whatever memory held) or padded; ones / zeros / uninitialised = as constructed; target = the target's;
            crash = the loader raises at its tensor.
        sources: checkpoint tensors that fill it.
        remark: which shards are missing, and the like.
    """

    name: str
    shape: tuple[int, ...]
    state: ParameterState
    sources: tuple[str, ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """One config key (nested ones with dots) and what the engine makes of it."""

    key: str
    fate: KeyFate
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One cause of a verdict other than ok.

    Attributes:
        severity: what it costs; None for a crash or refusal.
        stage: what it is about.
        diagnostic: the cause; its `items` are the tensors, parameters or keys concerned.
    """

    verdict: Verdict
    severity: DamageSeverity | None
    diagnostic: Diagnostic
    stage: Stage = "load"

    @property
    def code(self) -> str:
        """Of the diagnostic."""
        return self.diagnostic.code

    def as_document(self) -> dict[str, Any]:
        """The reason as a JSON object (docs/check-schema.md)."""
        found = self.diagnostic
        words = {"what": found.what, "where": found.where, "why": found.why, "do": found.advice}
        kind = {"code": found.code, "verdict": self.verdict, "severity": self.severity, "stage": self.stage}
        return {**kind, **words, "items": list(found.items)}


def reason(
    *,
    code: str,
    verdict: Verdict,
    severity: DamageSeverity | None = None,
    what: str,
    where: str,
    why: str,
    do: Remedies,
    items: tuple[str, ...] = (),
) -> Reason:
    """A reason with a diagnostic of these parts."""
    weight = "error" if severity is None else _SEVERITY[severity]
    found = Diagnostic(code=code, severity=weight, what=what, where=where, why=why, do=do, items=items)
    return Reason(verdict=verdict, severity=severity, diagnostic=found)


@cache
def _words() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads((Path(__file__).parent / "reasons.toml").read_text(encoding="utf-8"))


def said(
    code: str,
    where: str,
    items: Iterable[str] = (),
    *,
    do: Remedies | None = None,
    severity: DamageSeverity | None = None,
    facts: Mapping[str, object] | None = None,
    **more: object,
) -> Reason:
    """A reason in the words of `reasons.toml`, with `facts` and `more` put in.

    Args:
        do, severity: where they depend on the case.
    """
    words, facts = _words()[code], {**(facts or {}), **more}
    weight: Any = severity or words["severity"]
    is_damage = weight in _DAMAGE_ORDER
    return reason(
        code=code,
        verdict="silent-damage" if is_damage else weight,
        severity=weight if is_damage else None,
        what=words["what"].format_map(facts),
        where=where,
        why=words["why"].format_map(facts),
        do=words["do"].format_map(facts) if do is None else do,
        items=tuple(items),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLimit:
    """Sequences beyond which the engine does not compute the draft as it was trained.

    Attributes:
        tokens: of the longest sequence that it does.
        beyond: what it does past them, for a person.
    """

    tokens: int
    beyond: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The verdict of one engine on one draft.

    Attributes:
        runner: vLLM's model runner it holds for; None for SGLang.
        draft_class: runtime class that the config selects; None when the engine refuses it.
        severity: of a silent damage: mild (some acceptance lost), severe, fatal (nothing accepted).
        aux: boundaries that the target will be tapped at, as number of layers applied; None when nothing starts or
            the target's depth is unknown.
        source: where the rules were read: file and version.
        grade: ran / read / inferred.
        limit: None = positions are no concern up to the target's own length.
        would_tap: `aux`, also where something keeps the engine from serving: what is tapped once that is mended.
        norms_residual: layer 0 takes its residual after the norm, by the config as the engine completes it; None =
            its class has no such switch, or nothing is built.
    """

    engine: EngineVersion
    runner: str | None
    draft_class: str | None
    verdict: Verdict
    severity: DamageSeverity | None
    reasons: tuple[Reason, ...]
    tensors: tuple[TensorEntry, ...]
    parameters: tuple[ParameterEntry, ...]
    keys: tuple[KeyEntry, ...]
    aux: tuple[int, ...] | None
    source: str
    grade: str
    would_tap: tuple[int, ...] | None = None
    norms_residual: bool | None = None
    limit: PositionLimit | None = None

    @property
    def starts(self) -> bool:
        """The engine starts and serves."""
        return self.verdict in ("ok", "silent-damage")

    @property
    def dropped(self) -> tuple[str, ...]:
        """Checkpoint tensors whose values are lost."""
        return tuple(t.name for t in self.tensors if t.fate == "dropped")

    @property
    def unfilled(self) -> tuple[str, ...]:
        """Runtime parameters that no checkpoint tensor (and no target) fills, in whole or in part."""
        held = ("filled", "target", "unused", "crash")
        return tuple(p.name for p in self.parameters if p.state not in held)

    @property
    def overwritten(self) -> tuple[str, ...]:
        """Checkpoint tensors replaced by the target's by design."""
        return tuple(t.name for t in self.tensors if t.fate == "overwritten")

    @property
    def ignored_keys(self) -> tuple[str, ...]:
        """Config keys that change the function and that this engine does not read."""
        return tuple(k.key for k in self.keys if k.fate == "ignored")

    @property
    def is_healthy(self) -> bool:
        """It starts and serves the function that was trained."""
        return self.verdict == "ok"

    @property
    def stages(self) -> dict[Stage, tuple[Verdict, DamageSeverity | None]]:
        """Verdict and severity of each stage by itself, as if the earlier stages had no fault."""
        parts: tuple[Stage, ...] = ("start", "load", "capture")
        return {stage: verdict_of([r for r in self.reasons if r.stage == stage]) for stage in parts}

    def as_document(self) -> dict[str, Any]:
        """The ledger as a JSON object (docs/check-schema.md)."""
        return {
            "engine": self.engine.label,
            "rules": self.engine.rules,
            "runner": self.runner,
            "draft_class": self.draft_class,
            "verdict": self.verdict,
            "severity": self.severity,
            "stages": {stage: {"verdict": v, "severity": s} for stage, (v, s) in self.stages.items()},
            "reasons": [r.as_document() for r in self.reasons],
            "dropped": list(self.dropped),
            "unfilled": list(self.unfilled),
            "overwritten": list(self.overwritten),
            "ignored_keys": list(self.ignored_keys),
            "aux": None if self.aux is None else list(self.aux),
            "tensors": [asdict(t) for t in self.tensors],
            "parameters": [asdict(p) for p in self.parameters],
            "keys": [asdict(k) for k in self.keys],
            "position_limit": asdict(self.limit) if self.limit else None,
            "source": self.source,
            "grade": self.grade,
        }


def verdict_of(reasons: Sequence[Reason]) -> tuple[Verdict, DamageSeverity | None]:
    """The verdict that all reasons together mean: what happens first wins (refuses, then crash, then damage)."""
    for verdict in ("refuses", "crash"):
        if any(r.verdict == verdict for r in reasons):
            return verdict, None
    severities = [r.severity for r in reasons if r.verdict == "silent-damage" and r.severity is not None]
    if not severities:
        return "ok", None
    return "silent-damage", max(severities, key=_DAMAGE_ORDER.index)
