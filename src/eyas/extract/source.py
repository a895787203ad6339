"""`ExtractSource`: what computes a target's states over rows of tokens. Imports neither torch nor numpy.

Shapes: n tokens of a row, P positions with states, A boundaries, Ht hidden size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from eyas.contract.spec.target_spec import TargetSpec
from eyas.errors import EyasError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eyas.store.about import StateDtype


class SourceUnsupported(EyasError):
    """The source cannot give the states asked for: its version, its target or its launch does not allow it."""

    code = "source-unsupported"


class SourceFailed(EyasError):
    """The source stopped giving states."""

    code = "source-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of a source.

    Attributes:
        folder: of the target.
        target: what its config says.
        boundaries: numbers of decoder layers applied, ascending.
        dtype: that the store will hold, None for what the source computes in. A source gives the one or the other.
    """

    folder: Path
    target: TargetSpec
    boundaries: tuple[int, ...]
    dtype: "StateDtype | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRow:
    """A row whose states are wanted.

    Attributes:
        token_ids: n of them.
        first: states of the positions before it are not wanted.
    """

    token_ids: tuple[int, ...]
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtractedRow:
    """The states of an asked row.

    Attributes:
        number: of the row among those asked.
        states: [P, (A + 1) * Ht], boundaries ascending, then the last state; as `StoreAbout.numpy_dtype`.
        first: position of the row that states[0] belongs to; 0 or that of the asked row.
        scales: float32 [P, A + 1] where the states are fp8.
    """

    number: int
    states: "NDArray[Any]"
    first: int = 0
    scales: "NDArray[Any] | None" = None


class ExtractSource(Protocol):
    """Computes states.

    Attributes:
        name: what and which version, "vllm==0.25.1"; the store records it.
        last: whether the last states that it gives are after the final norm or before it.
        dtype: of the states that it gives.
        is_reference: it is transformers itself, which other sources are compared with.
    """

    @property
    def name(self) -> str: ...
    @property
    def last(self) -> Literal["post-norm", "pre-norm"]: ...
    @property
    def dtype(self) -> "StateDtype": ...
    @property
    def is_reference(self) -> bool: ...

    def probe(self) -> tuple[str, ...]:
        """Whether it can, asked before anything is computed.

        Returns:
            What a person should know of how it will be done, a sentence each.

        Raises:
            SourceUnsupported: it cannot; names the version and what would do it.
        """

    def states(self, rows: Sequence[AskedRow]) -> Iterator[ExtractedRow]:
        """Each row once, in any order, as soon as it is there.

        Raises:
            SourceFailed: the source stopped; rows that came before are good.
        """

    def greedy(self, rows: Sequence[AskedRow]) -> Sequence[int] | None:
        """The token that the source itself writes after each row at temperature 0; None where it cannot be asked."""

    def close(self) -> None:
        """Give back what it holds."""
