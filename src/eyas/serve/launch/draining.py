"""The process that moves a capturing server's rows into its store, kept alive beside the engine."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eyas.talk import printable

_PAUSE_S = 5.0
_LAST_ROWS_S = 60.0


@contextmanager
def draining(spool: str | None, store: Path | None, target: Path | None, say: Callable[[str], None]) -> Iterator[None]:
    """Rows go into `store` meanwhile; at the end those that are complete still do.

    Args:
        spool: None = nothing is captured.
        say: told when the process ended in an error; it is started again, and rows wait until it is.
    """
    if spool is None or store is None or target is None:
        yield
        return
    words = [sys.executable, "-m", "eyas.extract.drain", spool, str(store.absolute()), str(target)]
    keeper = _Keeper(words, store, say)
    keeper.thread.start()
    try:
        yield
    finally:
        keeper.end()


class _Keeper:
    """Starts the process, and again when it ends in an error, until `end`."""

    def __init__(self, words: list[str], store: Path, say: Callable[[str], None]) -> None:
        self._words, self._store, self._say = words, store, say
        self._lock, self._is_over, self._process = threading.Lock(), threading.Event(), self._started()
        self.thread = threading.Thread(target=self._keep, daemon=True, name="eyas-drain")

    def end(self) -> None:
        """Let it move what is complete, and end."""
        self._is_over.set()
        with self._lock:
            process = self._process
        assert process.stdin is not None, "a pipe"
        process.stdin.close()
        try:
            process.wait(_LAST_ROWS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            text = f"the writer of {self._store} was not done in {_LAST_ROWS_S:.0f} s: the rows that it left are lost"
            self._say(text)
        self.thread.join(_PAUSE_S)

    def _started(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(self._words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _keep(self) -> None:
        while True:
            assert self._process.stderr is not None, "a pipe"
            told = self._process.stderr.read()
            code = self._process.wait()
            if self._is_over.is_set():
                return
            self._say(f"the writer of {self._store} ended ({code}); rows wait. {printable(told.strip())}")
            if self._is_over.wait(_PAUSE_S):
                return
            with self._lock:
                self._process = self._started()
