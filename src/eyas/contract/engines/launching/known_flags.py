"""Which flags an engine's command line knows: from its own `--help`, else from the table read out of its source.

The table (`flags.txt` in the engine's folder) holds names only. A version between two of the table is answered with the
older one's flags, and that is said.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eyas.contract.engines.version import parse_version
from eyas.diagnostic import Diagnostic, finding

_HERE = Path(__file__).parent
_OPTION_LINE = re.compile(r"^ {1,6}(-{1,2}[A-Za-z].*)$")
_FLAG = re.compile(r"(?<![\w-])--[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagTable:
    """The flags of one engine by version.

    Attributes:
        engine: its name.
        is_loose: its parser also takes "--no-x", "--x.key" and "--a_b".
        versions: those whose source was read, oldest first.
        spans: flag -> ("FIRST..LAST", ...); LAST is "" while it is there.
        own: flag in any spelling -> the option of `eyas serve` that sets it.
    """

    engine: str
    is_loose: bool
    versions: tuple[str, ...]
    spans: Mapping[str, tuple[str, ...]]
    own: Mapping[str, str]

    @classmethod
    def load(cls, engine: str, folder: Path, *, is_loose: bool = False) -> "FlagTable":
        """Read the `flags.txt` of an engine's folder."""
        text = (folder / "flags.txt").read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        versions = tuple(lines[0].split()[1:])
        spans: dict[str, tuple[str, ...]] = {}
        own: dict[str, str] = {}
        for line in lines[1:]:
            flag, *parts = line.split()
            if flag == "own":
                own |= dict.fromkeys(parts[1:], parts[0].replace("/", " or "))
            else:
                spans[flag] = tuple(parts) or (f"{versions[0]}..",)
        return cls(engine=engine, is_loose=is_loose, versions=versions, spans=spans, own=own)

    def known(self, version: str) -> "KnownFlags":
        """The flags of `version`; one outside the table is answered by its nearest older one."""
        older = [v for v in self.versions if parse_version(v) <= parse_version(version)]
        chosen = older[-1] if older else self.versions[0]
        names = frozenset(flag for flag, spans in self.spans.items() if any(self._holds(s, chosen) for s in spans))
        exact = parse_version(chosen) == parse_version(version)
        source = f"the source of {self.engine} {chosen}" + ("" if exact else f" (nearest known to {version})")
        return KnownFlags(table=self, version=version, names=names, source=source, is_certain=exact)

    def last_version_with(self, flag: str) -> str | None:
        """The last version with a flag that newer ones lack; None if no version had it or the newest has it."""
        ends = [span.partition("..")[2] for span in self.spans.get(flag, ())]
        return ends[-1] if ends and ends[-1] else None

    def first_version_with(self, flag: str) -> str | None:
        """The first version that has a flag; None if none has."""
        spans = self.spans.get(flag)
        return spans[0].partition("..")[0] if spans else None

    def _holds(self, span: str, version: str) -> bool:
        first, _, last = span.partition("..")
        end = self.versions.index(last) if last else len(self.versions) - 1
        return self.versions.index(first) <= self.versions.index(version) <= end


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFlags:
    """The flags of one engine in one version.

    Attributes:
        table: of all its versions.
        names: with two dashes and hyphens.
        source: where they were read, for a person.
        is_certain: from this very version (its help or its source); otherwise from a neighbour.
    """

    table: FlagTable
    version: str
    names: frozenset[str]
    source: str
    is_certain: bool

    @property
    def label(self) -> str:
        """Engine and version, as findings name them."""
        return f"{self.table.engine}=={self.version}"

    def knows(self, word: str) -> bool:
        """Whether the engine's parser would take this flag ("--x", "--x=1")."""
        name = word.partition("=")[0]
        if self.table.is_loose:
            name = name.partition(".")[0].replace("_", "-")
            if name.startswith("--no-") and f"--{name[5:]}" in self.names:
                return True
        return name in self.names or not name.startswith("--")

    def unknown(self, words: Iterable[str]) -> list[str]:
        """The flags among `words` that the engine does not know."""
        return [w.partition("=")[0] for w in words if w.startswith("--") and not self.knows(w)]

    def nearest(self, word: str) -> str | None:
        """The known flag that looks most like `word`."""
        name = word.partition("=")[0]
        longer = sorted(n for n in self.names if n.startswith(f"{name}-"))
        if longer:
            return longer[0]
        found = difflib.get_close_matches(name, self.names, n=1, cutoff=0.7)
        return found[0] if found else None

    def findings(self, ours: Sequence[str], extra: Sequence[str]) -> Iterator[Diagnostic]:
        """Flags that this launch needs and the engine lacks; extra ones that are unknown, or eyas' own to set.

        Args:
            ours: the words that eyas composed.
            extra: those of the user, after `--`.
        """
        own, facts = self.table.own, {"label": f"{self.table.engine} {self.version}", "source": self.source}
        for name in self.unknown(ours):
            yield told("flag-missing", _HERE, self.label, facts | {"name": name})
        for name in self.unknown(extra):
            last, first = self.table.last_version_with(name), self.table.first_version_with(name)
            history = f"; it was there up to {last}" if last else f"; it came with {first}" if first else ""
            nearest, option = self.nearest(name), own.get(name)
            do = f"use eyas' own {option}, before the --" if option else f"use {nearest}" if nearest else ""
            do = do or f"take it out; `{self.table.engine}`'s --help lists what there is"
            yield told("flag-unknown", _HERE, self.label, facts | {"name": name, "history": history, "do": do})
        given = {word for word in ours if word.startswith("-")}
        taken = {own[word] for word in given if word in own}
        for name in sorted({word.partition("=")[0] for word in extra if word.startswith("-")}):
            option = own.get(name)
            if self.knows(name) and (name in given or option in taken):
                do = f"use eyas' own {option} instead, before the --" if option else f"leave {name} out"
                yield told("flag-given-twice", _HERE, self.label, {"name": name, "do": do})


@cache
def _words(folder: Path) -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads((folder / "combinations.toml").read_text(encoding="utf-8"))


def told(code: str, folder: Path, engine: str, facts: Mapping[str, object]) -> Diagnostic:
    """A finding about a launch in the words of a folder's `combinations.toml`, with `facts` put in."""
    words = _words(folder)[code]
    what, where, why, do = (words[part].format_map(facts) for part in ("what", "where", "why", "do"))
    severity: Any = words["severity"]
    return finding(code, severity, what, where, why, do, engine=engine)


def flags_in_help(text: str) -> frozenset[str]:
    """The flags that argparse's help lists (its option lines and usage, not its prose)."""
    names: set[str] = set()
    for line in text.splitlines():
        if match := _OPTION_LINE.match(line):
            names.update(_FLAG.findall(re.split(r"\s{2,}", match[1])[0]))
    usage = text.split("\n\n", 1)[0] if text.lower().startswith("usage:") else ""
    names.update(_FLAG.findall(usage))
    return frozenset(names)


def flag_value(words: Sequence[str], *names: str) -> str | None:
    """The value that a command line gives a flag, the last one winning; "" for a flag without value; None if absent."""
    value: str | None = None
    for index, word in enumerate(words):
        name, equals, inline = word.partition("=")
        if name in names:
            following = words[index + 1] if index + 1 < len(words) else "--"
            value = inline if equals else "" if following.startswith("--") else following
    return value
