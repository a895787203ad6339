"""Typed access to a config.json of unknown quality: wrong types become findings, every value gets a provenance."""

from collections.abc import Callable, Mapping
from typing import Any

from eyas.diagnostic import Diagnostic, finding
from eyas.errors import EyasError

_LARGEST = (1 << 31) - 1
_MAX_IDS = 64  # aux layer ids; drafts have three to five


class DraftConfigIncomplete(EyasError):
    """The config lacks a size that neither it nor the tensors tell."""

    code = "draft-config-incomplete"


class ConfigReader:
    """Reads one level of a config; collects `findings` and `provenance` (field of `DraftSpec` -> source)."""

    def __init__(self, config: Mapping[str, Any], where: str, level: str = "config.json") -> None:
        self.config, self.where, self.level = config, where, level
        self.findings: list[Diagnostic] = []
        self.provenance: dict[str, str] = {}

    def size(self, key: str, field: str, fallback: int | None, fallback_source: str, *, largest: int = _LARGEST) -> int:
        """A positive integer.

        Args:
            fallback: taken when the key is missing or null; None = there is none.
            fallback_source: where the fallback comes from, for the provenance.

        Raises:
            DraftConfigIncomplete: no usable value and no fallback.
        """
        value = self.optional_size(key, field, largest=largest)
        if value is not None:
            return value
        if fallback is None or not 0 < fallback <= largest:
            raise DraftConfigIncomplete(
                f"the draft's config does not say {key}"
                if self.config
                else "the draft has no config.json, or an empty one",
                f"{self.where}: {self.level}",
                f"the tensors do not show {key} either, so their shapes cannot be checked",
                f"add {key} to config.json as the draft was trained"
                if self.config
                else "put the draft's config.json beside its weights: trainers and hubs keep it there",
            )
        self.provenance[field] = fallback_source
        return fallback

    def optional_size(self, key: str, field: str, *, largest: int = _LARGEST) -> int | None:
        """A positive integer, or None when missing or null."""
        wanted = "a positive integer" if largest == _LARGEST else f"an integer from 1 to {largest}"
        size: int | None = self._value(key, field, lambda v: type(v) is int and 0 < v <= largest, wanted)
        return size

    def share(self, key: str, field: str, default: float, default_source: str) -> float:
        """A number above 0 and below 1."""
        value = self._value(key, field, lambda v: type(v) is float and 0 < v < 1, "a number above 0 and below 1")
        if value is None:
            self.provenance[field] = default_source
        return default if value is None else float(value)

    def flag(self, key: str, field: str, default: bool) -> bool:
        """true or false; null counts as missing."""
        value = self._value(key, field, lambda v: isinstance(v, bool), "true or false")
        self.provenance.setdefault(field, f"{key} is not in {self.level}: {str(default).lower()}")
        return default if value is None else bool(value)

    def text(self, key: str, field: str, default: str) -> str:
        """A string."""
        value = self._value(key, field, lambda v: isinstance(v, str), "a string")
        if value is None:
            self.provenance[field] = f"{key} is not in {self.level}: {default}"
        return default if value is None else str(value)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of integers >= 0, None when missing, null or empty."""
        value = self.config.get(key)
        if value is None or value == []:
            return None
        is_list = isinstance(value, list) and len(value) <= _MAX_IDS
        if is_list and all(type(item) is int and 0 <= item <= _LARGEST for item in value):
            return tuple(value)
        self.wrong(key, value, f"a list of at most {_MAX_IDS} layer ids")
        return None

    def level_below(self, key: str) -> "ConfigReader":
        """A reader of the object under `key` ({} when missing); it shares findings and provenance."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, Mapping):
            self.wrong(key, value, "an object")
        below = ConfigReader(value if isinstance(value, Mapping) else {}, self.where, f"{self.level}: {key}")
        below.findings, below.provenance = self.findings, self.provenance
        return below

    def _value(self, key: str, field: str, is_right: Callable[[Any], bool], wanted: str) -> Any:
        """The value, with its provenance; None where it is missing, null or (a finding) of the wrong kind."""
        value = self.config.get(key)
        if value is not None and is_right(value):
            self.provenance[field] = f"{self.level}: {key}"
            return value
        if value is not None:
            self.wrong(key, value, wanted)
        return None

    def wrong(self, key: str, value: Any, wanted: str) -> None:
        """Collect the finding about a value that is not what it must be."""
        what, why = (
            f"{key} is {str(value)[:60]!r}, not {wanted}",
            "engines would crash on it or take a default in silence",
        )
        place, do = f"{self.where}: {self.level}", f"set {key} to {wanted}"
        self.findings.append(finding("config-value-invalid", "error", what, place, why, do, items=(key,)))
