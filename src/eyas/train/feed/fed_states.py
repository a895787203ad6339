"""`FedStates`: the `StateSource` of a run whose states come from elsewhere, uploaded ahead of their use.

Shapes: P positions of a row, T of a micro-batch, A aux boundaries, S = A + 1 states per position, Ht target hidden.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eyas.models.states import RowLayout, States
from eyas.models.target import FrozenParts
from eyas.store.about import NUMPY_DTYPES, StateDtype
from eyas.talk import Talk, counted
from eyas.train.feed.read_ahead import FetchedRow, Fetcher, Figures, ReadAhead

# As torch holds the values that numpy holds as bits.
_DTYPES: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float8_e4m3": torch.float8_e4m3fn,
}
_BITS: Mapping[str, torch.dtype] = {
    "bfloat16": torch.int16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float8_e4m3": torch.uint8,
}


_UNBOUNDED = 1 << 62  # of a few rows that are needed now


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the states that are fetched are.

    Attributes:
        dtype: of their values.
        boundaries: ascending; the last state follows them.
        is_normed: whether the last state is after the final norm.
    """

    dtype: StateDtype
    boundaries: tuple[int, ...]
    is_normed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """States [P, S * Ht] and scales [P, S] on the device, there once `uploaded` has happened."""

    states: Tensor
    scales: Tensor | None
    uploaded: Any  # a CUDA event; None on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedReport:
    """What went through one process.

    Attributes:
        tokens: learned from.
        seconds: from the first row that was asked for to the end, replays and checkpoints included.
        waited_s: that the trainer stood still for want of states.
        fetched_tokens_per_s: of all fetchers together, while they were fetching.
        most_bytes: states in memory at most.
        failures: name of a fetcher -> how often it failed.
    """

    tokens: int
    seconds: float
    waited_s: float
    fetched_tokens_per_s: float
    most_bytes: int
    failures: Mapping[str, int]

    @property
    def tokens_per_s(self) -> float:
        """Over all of the time."""
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def trained_tokens_per_s(self) -> float:
        """Of the trainer alone: without the time that it stood still."""
        return self.tokens / max(self.seconds - self.waited_s, 1e-9)

    @property
    def share_of_slower(self) -> float:
        """`tokens_per_s` over the rate of the slower side alone."""
        return self.tokens_per_s / max(min(self.trained_tokens_per_s, self.fetched_tokens_per_s), 1e-9)

    def as_document(self) -> dict[str, Any]:
        """As a JSON object."""
        rates = {name: getattr(self, name) for name in ("tokens_per_s", "trained_tokens_per_s", "share_of_slower")}
        return {**asdict(self), **rates}

    def __str__(self) -> str:
        failed = [f"{name} failed {counted(num, 'time')}" for name, num in self.failures.items() if num]
        return "; ".join(
            [
                f"states: {self.tokens} tokens at {self.tokens_per_s:.0f} tokens/s; the source alone"
                f" {self.fetched_tokens_per_s:.0f}, the trainer alone {self.trained_tokens_per_s:.0f}:"
                f" {self.share_of_slower:.0%} of the slower",
                f"the trainer waited {self.waited_s / max(self.seconds, 1e-9):.1%} of the time",
                f"at most {self.most_bytes / 1e6:.0f} MB were held",
                *failed,
            ]
        )


class FedStates:
    """Gives states that others computed (`StateSource`).

    Outside of `ahead` each row is fetched when it is asked for; inside, rows come in the order that was announced.

    Args:
        fetchers: all of them give the rows of the run.
        kept: what they give.
        boundaries: those that the draft reads, in `fc` order; the others are not copied.
        teacher: norms last states that are not normed; gives width, dtype and device.
        length_of: positions of a row.
        most_bytes: of rows that are fetched or waiting, on the device.
        talk: told of servers that stop and come back.
    """

    pads = False

    def __init__(
        self,
        fetchers: Sequence[Fetcher],
        kept: Kept,
        boundaries: Sequence[int],
        teacher: FrozenParts,
        length_of: Callable[[int], int],
        most_bytes: int,
        talk: Talk,
    ) -> None:
        self._fetchers, self._kept, self._teacher, self._talk = fetchers, kept, teacher, talk
        self._boundaries, self._most_bytes = tuple(boundaries), most_bytes
        width = teacher.hidden_size
        places = [*(kept.boundaries.index(boundary) for boundary in boundaries), len(kept.boundaries)]
        self._places, self._columns = places, [slice(at * width, (at + 1) * width) for at in places]
        position = len(places) * (width * NUMPY_DTYPES[kept.dtype].itemsize + 4 * (kept.dtype == "float8_e4m3"))
        self._position_bytes = position
        self._bytes_of = lambda number: length_of(number) * position
        self._is_cuda = teacher.device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(teacher.device) if self._is_cuda else None  # type: ignore[no-untyped-call]
        self._ahead: ReadAhead | None = None
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def vocab_size(self) -> int:
        """The target's."""
        return self._teacher.vocab_size

    @property
    def device(self) -> torch.device:
        """The teacher's."""
        return self._teacher.device

    @contextmanager
    def ahead(self, order: Iterable[int], is_asked: Callable[[], bool]) -> Iterator[Figures]:
        """Inside, rows are asked for in `order` and fetched ahead of it; gives what went through.

        Args:
            is_asked: whether the run is asked to stop: a row that does not come is then not waited for.
        """
        with self._reader(order, self._most_bytes, is_asked) as reader:
            self._ahead = reader
            try:
                yield reader.figures
            finally:
                self._ahead = None

    def report(self, figures: Figures) -> FeedReport:
        """What went through so far, of `ahead`'s figures."""
        sides = [side for side in figures.fetchers.values() if side.busy_s]
        return FeedReport(
            tokens=figures.num_bytes // self._position_bytes,
            seconds=figures.seconds,
            waited_s=figures.waited_s,
            fetched_tokens_per_s=sum(side.num_bytes / self._position_bytes / side.busy_s for side in sides),
            most_bytes=figures.most_held,
            failures={name: side.num_failures for name, side in figures.fetchers.items()},
        )

    @torch.no_grad()
    def __call__(self, rows: RowLayout, boundaries: Sequence[int]) -> States:
        """See `StateSource`; a row may be cut, but begins where the fetched one does.

        Raises:
            FeedStopped: the run is asked to stop while a row has not come.
            What the fetchers raise.
        """
        assert tuple(boundaries) in ((), self._boundaries), f"these states are at {self._boundaries}"
        with self.waiting():
            fetched = self._take(rows.numbers)
        joined = self._joined(fetched, rows)
        num_aux, width = len(self._boundaries), self._teacher.hidden_size
        last = joined[:, num_aux:].flatten(1)
        if not self._kept.is_normed:
            last = self._teacher.final_norm(last)
        return States(aux=joined[:, : num_aux if boundaries else 0].reshape(len(joined), -1), last=last.view(-1, width))

    def _reader(self, order: Iterable[int], most_bytes: int, is_asked: Callable[[], bool]) -> ReadAhead:
        return ReadAhead(
            order, self._bytes_of, self._fetchers, self._uploaded,
            most_bytes=most_bytes, is_asked=is_asked, talk=self._talk,
        )  # fmt: skip

    def _take(self, numbers: Sequence[int]) -> list[_Row]:
        if self._ahead is not None:
            rows: list[_Row] = [self._ahead.take(number) for number in numbers]
        else:
            with self._reader(numbers, _UNBOUNDED, lambda: False) as reader:
                rows = [reader.take(number) for number in numbers]
        for row in rows:
            if row.uploaded is not None:
                stream = torch.cuda.current_stream(self.device)
                stream.wait_event(row.uploaded)
                for tensor in (row.states, row.scales):
                    if tensor is not None:
                        tensor.record_stream(stream)
        return rows

    def _joined(self, fetched: Sequence[_Row], rows: RowLayout) -> Tensor:
        """[T, S, Ht] in the teacher's dtype; zeros in the padding."""
        dtype, num_states = _DTYPES[self._kept.dtype], len(self._places)
        parts = list(zip(fetched, rows.lengths, strict=False))
        raw = [row.states[:length] for row, length in parts]
        padding = rows.length - sum(map(len, raw))
        zeros = raw[0].new_zeros(padding, num_states * self._teacher.hidden_size)
        joined: Tensor = torch.cat([*raw, zeros]).view(dtype).view(rows.length, num_states, -1)
        scales = [row.scales[:length] for row, length in parts if row.scales is not None]
        if scales:
            factors = torch.cat([*scales, scales[0].new_ones(padding, num_states)])
            joined = joined.float() * factors[..., None]
        return joined.to(self._teacher.dtype)

    def _uploaded(self, row: FetchedRow) -> _Row:
        """The columns that are needed, on their way to the device; in the thread of a fetcher."""
        num, width = len(row.states), self._teacher.hidden_size
        host = torch.empty(num, len(self._columns) * width, dtype=_BITS[self._kept.dtype], pin_memory=self._is_cuda)
        as_numpy = host.numpy().view(NUMPY_DTYPES[self._kept.dtype])
        for at, columns in enumerate(self._columns):
            np.copyto(as_numpy[:, at * width : (at + 1) * width], row.states[:, columns])
        scales = None if row.scales is None else torch.from_numpy(row.scales[:, self._places].astype(np.float32))
        if not self._is_cuda:
            return _Row(states=host, scales=scales, uploaded=None)
        with torch.cuda.stream(self._stream):
            states = host.to(self.device, non_blocking=True)
            scales = None if scales is None else scales.pin_memory().to(self.device, non_blocking=True)
            uploaded: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            uploaded.record(self._stream)
        return _Row(states=states, scales=scales, uploaded=uploaded)
