"""The command's first moments: before there is a terminal to talk to."""

import importlib.abc
import sys
from typing import Any

import pytest

from eyas.__main__ import run


class InterruptsImport(importlib.abc.MetaPathFinder):
    """Ctrl-C while `eyas.cli.app` is being read."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "eyas.cli.app":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_program_is_read_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delitem(sys.modules, "eyas.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [InterruptsImport(), *sys.meta_path])

    with pytest.raises(SystemExit) as ended:
        run()

    assert ended.value.code == 130
    assert capsys.readouterr().err == "eyas: interrupted\n"
