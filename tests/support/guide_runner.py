"""The commands of the guides, run as they stand there: is what they print what the page shows?

A block after `<!-- run -->` is a shell session: `$ ` begins a command, the other lines are its output. `...` stands for
lines left out. After `<!-- run: numbers vary -->` every number may differ, since it is of the machine or the moment;
durations and rates may differ in every block. Progress lines are left out. The commands of one guide share a folder and
run in the guide's order.

    python tests/support/guide_runner.py      (write what the commands print now into the guides)
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guides"
_BLOCK = re.compile(r"(<!-- run(?P<how>[^>]*) -->\n```\w*\n)(?P<text>.*?)(```)", re.S)
_TIMED = re.compile(r"\b\d+(?:[.,]\d+)*(?: … \d+)? ?(?:s|ms|min|h|tok/s|tokens/s)\b")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# What is printed while something takes its time: how much of it depends on the machine.
_PROGRESS = re.compile(r"^(loading torch and transformers|\w[\w ]*: [\d.]+(/[\d.]+)? \w+, \d+ s\b.*)\n", re.M)
# `eyas serve` prints the variables that decide a run: it sees these and no others.
_SERVE_SEES = ("PATH", "HOME", "XDG_CACHE_HOME", "LANG", "TMPDIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command and what the page shows of its output."""

    command: str
    shown: str
    numbers_vary: bool


def steps_of(page: str) -> list[Step]:
    """The commands of a guide, in order."""
    found = []
    for block in _BLOCK.finditer(page):
        for session in re.split(r"^\$ ", block["text"], flags=re.M)[1:]:
            command, _, shown = session.partition("\n")
            while command.endswith("\\"):
                more, _, shown = shown.partition("\n")
                command = command[:-1] + more.strip()
            found.append(Step(command=command, shown=shown, numbers_vary="numbers vary" in block["how"]))
    return found


def same(shown: str, printed: str, *, numbers_vary: bool) -> bool:
    """Whether a page shows what was printed, `...` standing for any lines."""
    parts = [re.escape(part) for part in re.split(r"^\.\.\.$\n?", _plain(shown, numbers_vary), flags=re.M)]
    return re.fullmatch(r"(?:.*\n)*?".join(parts), _plain(printed, numbers_vary)) is not None


def _plain(text: str, numbers_vary: bool) -> str:
    text = "".join(line.rstrip() + "\n" for line in text.strip("\n").splitlines())
    text = _TIMED.sub("TIME", text)
    return re.sub(r" {2,}", "  ", _NUMBER.sub("N", text)) if numbers_vary else text


class Shell:
    """Runs `eyas ...`, `... > FILE` and `echo $?` in one folder, each command in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._code = 0

    def run(self, command: str) -> str:
        """What a terminal would show: both streams in the order in which they were written."""
        words = shlex.split(command, comments=True)
        if words == ["echo", "$?"]:
            return f"{self._code}\n"
        out_file = words[words.index(">") + 1] if ">" in words else None
        words = words[: words.index(">")] if out_file else words
        assert words[0] == "eyas", command
        from eyas.cli.app import main

        told, written = io.StringIO(), io.StringIO()
        with (
            _in_folder(self._folder, _SERVE_SEES if words[1] == "serve" else tuple(os.environ)),
            contextlib.redirect_stderr(told),
            contextlib.redirect_stdout(written if out_file else told),
        ):
            self._code = main(words[1:])
        if out_file:
            (self._folder / out_file).write_text(written.getvalue())
        return _PROGRESS.sub("", told.getvalue()).replace(str(self._folder) + "/", "").replace(str(ROOT) + "/", "")


@contextlib.contextmanager
def _in_folder(folder: Path, visible: tuple[str, ...]) -> Iterator[None]:
    before, environment = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    for name in environment.keys() - set(visible):
        del os.environ[name]
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.update(environment)


def rewritten(page: str, run: Callable[[str], str]) -> str:
    """The guide with what its commands print now; where lines were left out, as many stay before and after them."""

    def block(match: re.Match[str]) -> str:
        text = ""
        for session in re.split(r"^(?=\$ )", match["text"], flags=re.M):
            for step in steps_of(f"{match[1]}{session}```"):
                typed = session[: len(session) - len(step.shown)]
                text += typed + _cut(run(step.command), step.shown)
        return match[1] + text + match[4]

    return _BLOCK.sub(block, page)


def _cut(printed: str, shown: str) -> str:
    now, before = [line.rstrip() for line in printed.strip("\n").splitlines()], shown.splitlines()
    if "..." in before:
        last = len(before) - 1 - before[::-1].index("...")
        head, tail = before.index("..."), len(before) - 1 - last
        if head + tail < len(now):
            now = [*now[:head], "...", *now[len(now) - tail :]]
    return "".join(f"{line}\n" for line in now)


def write() -> None:
    """Bring every guide up to date."""
    from guide_folders import FOLDERS

    for path in sorted(GUIDES.glob("*.md")):
        folder = Path(tempfile.mkdtemp(prefix="guide-")).resolve()
        try:
            FOLDERS[path.stem](folder)
            path.write_text(rewritten(path.read_text(), Shell(folder).run))
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    write()
