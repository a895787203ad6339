"""Probes that show a whole log at once, as a file that is not written any more."""

from eyas.serve.facts.evidence import LogLine, Observation
from eyas.serve.log.log_lines import LineSplitter


class Once:
    """One log."""

    def __init__(self, data: bytes) -> None:
        splitter = LineSplitter()
        self.lines: tuple[LogLine, ...] = (*splitter.feed(data, 0.0), *splitter.flush(0.0))

    def observe(self, now: float) -> Observation:
        return Observation(at=now, lines=self.lines, log_life="over")

    def learn(self, engine: str, version: str | None) -> None:
        return
