"""What a log file gets in place of a bar."""

import pytest

from eyas.cli import terminal
from eyas.cli.terminal import Terminal


class Clock:
    """Stands for time.monotonic."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("before", [0, 500])
def test_the_eta_counts_only_what_this_process_has_done(before, monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(terminal, "time", clock)
    with Terminal().progress("train", 1000, "tokens") as bar:
        bar.advance(before)  # by the run that was killed
        clock.now += 20.0
        bar.say("loss 1.0")
        bar.advance(100)
    left = (1000 - before - 100) / 100 * 20
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"train: {before + 100}/1000 tokens, 20 s, eta {left:.0f} s  loss 1.0"
    assert last == f"train: {before + 100}/1000 tokens, 20 s, stopped  loss 1.0", "900 are not done"
