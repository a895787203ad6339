"""A target's states as everything after the target reads them, wherever they come from.

Boundary n is the state after n decoder layers: 0 the embedding, N the state *before* the final norm.
Rows lie end to end, as one sequence, and positions of padding follow them, so that no kind of source has to pad.
Shapes: R rows, T positions (padding at the end included), A aux boundaries, Ht target hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The states of one pass over some positions.

    Attributes:
        aux: [..., A * Ht], boundaries in the order asked for.
        last: [..., Ht] after the final norm, what the head reads.
    """

    aux: Tensor
    last: Tensor


class RowLayout(Protocol):
    """Rows end to end."""

    @property
    def ids(self) -> Tensor:
        """[T or more] token ids; those after the first T are not of this layout."""

    @property
    def positions(self) -> Tensor:
        """[T] int32, from 0 in each row and in the padding."""

    @property
    def starts(self) -> Tensor:
        """[R + 2 or more] int32, where rows begin and the last ends; the padding at the end is a row of its own."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the R rows and the padding, on the host."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the R rows in the data that they are from."""

    @property
    def length(self) -> int:
        """T."""

    @property
    def longest(self) -> int:
        """Positions of the longest row."""

    @property
    def num_tokens(self) -> int:
        """Of the rows, without padding."""


class StateSource(Protocol):
    """Gives the states over rows: the target itself, or what kept them."""

    @property
    def vocab_size(self) -> int:
        """V: ids are below it."""

    @property
    def device(self) -> torch.device:
        """Where the states are; the draft must be there too."""

    @property
    def pads(self) -> bool:
        """Whether the source computes rows side by side, padded to the longest."""

    def __call__(self, rows: RowLayout, boundaries: Sequence[int]) -> States:
        """States [T, ...] without gradients; the padding's have no meaning, but they are finite.

        Args:
            rows: what is read. A source that only kept states knows rows by their numbers.
            boundaries: in `fc` order.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOnEnd:
    """A `RowLayout` of rows that are only read; see `lay_out`."""

    ids: Tensor
    positions: Tensor
    starts: Tensor
    lengths: tuple[int, ...]
    numbers: tuple[int, ...]

    @property
    def length(self) -> int:
        """T."""
        return len(self.positions)

    @property
    def longest(self) -> int:
        """Positions of the longest row."""
        return max(self.lengths)

    @property
    def num_tokens(self) -> int:
        """Of the rows, without padding."""
        return sum(self.lengths[:-1])


def lay_out(texts: Sequence[Sequence[int]], numbers: Sequence[int], device: torch.device) -> RowsOnEnd:
    """Token ids of rows, end to end, with one position of padding."""
    lengths = (*map(len, texts), 1)
    begins = torch.tensor([0, *lengths]).cumsum(0)
    positions = torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
    return RowsOnEnd(
        ids=torch.tensor([token for text in texts for token in text] + [0]).to(device),
        positions=positions.to(device),
        starts=begins.int().to(device),
        lengths=lengths,
        numbers=tuple(numbers),
    )


def states_of_row(source: StateSource, number: int, text: Sequence[int], boundaries: Sequence[int]) -> States:
    """States [n, ...] of one row of n tokens."""
    states = source(lay_out([text], [number], source.device), boundaries)
    return States(aux=states.aux[: len(text)], last=states.last[: len(text)])


def to_padded(rows: RowLayout, x: Tensor) -> Tensor:
    """[R, longest, ...] of [T, ...]: rows side by side, right-padded with what follows them; the padding at the end is
    left out."""
    lengths, device = rows.lengths[:-1], x.device
    begins = rows.starts[: len(lengths)].long()[:, None]
    index = torch.arange(max(lengths), device=device)[None, :]
    is_in = index < torch.tensor(lengths, device=device)[:, None]
    return x[torch.where(is_in, begins + index, rows.length - 1)]


def from_padded(rows: RowLayout, x: Tensor) -> Tensor:
    """[T, ...] of [R, longest, ...]; zeros in the padding at the end."""
    longest = x.shape[1]
    row = torch.repeat_interleave(
        torch.arange(len(rows.lengths), device=x.device),
        torch.tensor(rows.lengths, device=x.device),
        output_size=rows.length,
    )
    flat = (row * longest + rows.positions).clamp(max=x.shape[0] * longest - 1)
    picked = x.flatten(0, 1)[flat]
    is_padding = torch.arange(rows.length, device=x.device) >= rows.num_tokens
    return picked.masked_fill(is_padding.view(-1, *[1] * (picked.ndim - 1)), 0)
