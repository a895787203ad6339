"""Options of `eyas tune`. No torch here: the command line is built from this."""

from dataclasses import dataclass
from typing import Literal

from eyas.errors import EyasError

_MOST = 7  # the deepest draft of captured rounds


class TuneConfigInvalid(EyasError):
    """Options of `eyas tune` are out of range."""

    code = "tune-config-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig:
    """What is tried, and how it is measured."""

    most: int = _MOST
    """The deepest draft to consider (1 - 7); every K up to it is predicted."""

    concurrency: str = "1"
    """Sequences at a time to tune for: a number or a list such as 1,8,32. Above 1 only for targets of the fast path."""

    confirm: int = 3
    """How many of the best settings are measured (1 - 7), for each concurrency."""

    repeats: int = 3
    """How often every arm answers the whole workload when a setting is measured (1 - 1000)."""

    max_new_tokens: int = 64
    """Longest answer in tokens, at least 2."""

    max_rows: int | None = None
    """Use only the first N rows of all files together."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of target and draft."""

    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the first GPU, else the CPU."""

    threads: int | None = None
    """CPU threads; default: torch's choice."""

    def __post_init__(self) -> None:
        ranges = (
            ("--most", self.most, f"1 - {_MOST}", 1 <= self.most <= _MOST),
            ("--concurrency", self.concurrency, "numbers 1 - 4096, separated by commas", bool(self.levels)),
            ("--confirm", self.confirm, f"1 - {_MOST}", 1 <= self.confirm <= _MOST),
            ("--repeats", self.repeats, "1 - 1000", 1 <= self.repeats <= 1000),
            ("--max-new-tokens", self.max_new_tokens, "2 or more", self.max_new_tokens >= 2),
            ("--max-rows", self.max_rows, "1 or more", self.max_rows is None or self.max_rows >= 1),
            ("--threads", self.threads, "1 - 1024", self.threads is None or 1 <= self.threads <= 1024),
        )
        wrong = [f"{name} is {value}, wanted {wanted}" for name, value, wanted, is_right in ranges if not is_right]
        if wrong:
            raise TuneConfigInvalid("; ".join(wrong), "eyas tune", "outside the range", "see `eyas tune --help`")

    @property
    def levels(self) -> tuple[int, ...]:
        """All concurrencies, ascending; empty if the text names none."""
        parts = [part.strip() for part in self.concurrency.split(",")]
        if not all(part.isascii() and part.isdecimal() and len(part) < 5 and 1 <= int(part) <= 4096 for part in parts):
            return ()
        return tuple(sorted({int(part) for part in parts}))
