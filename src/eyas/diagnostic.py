"""`Diagnostic`: one thing that eyas has to say, as data: what, where, why, and remedies that can be tried.

Findings of `check` and `serve`, losses of `convert`, reasons of a ledger, causes of a crash and errors all are one or
hold one. Remedies are rendered here and nowhere else; no code reads a message back.
"""

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

_LONGEST = 8000  # characters of one sentence
Severity = Literal["note", "warning", "error", "fatal"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error", "fatal")


def draft_folder(where: str) -> str:
    """The folder of the draft read from `where`, for a command line; a word for it where that was a header dump."""
    return "DRAFT_FOLDER" if where.endswith(".json") else where


@dataclass(frozen=True, slots=True, kw_only=True)
class Convert:
    """Convert the draft with `eyas convert`.

    Attributes:
        draft: where it was read from.
        to: format.
        rename: values of --rename.
        fix: value of --fix, "" for none.
        remark: what the command achieves, said after it.
    """

    draft: str
    to: str
    rename: tuple[str, ...] = ()
    fix: str = ""
    remark: str = ""

    def __str__(self) -> str:
        words = [shlex.quote(draft_folder(self.draft)), "--to", self.to]
        words += [word for rename in self.rename for word in ("--rename", shlex.quote(rename))]
        words += ["--fix", self.fix] if self.fix else []
        return f"eyas convert {' '.join(words)} OUT{' ' * bool(self.remark)}{self.remark}"


@dataclass(frozen=True, slots=True)
class Flag:
    """Give a flag, or with a name that is not one an environment variable, to the command or launch in question."""

    name: str
    value: str = ""
    remark: str = ""

    def __str__(self) -> str:
        between = " " if self.name.startswith("-") and self.value else "=" if self.value else ""
        return f"add {self.name}{between}{self.value}{' ' * bool(self.remark)}{self.remark}"


@dataclass(frozen=True, slots=True)
class Edit:
    """Set one key of the draft's config.json (`value` as JSON; nested keys with dots)."""

    key: str
    value: Any = field(hash=False)
    remark: str = ""

    def __str__(self) -> str:
        return f'write "{self.key}": {json.dumps(self.value)}{self.remark}'


@dataclass(frozen=True, slots=True)
class Run:
    """Type a command of the shell."""

    command: str
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.command}{' ' * bool(self.remark)}{self.remark}"


Remedy = str | Convert | Flag | Edit | Run
"""One thing to do; a plain text where nothing can be typed."""
Remedies = Remedy | tuple[Remedy, ...]
"""One remedy, or several to choose from, the best first; () for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """Attributes are the house's message template; `code` is kebab-case with a heading in docs/errors.md.

    Attributes:
        severity: note = nothing to do; warning = may cost acceptance or cannot be decided here; error = the engine
            would refuse, crash, or serve a damaged draft; fatal = an error after which nothing would be accepted.
        do: how to fix it; () only for notes.
        engine: "sglang==0.5.23" when it holds for one engine only.
        items: names of the tensors, parameters, keys or switches concerned.
    """

    code: str
    severity: Severity
    what: str
    where: str
    why: str
    do: Remedies = ()
    engine: str | None = None
    items: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("what", "where", "why"):  # a stranger's list of a million ids is not repeated
            if len(text := getattr(self, name)) > _LONGEST:
                object.__setattr__(self, name, f"{text[:_LONGEST]} ...")

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """`do` as a tuple."""
        return self.do if isinstance(self.do, tuple) else (self.do,) if self.do else ()

    @property
    def advice(self) -> str:
        """`do` as text."""
        return "; or ".join(map(str, self.remedies))

    def as_document(self) -> dict[str, Any]:
        """The JSON object of a finding."""
        words = {"what": self.what, "where": self.where, "why": self.why, "do": self.advice}
        return {"code": self.code, "severity": self.severity, **words, "engine": self.engine}

    def text(self, word: str = "") -> str:
        """The message for a person.

        Args:
            word: in place of the severity.
        """
        lines = [f"{word or self.severity}[{self.code}]: {self.what}", f"  --> {self.where}", f"  = why: {self.why}"]
        return "\n".join([*lines, f"  = do:  {self.advice}"] if self.remedies else lines)

    def __str__(self) -> str:
        return self.text()


def finding(
    code: str,
    severity: Severity,
    what: str,
    where: str,
    why: str,
    do: Remedies = (),
    *,
    engine: str | None = None,
    items: tuple[str, ...] = (),
) -> Diagnostic:
    """A diagnostic of these parts, in the order in which it is read."""
    return Diagnostic(code=code, severity=severity, what=what, where=where, why=why, do=do, engine=engine, items=items)


def errors_of(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Those of severity error or fatal."""
    return [finding for finding in findings if finding.severity in ("error", "fatal")]


def worst_first(findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Each once, by severity; those of one severity as they came."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: -SEVERITIES.index(finding.severity)))
