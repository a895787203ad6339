"""A finding: one thing that `check` or `convert` has to say. Collected, never raised one by one."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["note", "warning", "error", "fatal"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error", "fatal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """Attributes are the house's message template; `code` is kebab-case with a heading in docs/errors.md.

    Attributes:
        severity: note = nothing to do; warning = may cost acceptance or is not decidable here; error = the engine
            would refuse, crash, or serve a damaged draft; fatal = an error after which nothing would be accepted.
        do: a command or edit that fixes it; empty only for notes.
        engine: "sglang==0.5.23" when the finding holds for one engine only.
    """

    code: str
    severity: Severity
    what: str
    where: str
    why: str
    do: str = ""
    engine: str | None = None

    def as_document(self) -> dict[str, Any]:
        """The finding as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.severity}[{self.code}]: {self.what}", f"  --> {self.where}", f"  = why: {self.why}"]
        if self.do:
            lines.append(f"  = do:  {self.do}")
        return "\n".join(lines)


def errors_of(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Those of severity error or fatal."""
    return [finding for finding in findings if finding.severity in ("error", "fatal")]


def worst_first(findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Each once, by severity; those of one severity as they came."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: -SEVERITIES.index(finding.severity)))
