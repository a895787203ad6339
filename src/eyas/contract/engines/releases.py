"""The releases of one engine that eyas knows: its `releases.toml`, the only list of versions that there is."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eyas.contract.engines.version import at_least, parse_version

# ran = the engine's own loader was run and agreed; read = its source was; inferred = from its neighbours.
Grade = Literal["ran", "read", "inferred"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One entry: every version from `since` up to the next entry behaves as this one does.

    Attributes:
        read: the version whose source was unpacked and read.
        grade: of exactly that version; versions between two entries are inferred.
        transformers: version of transformers that it pins (or the oldest that it allows): decides which values of
            `model_type` are known. "" for an engine that does not use transformers' config classes.
    """

    since: str
    read: str
    grade: Literal["ran", "read"]
    transformers: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """What `releases.toml` of an engine says.

    Attributes:
        title: as people write the engine's name. distributions: package names that hold it, the plain one first.
        runners: model runners that a launch can choose; () where there is only one.
        entries: oldest first.
        model_types: those that the engine registers itself -> first version.
    """

    title: str
    distributions: tuple[str, ...]
    runners: tuple[str, ...]
    entries: tuple[Release, ...]
    model_types: Mapping[str, str]

    @classmethod
    def load(cls, file: Path) -> "Releases":
        """Read a `releases.toml`."""
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        entries = tuple(Release(**{"read": row["since"], **row}) for row in table["release"])
        named = {key: tuple(table[key]) for key in ("distributions", "runners")}
        return cls(title=table["title"], entries=entries, model_types=table.get("model_types", {}), **named)

    @property
    def oldest(self) -> str:
        """First version of the known span."""
        return self.entries[0].since

    @property
    def newest(self) -> str:
        """Last version of the known span."""
        return self.entries[-1].read

    def of(self, version: str) -> Release:
        """The entry that answers for `version`: the newest that is not newer, else the oldest."""
        return next((r for r in reversed(self.entries) if at_least(version, r.since)), self.entries[0])

    def is_outside(self, version: str) -> bool:
        """Older than the oldest entry or newer than the newest; a post release of the newest is still that version."""
        base = parse_version(parse_version(version).base_version)
        return not at_least(version, self.oldest) or base > parse_version(parse_version(self.newest).base_version)

    def grade(self, version: str) -> Grade:
        """How well the rules are known for exactly this version."""
        return next((r.grade for r in self.entries if r.read == version), "inferred")
