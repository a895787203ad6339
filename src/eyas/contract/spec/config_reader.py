"""Typed access to a config.json of unknown quality: wrong types become findings, every value gets a provenance."""

from collections.abc import Mapping
from typing import Any

from eyas.diagnostic import Diagnostic
from eyas.errors import EyasError

_LARGEST = 1 << 31


class DraftConfigIncomplete(EyasError):
    """The config lacks a size that neither it nor the tensors tell."""

    code = "draft-config-incomplete"


class ConfigReader:
    """Reads one level of a config; collects `findings` and `provenance` (field of `DraftSpec` -> source)."""

    def __init__(self, config: Mapping[str, Any], where: str, level: str = "config.json") -> None:
        self.config, self.where, self.level = config, where, level
        self.findings: list[Diagnostic] = []
        self.provenance: dict[str, str] = {}

    def size(self, key: str, field: str, fallback: int | None, fallback_source: str) -> int:
        """A positive integer.

        Args:
            fallback: taken when the key is missing or null; None = there is none.
            fallback_source: where the fallback comes from, for the provenance.

        Raises:
            DraftConfigIncomplete: no usable value and no fallback.
        """
        value = self.config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST:
            self.provenance[field] = f"{self.level}: {key}"
            return value
        if value is not None:
            self._wrong(key, value, "a positive integer")
        if fallback is None or not 0 < fallback < _LARGEST:
            raise DraftConfigIncomplete(
                f"the draft's config does not say {key}",
                f"{self.where}: {self.level}",
                "the tensors do not tell it either, so their shapes cannot be checked",
                f"add {key} to config.json as the draft was trained",
            )
        self.provenance[field] = fallback_source
        return fallback

    def optional_size(self, key: str, field: str) -> int | None:
        """A positive integer, or None when missing or null."""
        value = self.config.get(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST:
            self.provenance[field] = f"{self.level}: {key}"
            return value
        self._wrong(key, value, "a positive integer")
        return None

    def number(self, key: str, field: str, default: float, default_source: str) -> float:
        """A finite number."""
        value = self.config.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30:
            self.provenance[field] = f"{self.level}: {key}"
            return float(value)
        if value is not None:
            self._wrong(key, value, "a number")
        self.provenance[field] = default_source
        return default

    def flag(self, key: str, field: str, default: bool) -> bool:
        """true or false; null counts as missing."""
        value = self.config.get(key)
        if isinstance(value, bool):
            self.provenance[field] = f"{self.level}: {key}"
            return value
        if value is not None:
            self._wrong(key, value, "true or false")
        self.provenance.setdefault(field, f"{key} is not in {self.level}: {str(default).lower()}")
        return default

    def text(self, key: str, field: str, default: str) -> str:
        """A string."""
        value = self.config.get(key)
        if isinstance(value, str):
            self.provenance[field] = f"{self.level}: {key}"
            return value
        if value is not None:
            self._wrong(key, value, "a string")
        self.provenance[field] = f"{key} is not in {self.level}: {default}"
        return default

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of integers >= 0, None when missing, null or empty."""
        value = self.config.get(key)
        if value is None or value == []:
            return None
        if isinstance(value, list) and all(type(item) is int and 0 <= item < _LARGEST for item in value):
            return tuple(value)
        self._wrong(key, value, "a list of layer ids")
        return None

    def level_below(self, key: str) -> "ConfigReader":
        """A reader of the object under `key` ({} when missing); it shares findings and provenance."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, Mapping):
            self._wrong(key, value, "an object")
        below = ConfigReader(value if isinstance(value, Mapping) else {}, self.where, f"{self.level}: {key}")
        below.findings, below.provenance = self.findings, self.provenance
        return below

    def _wrong(self, key: str, value: Any, wanted: str) -> None:
        self.findings.append(
            Diagnostic(
                code="config-value-invalid",
                severity="error",
                what=f"{key} is {str(value)[:60]!r}, not {wanted}",
                where=f"{self.where}: {self.level}",
                why="engines would crash on it or take a default in silence",
                do=f"set {key} to {wanted}",
            )
        )
