"""Version conditions of the tables: ">=0.5.9,<0.5.14"."""

import re

from eyas.client.versions import key


def matches(version: str | None, wanted: str) -> bool:
    """Whether `version` meets every comparison in `wanted`; an unknown version meets them all.

    An unknown version must not hide a marker: a line that is there is there.
    """
    if version is None or not wanted:
        return True
    return all(_meets(version, term.strip()) for term in wanted.split(","))


def _meets(version: str, term: str) -> bool:
    match = re.fullmatch(r"(>=|<=|==|<|>)\s*(\S+)", term)
    assert match is not None, f"a table has a bad version term: {term!r}"
    mine, theirs = key(version), key(match[2])
    return {
        ">=": mine >= theirs,
        "<=": mine <= theirs,
        "==": mine == theirs,
        "<": mine < theirs,
        ">": mine > theirs,
    }[match[1]]
