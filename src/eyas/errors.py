"""The base of every error that eyas raises on purpose: what, where, why, what to do.

Each package defines its own subclasses beside the code that raises them, one per way to be wrong; every `code`
has a heading in docs/errors.md and a test.
"""

from enum import IntEnum
from typing import ClassVar

from eyas.diagnostic import Diagnostic, Remedies


class ExitCode(IntEnum):
    """What the process says to its caller; `eyas --help` lists it."""

    GOOD = 0
    FINDINGS = 1
    USAGE = 2
    ENVIRONMENT = 3
    INTERNAL = 4


class EyasError(Exception):
    """An error raised on purpose. It says what, where, why and what to do."""

    code: ClassVar[str] = "tool-error"  # kebab-case, unique, one heading each in docs/errors.md
    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, what: str, where: str, why: str, do: Remedies) -> None:
        super().__init__(what, where, why, do)  # kept in args: the error survives pickling
        self.diagnostic = Diagnostic(code=self.code, severity="error", what=what, where=where, why=why, do=do)
        self.what, self.where, self.why, self.do = what, where, why, self.diagnostic.advice

    def __str__(self) -> str:
        return str(self.diagnostic)

    def as_document(self) -> dict[str, object]:
        """The error as the JSON object that `--json` prints."""
        return {
            "schema": "eyas.error/1",
            "code": self.code,
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "do": self.do,
            "notes": list(getattr(self, "__notes__", [])),
        }


class EnvironmentMissing(EyasError):
    """Something the machine lacks: an optional package, a device, an engine."""

    code = "environment-missing"
    exit_code = ExitCode.ENVIRONMENT
