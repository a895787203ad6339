"""`check`: everything that can be said about a draft before any engine is started, all at once.

The library side of `eyas check`; `eyas serve` calls it too. Works on `Checkpoint` objects, never on engines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from eyas.contract.checkpoint import Checkpoint
from eyas.contract.engines.version import EngineVersion
from eyas.contract.finding import SEVERITIES, Finding, Severity
from eyas.contract.launch_flags import Launch
from eyas.contract.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What to look at besides headers and config."""

    algorithm: Literal["EAGLE3", "EAGLE"] = "EAGLE3"
    """Speculative algorithm of the launch; EAGLE with an EAGLE-3 draft starts and accepts nothing."""

    num_draft_tokens: int = 3
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
        launch: engine label -> flags, environment and notes of a launch with this draft.
    """

    findings: tuple[Finding, ...]
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    other_runners: Mapping[str, Ledger] = field(default_factory=dict)
    launch: Mapping[str, Launch] = field(default_factory=dict)

    def worst(self, engine: EngineVersion | str | None = None) -> Severity | None:
        """The highest severity among the findings; with `engine`, among those that concern it. None = no finding."""
        label = engine.label if isinstance(engine, EngineVersion) else engine
        found = [f.severity for f in self.findings if label is None or f.engine in (None, label)]
        return max(found, key=SEVERITIES.index) if found else None


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
        EyasError: the draft cannot be understood at all (no config, no dialect).
    """
    raise NotImplementedError
