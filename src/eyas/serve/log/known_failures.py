"""The table of known failures: text to code, meaning and remedy. Loads `known_failures.toml`; decides nothing else."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """One row; the fields are described at the top of `known_failures.toml`."""

    code: str
    engine: str
    pattern: re.Pattern[str]
    what: str
    why: str
    do: str
    source: str
    anywhere: bool = False
    collateral: bool = False

    def says(self, match: re.Match[str] | None) -> tuple[str, str, str]:
        """`what`, `why`, `do` with the match's groups filled in."""
        groups = {name: value or "" for name, value in match.groupdict().items()} if match is not None else {}
        what, why, do = (text.format_map(_Blank(groups)) for text in (self.what, self.why, self.do))
        return re.sub(r"\s*\(\s*\)|\s+$", "", what), why, do


class _Blank(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


@cache
def known_failures() -> tuple[KnownFailure, ...]:
    """All rows in file order."""
    text = resources.files("eyas.serve").joinpath("known_failures.toml").read_text(encoding="utf-8")
    return tuple(
        KnownFailure(**{**row, "pattern": re.compile(row["pattern"])}) for row in tomllib.loads(text)["failure"]
    )


def by_code(code: str) -> KnownFailure:
    """The row of a code that is known to be there."""
    return next(row for row in known_failures() if row.code == code)


def find(text: str, engine: str, *, anywhere: bool = False) -> tuple[KnownFailure, re.Match[str]] | None:
    """The first row that matches `text`; with `anywhere`, only rows that hold outside a traceback too."""
    for row in known_failures():
        if row.engine not in ("any", engine) and engine != "unknown":
            continue
        if anywhere and not row.anywhere:
            continue
        match = row.pattern.search(text)
        if match is not None:
            return row, match
    return None
