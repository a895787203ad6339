"""The Prometheus text format, read: sample lines into name, labels, value. Knows no engine's names."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import islice

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_END = 1e30  # no engine counts so far, and sums of what is below it stay finite
_LONGEST_LINE, _MOST_LINES = 16 << 10, 200_000  # characters; a hundred ranks have some 50 000 lines
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample line."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str) -> tuple[Sample, ...]:
    """All samples of a /metrics page, in order, without comments, NaN and malformed numbers.

    Source: Prometheus text exposition format 0.0.4 (what prometheus_client writes).
    """
    lines = (line for line in StringIO(text) if line[0] not in "#\r\n" and len(line) < _LONGEST_LINE)
    samples = (_sample(line) for line in islice(lines, _MOST_LINES))
    return tuple(sample for sample in samples if sample is not None)


def total(samples: Iterable[Sample], name: str) -> float | None:
    """Sum of a metric over its labels, with or without the `_total` that clients append; None if it is absent."""
    values = [s.value for s in samples if s.name in (name, f"{name}_total")]
    return math.fsum(values) if values else None


def by_label(samples: Iterable[Sample], name: str, label: str) -> dict[str, float]:
    """Value of a metric per value of one label (other labels summed); samples without the label count as ""."""
    out: dict[str, float] = {}
    for sample in samples:
        if sample.name in (name, f"{name}_total"):
            key = sample.labels.get(label, "")
            out[key] = out.get(key, 0.0) + sample.value
    return out


def _sample(line: str) -> Sample | None:
    match = _SAMPLE.match(line)
    if match is None:
        return None
    name, labels, value = match.groups()
    try:
        number = float(value)
    except ValueError:
        return None
    if not abs(number) < _END:
        return None
    return Sample(name=name, labels=dict(_labels(labels or "")), value=number)


def _labels(text: str) -> Iterator[tuple[str, str]]:
    """Name and value of each label, up to the first that is none: a search from every place would cost n²."""
    at = 0
    while (match := _LABEL.match(text, at)) is not None:
        at = match.end()
        key, raw = match.groups()
        yield key, re.sub(r"\\.", lambda m: _ESCAPES.get(m.group(), m.group()), raw)
