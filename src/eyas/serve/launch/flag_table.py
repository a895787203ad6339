"""Which flags an engine's command line knows: from its own `--help`, else from the table read out of its source.

The table (`engine_flags/*.txt`) holds names only. A version between two of the table is answered with the older one's
flags, and that is said.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from eyas.contract.engines.version import parse_version

_OPTION_LINE = re.compile(r"^ {1,6}(-{1,2}[A-Za-z].*)$")
_FLAG = re.compile(r"(?<![\w-])--[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFlags:
    """The flags of one engine in one version.

    Attributes:
        engine, version: whose.
        names: with two dashes and hyphens.
        source: where they were read, for a person.
        is_certain: from this very version (its help or its source); otherwise from a neighbour.
    """

    engine: str
    version: str
    names: frozenset[str]
    source: str
    is_certain: bool

    def knows(self, word: str) -> bool:
        """Whether the engine's parser would take this flag ("--x", "--x=1"; vLLM also "--no-x", "--x.key", "--a_b")."""
        name = word.partition("=")[0]
        if self.engine == "vllm":
            name = name.partition(".")[0].replace("_", "-")
            if name.startswith("--no-") and f"--{name[5:]}" in self.names:
                return True
        return name in self.names or not name.startswith("--")

    def nearest(self, word: str) -> str | None:
        """The known flag that looks most like `word`."""
        name = word.partition("=")[0]
        longer = sorted(n for n in self.names if n.startswith(f"{name}-"))
        if longer:
            return longer[0]
        found = difflib.get_close_matches(name, self.names, n=1, cutoff=0.7)
        return found[0] if found else None


def flags_in_help(text: str) -> frozenset[str]:
    """The flags that argparse's help lists (its option lines and usage, not its prose)."""
    names: set[str] = set()
    for line in text.splitlines():
        if match := _OPTION_LINE.match(line):
            names.update(_FLAG.findall(re.split(r"\s{2,}", match[1])[0]))
    usage = text.split("\n\n", 1)[0] if text.lower().startswith("usage:") else ""
    names.update(_FLAG.findall(usage))
    return frozenset(names)


def table_flags(engine: str, version: str) -> KnownFlags:
    """The flags of `engine` in `version`, from the table; a version outside it is answered by its nearest older one."""
    versions, spans = _table(engine)
    older = [v for v in versions if parse_version(v) <= parse_version(version)]
    chosen = older[-1] if older else versions[0]
    names = frozenset(flag for flag, parts in spans.items() if any(_within(chosen, part, versions) for part in parts))
    exact = parse_version(chosen) == parse_version(version)
    source = f"the source of {engine} {chosen}" + ("" if exact else f" (nearest known to {version})")
    return KnownFlags(engine=engine, version=version, names=names, source=source, is_certain=exact)


def last_version_with(engine: str, flag: str) -> str | None:
    """The last version of the table with a flag that newer ones lack; None if it never was or still is there."""
    ends = [part.partition("..")[2] for part in _table(engine)[1].get(flag, ())]
    return ends[-1] if ends and ends[-1] else None


def first_version_with(engine: str, flag: str) -> str | None:
    """The first version of the table that has a flag; None if none has."""
    parts = _table(engine)[1].get(flag)
    return parts[0].partition("..")[0] if parts else None


def unknown_flags(words: Iterable[str], known: KnownFlags) -> list[str]:
    """The flags among `words` that the engine does not know."""
    return [w.partition("=")[0] for w in words if w.startswith("--") and not known.knows(w)]


def flag_value(words: Sequence[str], *names: str) -> str | None:
    """The value that a command line gives a flag, the last one winning; "" for a flag without value; None if absent."""
    value: str | None = None
    for index, word in enumerate(words):
        name, equals, inline = word.partition("=")
        if name in names:
            following = words[index + 1] if index + 1 < len(words) else "--"
            value = inline if equals else "" if following.startswith("--") else following
    return value


def _within(version: str, span: str, versions: Sequence[str]) -> bool:
    first, _, last = span.partition("..")
    place = versions.index(version)
    return versions.index(first) <= place <= (versions.index(last) if last else len(versions) - 1)


@cache
def _table(engine: str) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    text = (resources.files("eyas.serve") / "engine_flags" / f"{engine}.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    versions = tuple(lines[0].split()[1:])
    spans: dict[str, tuple[str, ...]] = {}
    for line in lines[1:]:
        flag, *parts = line.split()
        spans[flag] = tuple(parts) or (f"{versions[0]}..",)
    return versions, spans
