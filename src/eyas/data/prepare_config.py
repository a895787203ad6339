"""The options that decide how conversations become rows."""

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from eyas.errors import EyasError

# Sections of `eyas prepare --help`, in this order, after what must be given.
DATA = Group("Data and rows", sort_key=1)
WRITING = Group("What the target writes", sort_key=2)
MACHINE = Group("Machine", sort_key=3)
OUTPUT = Group("Output", sort_key=4)


class ConfigInvalid(EyasError):
    """Options that contradict each other or the laws of arithmetic; all problems at once."""

    code = "config-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig:
    """How conversations become rows."""

    max_length: Annotated[int, Parameter(group=DATA)] = 2048
    """Longest row in tokens, 16 or more."""
    too_long: Annotated[Literal["drop", "cut"], Parameter(group=DATA)] = "drop"
    """What happens to a longer row: dropped and counted, or cut at max_length and counted."""
    turns: Annotated[Literal["joint", "split"], Parameter(group=DATA)] = "joint"
    """One row per conversation with all answers supervised, or one row per answer (for templates that rewrite
    earlier turns)."""
    template_options: Annotated[str, Parameter(group=DATA)] = "{}"
    """JSON object of further variables for the chat template, such as '{"enable_thinking": false}'."""
    held_out: Annotated[int, Parameter(group=DATA)] = 0
    """Number of rows set aside for evaluation; no row with one of their prompts is trained on."""

    def __post_init__(self) -> None:
        problems = []
        if self.max_length < 16:
            problems.append(f"max_length = {self.max_length}, wanted 16 or more")
        if self.held_out < 0:
            problems.append(f"held_out = {self.held_out}, wanted 0 or more")
        try:
            is_object = isinstance(json.loads(self.template_options), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            problems.append(f"template_options = {self.template_options[:60]!r} is not a JSON object")
        if problems:
            raise ConfigInvalid(
                "options of prepare are out of range", "PrepareConfig", "; ".join(problems), "see `eyas prepare --help`"
            )
