"""The launch flags, environment and hints that a draft needs on an engine: text for a person, arguments for `serve`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to pass to the engine's own command line.

    Attributes:
        flags: arguments of `python -m sglang.launch_server` / `vllm serve`, model and draft path left out.
        environment: variables that must be set.
        notes: hints in words (attention backend, K mapping, lengths).
    """

    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_document(self) -> dict[str, Any]:
        """The launch as a JSON object."""
        return asdict(self)
