"""Options of `eyas bench URL`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from eyas.errors import EyasError

_MOST_STREAMS = 1024
_MOST_POINTS = 64


class ServedBenchConfigInvalid(EyasError):
    """Options of `eyas bench URL` that are out of range or contradict each other."""

    code = "served-bench-config-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a sweep: requests at once, sampling temperature, most new tokens."""

    concurrency: int
    temperature: float
    max_new_tokens: int

    def __str__(self) -> str:
        sampled = "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}"
        return f"{self.concurrency} at a time, {sampled}, at most {self.max_new_tokens} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBenchConfig:
    """How to measure a server; only with a URL."""

    concurrency: str = "1"
    """Of a server: requests at once, a number or a list such as 1,8,64 (1 - 1024)."""

    temperature: str = "0"
    """Of a server: sampling temperature, a number or a list such as 0,0.8 (0 - 10; 0 = greedy)."""

    output_length: str = ""
    """Of a server: the longest answers in tokens, a list such as 64,512; default: --max-new-tokens."""

    random_tokens: Annotated[int | None, Parameter(name="--random-tokens")] = None
    """Of a server: prompts of N random token ids in place of --data, answered to the full length. Speed only: the
    accept length of nonsense means nothing."""

    max_seconds: float = 600.0
    """Of a server: an answer that has not ended after N seconds ends the run (1 - 86400)."""

    def __post_init__(self) -> None:
        num_random, points = self.random_tokens, len(self.concurrencies) * len(self.temperatures)
        wrong = [
            f"{name} is {value}, wanted {wanted}"
            for name, value, wanted, is_right in (
                ("--concurrency", self.concurrency, "numbers 1 - 1024 such as 1,8,64", bool(self.concurrencies)),
                ("--temperature", self.temperature, "numbers 0 - 10 such as 0,0.8", bool(self.temperatures)),
                ("--output-length", self.output_length, "numbers from 2 on such as 64,512", self.lengths(2) != ()),
                ("--random-tokens", num_random, "1 - 1000000", num_random is None or 1 <= num_random <= 1_000_000),
                ("--max-seconds", self.max_seconds, "1 - 86400", 1 <= self.max_seconds <= 86400),
                ("the sweep", points, f"at most {_MOST_POINTS} points", points * len(self.lengths(2)) <= _MOST_POINTS),
            )
            if not is_right
        ]
        if wrong:
            why = "outside the range"
            raise ServedBenchConfigInvalid("; ".join(wrong), "eyas bench URL", why, "see `eyas bench --help`")

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Ascending; empty if the text is not a list of them."""
        return _whole(self.concurrency, 1, _MOST_STREAMS)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Ascending; empty if the text is not a list of them."""
        found = [_number(part) for part in self.temperature.split(",")]
        right = [value for value in found if value is not None and 0 <= value <= 10]
        return tuple(sorted(set(right))) if len(right) == len(found) else ()

    def lengths(self, default: int) -> tuple[int, ...]:
        """Ascending; empty if the text is not a list of them."""
        return _whole(self.output_length, 2, 1 << 20) if self.output_length else (default,)

    def points(self, max_new_tokens: int) -> Sequence[Point]:
        """The sweep."""
        every = product(self.lengths(max_new_tokens), self.temperatures, self.concurrencies)
        return [Point(concurrency=c, temperature=t, max_new_tokens=n) for n, t, c in every]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """How the servers are started."""

    python: str | None = None
    """With another --engine: interpreter of the engine's environment; default is the one that runs eyas."""

    pythonpath: str | None = None
    """With another --engine: folder(s) to put before PYTHONPATH."""

    tensor_parallel: Annotated[int, Parameter(name=["--tensor-parallel", "--tp"])] = 1
    """With another --engine: GPUs that one copy of the target is spread over."""

    port: int | None = None
    """With another --engine: HTTP port; default is the engine's."""

    engine_flags: Annotated[str, Parameter(allow_leading_hyphen=True)] = ""
    """With another --engine: its further flags in one text, such as "--mem-fraction-static 0.8"; both servers get
    them, those of speculation only the one with the draft."""

    runs: Path = Path("runs")
    """With another --engine: folder that gets one folder per launch, as of `eyas serve`."""


def _whole(text: str, least: int, most: int) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 9 for part in parts):
        return ()
    found = sorted({int(part) for part in parts})
    return tuple(found) if least <= found[0] and found[-1] <= most else ()


def _number(text: str) -> float | None:
    try:
        return float(text) if text.isascii() else None
    except ValueError:
        return None
