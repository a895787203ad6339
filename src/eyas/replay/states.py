"""Sources of states around another source: what is asked for again is kept, and some of its rows."""

from collections.abc import Sequence

import torch

from eyas.models.states import RowLayout, RowsOnEnd, States, StateSource

_KEPT_BYTES = 4 << 30


class KeptStates:
    """States that are computed once per batch of rows and kept, as long as all of them take at most `most_bytes`.

    Args:
        states: computes them.
        most_bytes: on their device; states beyond it are computed each time.
    """

    def __init__(self, states: StateSource, most_bytes: int = _KEPT_BYTES) -> None:
        self._states, self._free = states, most_bytes
        self._kept: dict[tuple[tuple[int, ...], ...], States] = {}

    @property
    def vocab_size(self) -> int:
        """See `StateSource`."""
        return self._states.vocab_size

    @property
    def device(self) -> torch.device:
        """See `StateSource`."""
        return self._states.device

    @property
    def pads(self) -> bool:
        """See `StateSource`."""
        return self._states.pads

    def __call__(self, rows: RowLayout, boundaries: Sequence[int]) -> States:
        """See `StateSource`; the same rows at the same lengths always come with the same tokens."""
        key = (rows.numbers, rows.lengths, tuple(boundaries))
        found = self._kept.get(key)
        if found is None:
            found = self._states(rows, boundaries)
            size = found.aux.nbytes + found.last.nbytes
            if size <= self._free:
                self._free -= size
                self._kept[key] = found
        return found


class SomeRows:
    """The states of some of a source's rows, numbered from 0."""

    def __init__(self, states: StateSource, numbers: Sequence[int]) -> None:
        self._states, self._numbers = states, numbers

    @property
    def vocab_size(self) -> int:
        """See `StateSource`."""
        return self._states.vocab_size

    @property
    def device(self) -> torch.device:
        """See `StateSource`."""
        return self._states.device

    @property
    def pads(self) -> bool:
        """See `StateSource`."""
        return self._states.pads

    def __call__(self, rows: RowLayout, boundaries: Sequence[int]) -> States:
        """See `StateSource`."""
        numbers = tuple(self._numbers[number] for number in rows.numbers)
        return self._states(
            RowsOnEnd(
                ids=rows.ids, positions=rows.positions, starts=rows.starts, lengths=rows.lengths, numbers=numbers
            ),
            boundaries,
        )
