"""The Prometheus text format, read: sample lines into name, labels, value. Knows no engine's names."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_END = 1e30  # no engine counts so far, and sums of what is below it stay finite
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample line."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str) -> tuple[Sample, ...]:
    """All samples of a /metrics page, in order; what is none (comments, NaN, numbers without sense) is left out.

    Source: Prometheus text exposition format 0.0.4 (what prometheus_client writes).
    """
    samples = (_sample(line) for line in text.splitlines() if line and not line.startswith("#"))
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
    pairs = {
        key: re.sub(r"\\.", lambda m: _ESCAPES.get(m.group(), m.group()), raw)
        for key, raw in _LABEL.findall(labels or "")
    }
    return Sample(name=name, labels=pairs, value=number)
