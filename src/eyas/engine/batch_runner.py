"""Blocks of decoding steps over the first rows of a batch: eager, or captured and read a block late.

On a GPU a step of a small target is a few hundred kernels of some microseconds each, so that launching them one by one
takes longer than running them. Here a step is one CUDA graph per number of rows; tokens stay on the device, and the
host copies a block of them out while the next block runs.

Shapes: B rows of the batch, T steps of a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.engine.batch_model import BatchLlama
from eyas.engine.batch_state import BatchState, NewRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How far the device runs ahead of the host.

    Attributes:
        steps: T, steps of a block; a sequence that hits a stop id runs on to the end of what is launched.
        lookahead: blocks in flight before the oldest is read.
        captures: steps are CUDA graphs.
        sizes: numbers of rows that a step may have, ascending; None = any.
    """

    steps: int = 1
    lookahead: int = 0
    captures: bool = False
    sizes: tuple[int, ...] | None = None

    def rows(self, needed: int) -> int:
        """The number of rows that a step gets."""
        return needed if self.sizes is None else next(size for size in self.sizes if size >= needed)


def captured_pace(num_slots: int, steps: int = 4) -> Pace:
    """For a GPU: few different numbers of rows, since each is a graph of its own."""
    sizes = {num_slots}
    size = num_slots
    while size > 8:
        size = -(-size // 16) * 8
        sizes.add(size)
    return Pace(steps=steps, lookahead=1, captures=True, sizes=tuple(sorted(sizes)))


@dataclass(frozen=True, slots=True)
class Block:
    """A launched block; `tokens` waits for it."""

    records: Tensor
    arrived: torch.cuda.Event | None

    def tokens(self) -> list[list[int]]:
        """Per row the tokens that it had before the block and after each step, T + 1 in all."""
        if self.arrived is not None:
            self.arrived.synchronize()
        columns: list[list[int]] = self.records.t().tolist()
        return columns


class BatchRunner:
    """A model with the state of its rows.

    Args:
        model: with its cache.
        pace: eager by default.
    """

    def __init__(self, model: BatchLlama, pace: Pace | None = None) -> None:
        self.model, self.pace = model, pace or Pace()
        self.state = BatchState(model.num_slots, self.pace.steps, model.capacity, model.device)
        self._graphs: dict[tuple[int, bool], Callable[[], None]] = {}
        self._pool: object | None = None

    @torch.inference_mode()
    def join(self, rows: Sequence[NewRow], prompts: Sequence[Sequence[int]]) -> None:
        """Read prompts and choose the first token of each."""
        state = self.state
        slots = [new.row for new in rows]
        logits = self.model.prefill(prompts, slots)
        state.join(rows)
        where = state.where(slots)
        if all(new.sampling.is_greedy for new in rows):
            chosen = logits.argmax(-1)
        else:
            uniform = state.uniform(self.model.num_slots)[where]
            chosen = self.model.ops.draw(logits.contiguous(), state.settings_at(slots), uniform)
        state.tokens[where] = chosen
        state.written[where] = torch.ones_like(where)

    def launch(self, num_rows: int, steps: int) -> Block:
        """Run steps of the first rows.

        Args:
            num_rows: all rows in use are among them.
            steps: at most the pace's.
        """
        state, num = self.state, self.pace.rows(num_rows)
        state.tick.zero_()
        state.records[0].copy_(state.tokens)
        step = self._step_of(num)
        for _ in range(steps):
            step()
        part = state.records[: steps + 1]  # whole rows: a copy of one piece does not stop the host
        if state.device.type != "cuda":
            return Block(part.clone(), None)
        host = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
        host.copy_(part, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return Block(host, arrived)

    @torch.inference_mode()
    def step(self, num: int, all_greedy: bool) -> None:
        """Read each row's newest token and choose the next one."""
        state = self.state
        logits = self.model.forward(state.tokens[:num, None], state.lengths[:num])
        if all_greedy:
            chosen = logits.argmax(-1)
        else:
            chosen = self.model.ops.draw(logits, state.settings(num), state.uniform(num))
        state.tokens[:num] = chosen
        state.tick += 1
        state.records[:, :num].index_copy_(0, state.tick, chosen[None])
        state.written += state.alive
        state.lengths += state.alive

    def _step_of(self, num: int) -> Callable[[], None]:
        all_greedy = self.state.all_greedy
        if not self.pace.captures:
            return lambda: self.step(num, all_greedy)
        key = (num, all_greedy)
        if key not in self._graphs:
            self._graphs[key] = self._captured(num, all_greedy)
        return self._graphs[key]

    def _captured(self, num: int, all_greedy: bool) -> Callable[[], None]:
        """A step as a CUDA graph. Run once before: kernels are compiled, and what it changed is put back."""
        state = self.state
        changed = (state.tokens, state.lengths, state.written, state.records, state.tick)
        saved = [tensor.clone() for tensor in changed]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.step(num, all_greedy)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):  # graphs that never run at once share their memory
            self.step(num, all_greedy)
        self._pool = self._pool or graph.pool()
        for tensor, before in zip(changed, saved, strict=True):
            tensor.copy_(before)
        return graph.replay

    def move(self, sources: Sequence[int], to: Sequence[int], length: int) -> None:
        """Sequences of at most `length` positions change rows."""
        self.model.move(sources, to, min(length, self.model.capacity))
        self.state.move(sources, to)
