"""A source of states that a tiny target computes in this process, and that fails as a server does."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eyas.extract.source import AskedRow, ExtractedRow, SourceFailed
from eyas.models.target import Target
from state_store import CPU, states_of, stored


class FakeSource:
    """`ExtractSource` over a target's folder.

    Args:
        fails_after: calls of `states` raise after as many rows, one entry a call; then none do.
        dead: while it is set, nothing answers.
        served: row keys (token ids) that were handed out, in order.
    """

    name, is_reference = "fake==1", False

    def __init__(
        self,
        target: Path,
        boundaries: Sequence[int],
        *,
        dtype: Any = "float32",
        last: Any = "post-norm",
        fails_after: Sequence[int] = (),
        dead: threading.Event | None = None,
    ) -> None:
        self._target, self._boundaries = Target.load(target, CPU), tuple(sorted(boundaries))
        self.dtype, self.last = dtype, last
        self._fails_after, self._dead = list(fails_after), dead or threading.Event()
        self._lock, self.served = threading.Lock(), list[tuple[int, ...]]()

    def probe(self) -> tuple[str, ...]:
        """It can, while it is not dead."""
        self._require_alive()
        return ("computed in this process",)

    def states(self, rows: Sequence[AskedRow]) -> Iterator[ExtractedRow]:
        """The last row first: any order is allowed."""
        self._require_alive()
        left = self._fails_after.pop(0) if self._fails_after else len(rows)
        for number in reversed(range(len(rows))):
            if left == 0:
                raise SourceFailed("it went away", "fake", "a test took it away", "wait")
            left -= 1
            self._require_alive()
            with self._lock:
                ids, is_normed = rows[number].token_ids, self.last == "post-norm"
                states = states_of(self._target, ids, self._boundaries, is_normed=is_normed)
                self.served.append(ids)
            yield ExtractedRow(number=number, **stored(states, self.dtype))

    def greedy(self, rows: Sequence[AskedRow]) -> Sequence[int]:
        """Its own next tokens."""
        found = []
        for row in rows:
            states = states_of(self._target, row.token_ids, ())
            found.append(int(self._target.logits(states[-1, 0]).argmax()))
        return found

    def close(self) -> None:
        """Nothing is held."""

    def _require_alive(self) -> None:
        if self._dead.is_set():
            raise SourceFailed("nothing answers", "fake", "it is dead", "start it")
