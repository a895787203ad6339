"""Device state of each row of a batch: newest token, length, sampling settings. Row = cache slot.

The host changes rows between blocks of steps, and never waits for the device to do so.

Shapes: S rows, U numbers of a text, T steps of a block, M tokens of a step: 1, or K + 1 with K drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eyas.decode.sampling import Sampling, SamplingBatch
from eyas.engine.batches.batch_llama import upload


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRow:
    """A sequence that joins.

    Attributes:
        row: a free one.
        length: of its prompt.
        sampling: its settings.
        num_drawn: tokens that it may write, at least 1.
        numbers: [num_drawn] fp64, one per token that is drawn; None: by the seed.
    """

    row: int
    length: int
    sampling: Sampling
    num_drawn: int
    numbers: Tensor | None = None


class BatchState:
    """Tensors of fixed address, so that captured steps can read and write them.

    One row more than there are slots, the last, is there for what only pads a pass.

    Args:
        num_slots: S - 1.
        steps: T, most steps of a block.
        num_drawn: U, most tokens of a text.
        device: of all.
        width: M.
    """

    def __init__(self, num_slots: int, steps: int, num_drawn: int, device: torch.device, width: int = 1) -> None:
        num_rows = num_slots + 1

        def column(dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(num_rows, dtype=dtype, device=device)

        self.device = device
        self.tokens, self.lengths, self.written, self.alive = column(), column(), column(), column()
        self.temperature, self.top_p, self.min_p = (column(torch.float32) for _ in range(3))
        self.top_k = column()
        # Drawn when a sequence joins: its text depends on its own numbers, and no step has to draw any.
        self.uniforms = torch.zeros(num_rows, num_drawn, dtype=torch.float64, device=device)
        # Per step: how many tokens a row gained, and M tokens that it chose. Step 0 has the token before the block.
        self.records = torch.ones(steps + 1, num_rows, 1 + width, dtype=torch.int64, device=device)
        self.tick = torch.zeros(1, dtype=torch.int64, device=device)
        self._sampling: dict[int, Sampling] = {}  # of the rows in use, for what is known without asking the device

    @property
    def all_greedy(self) -> bool:
        """No row in use draws."""
        return all(sampling.is_greedy for sampling in self._sampling.values())

    def settings(self, num: int, width: int = 1) -> SamplingBatch:
        """Settings of M tokens of each of the first rows."""
        used = [s for row, s in self._sampling.items() if row < num]
        return self._settings(slice(num), num * width, used, width)

    def settings_at(self, rows: Tensor, used: Sequence[Sampling]) -> SamplingBatch:
        """Of any rows [R]; `used`: what those of them have that are in use."""
        return self._settings(rows, len(rows), used, 1)

    def _settings(self, where: slice | Tensor, num: int, used: Sequence[Sampling], width: int) -> SamplingBatch:
        def column(tensor: Tensor) -> Tensor:
            return tensor[where].repeat_interleave(width)  # of one row, too: kernels read it as memory has it

        return SamplingBatch(
            temperature=column(self.temperature),
            top_k=column(self.top_k),
            top_p=column(self.top_p),
            min_p=column(self.min_p),
            num_greedy=num - width * sum(not s.is_greedy for s in used),
            has_top=any(s.top_k > 0 or s.top_p < 1 for s in used),
            has_min_p=any(s.min_p > 0 for s in used),
        )

    @torch.inference_mode()
    def join(self, rows: Sequence[NewRow]) -> None:
        """Take sequences in; their first tokens, counted already, are still to be chosen."""
        where = self.where([new.row for new in rows])
        for new in rows:
            self._sampling[new.row] = new.sampling
        fill = torch.ones_like(where)
        self.lengths[where] = upload([new.length for new in rows], self.device)
        self.written[where] = self.alive[where] = fill
        for name in ("temperature", "top_p", "min_p", "top_k"):
            column: Tensor = getattr(self, name)
            column[where] = upload([getattr(new.sampling, name) for new in rows], self.device, column.dtype)
        drawing = [new for new in rows if not new.sampling.is_greedy]
        if drawing:
            longest = max(new.num_drawn for new in drawing)
            numbers = torch.stack([_numbers(new, longest) for new in drawing])
            if self.device.type == "cuda":
                numbers = numbers.pin_memory().to(self.device, non_blocking=True)
            self.uniforms[self.where([new.row for new in drawing]), : numbers.shape[1]] = numbers

    @torch.inference_mode()
    def leave(self, rows: Sequence[int]) -> None:
        """Rows whose sequence has ended: until they are taken again they read position 0 only."""
        where = self.where(rows)
        for row in rows:
            del self._sampling[row]
        for column in (self.lengths, self.alive, self.temperature):
            column[where] = torch.zeros_like(where).to(column.dtype)

    @torch.inference_mode()
    def move(self, sources: Sequence[int], to: Sequence[int]) -> None:
        """Sequences change rows."""
        source_rows, to_rows = self.where(sources), self.where(to)
        for tensor in self._by_row:
            tensor[to_rows] = tensor[source_rows]
        for source, goal in zip(sources, to, strict=True):
            self._sampling[goal] = self._sampling[source]
        self.leave(sources)

    def where(self, rows: Sequence[int]) -> Tensor:
        """Row numbers on the device."""
        return upload(rows, self.device)

    @cached_property
    def _by_row(self) -> tuple[Tensor, ...]:
        columns = (self.tokens, self.lengths, self.written, self.alive)
        return (*columns, self.temperature, self.top_p, self.min_p, self.top_k, self.uniforms)

    def uniforms_of(self, num: int, width: int = 1) -> Tensor:
        """[num, M] numbers of the next tokens of each of the first rows."""
        at = self.written[:num, None] + torch.arange(width, device=self.device)
        return self.uniforms[:num].gather(1, at.clamp(max=self.uniforms.shape[1] - 1))

    def advance(self, num: int, tokens: Tensor, gained: Tensor, record: Tensor) -> None:
        """End a step of the first rows.

        Args:
            num: of rows.
            tokens: [num] their newest.
            gained: [num] how many tokens each gained.
            record: [num, 1 + M].
        """
        self.tokens[:num] = tokens
        moved = gained * self.alive[:num]
        self.written[:num] += moved
        self.lengths[:num] += moved
        self.tick += 1
        self.records[:, :num].index_copy_(0, self.tick, record[None])


def _numbers(new: NewRow, num: int) -> Tensor:
    """[num] of a text's own numbers, or those that the single-stream engine draws for its seed."""
    if new.numbers is not None:
        return torch.nn.functional.pad(new.numbers, (0, num - len(new.numbers)))
    generator = torch.Generator().manual_seed(new.sampling.seed)
    return torch.rand(num, generator=generator, dtype=torch.float64)
