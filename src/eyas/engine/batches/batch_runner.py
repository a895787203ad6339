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

from eyas.engine.batches.batch_llama import BatchLlama
from eyas.engine.batches.batch_round import BatchSpeculation
from eyas.engine.batches.batch_state import BatchState, NewRow
from eyas.engine.batches.prefill import PiecewisePrefill
from eyas.engine.cuda_graphs import Graphs
from eyas.models.target import require_finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How far the device runs ahead of the host.

    Attributes:
        steps: T, steps of a block; a sequence that hits a stop id runs on to the end of what is launched.
        lookahead: blocks in flight before the oldest is read.
        captures: steps are CUDA graphs.
        sizes: numbers of rows that a step may have, ascending; None = any.
        piece_sizes: numbers of pieces that a pass over prompts may have, ascending (`PiecewisePrefill`); None = prompts
            are padded and read eagerly.
    """

    steps: int = 1
    lookahead: int = 0
    captures: bool = False
    sizes: tuple[int, ...] | None = None
    piece_sizes: tuple[int, ...] | None = None

    def rows(self, needed: int) -> int:
        """The number of rows that a step gets."""
        return needed if self.sizes is None else next(size for size in self.sizes if size >= needed)


def captured_pace(num_slots: int, steps: int = 4, piece_sizes: tuple[int, ...] | None = None) -> Pace:
    """For a GPU: few different numbers of rows, since each needs its own graph."""
    sizes = {num_slots}
    size = num_slots
    while size > 8:
        size = -(-size // 16) * 8
        sizes.add(size)
    return Pace(steps=steps, lookahead=1, captures=True, sizes=tuple(sorted(sizes)), piece_sizes=piece_sizes)


@dataclass(frozen=True, slots=True)
class Block:
    """A launched block; `steps` waits for it."""

    records: Tensor
    arrived: torch.cuda.Event | None

    def steps(self) -> list[list[list[int]]]:
        """Per row what it gained: first the token that it had before the block, then the tokens of each round.

        Plain decoding has no rounds: all its steps are taken together.
        """
        if self.arrived is not None:
            self.arrived.synchronize()
        if self.records.shape[2] == 2:  # one token a step: less to take apart
            columns: list[list[int]] = self.records[:, :, 1].t().tolist()
            return [[column[:1], column[1:]] for column in columns]
        rows: list[list[list[int]]] = self.records.transpose(0, 1).tolist()
        return [[ids[1 : 1 + ids[0]] for ids in steps] for steps in rows]


class BatchRunner:
    """A model with the state of its rows.

    Args:
        model: with its cache.
        pace: eager by default.
        speculation: a draft; None for plain decoding.
    """

    def __init__(
        self, model: BatchLlama, pace: Pace | None = None, speculation: BatchSpeculation | None = None
    ) -> None:
        self.model, self.pace, self.speculation = model, pace or Pace(), speculation
        self.most_per_step = 1 + (speculation.num_draft_tokens if speculation else 0)
        self.state = BatchState(
            model.num_slots, self.pace.steps, model.capacity, model.device, width=self.most_per_step
        )
        self._graphs = Graphs() if self.pace.captures else None
        self._ready: dict[tuple[int, bool], Callable[[], None]] = {}
        self.num_steps = 0  # launched so far: passes of the target over new tokens
        self._prefill: PiecewisePrefill | None = None
        if self.pace.piece_sizes is not None:
            self._prefill = PiecewisePrefill(model, self.state, speculation, self.pace.piece_sizes, self._graphs)

    @torch.inference_mode()
    def join(self, rows: Sequence[NewRow], prompts: Sequence[Sequence[int]]) -> None:
        """Read prompts and choose the first token of each.

        Raises:
            TargetNotFinite: the target's logits are not finite; not checked in captured passes.
        """
        state = self.state
        state.join(rows)
        if self._prefill is not None:
            self._prefill.read(rows, prompts)
            return
        slots = [new.row for new in rows]
        speculation = self.speculation
        logits, aux_states = self.model.prefill(prompts, slots, speculation.aux_boundaries if speculation else ())
        require_finite(logits, self.model.weights.name)
        where = state.where(slots)
        if all(new.sampling.is_greedy for new in rows):
            chosen = logits.argmax(-1)
        else:
            settings = state.settings_at(where, [new.sampling for new in rows])
            chosen = self.model.ops.draw(logits.contiguous(), settings, state.uniforms[where, 0])
        state.tokens[where] = chosen
        if speculation is not None:
            speculation.join(prompts, slots, aux_states, chosen)

    def launch(self, num_rows: int, steps: int) -> Block:
        """Run steps of the first rows.

        Args:
            num_rows: all rows in use are among them.
            steps: at most the pace's.
        """
        state, num = self.state, self.pace.rows(num_rows)
        state.tick.zero_()
        state.records[0, :, 1].copy_(state.tokens)
        step = self._step_of(num)
        for _ in range(steps):
            step()
        self.num_steps += steps
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
        """Read each row's newest token and choose the next one; or a round of speculation."""
        state = self.state
        if self.speculation is not None:
            self.speculation.round(state, num, all_greedy=all_greedy)
            return
        logits = self.model.forward(state.tokens[:num, None], state.lengths[:num])
        if all_greedy:
            chosen = logits.argmax(-1)
        else:
            chosen = self.model.ops.draw(logits, state.settings(num), state.uniforms_of(num)[:, 0])
        ones = torch.ones_like(chosen)
        state.advance(num, chosen, ones, torch.stack((ones, chosen), 1))

    def _step_of(self, num: int) -> Callable[[], None]:
        all_greedy = self.state.all_greedy
        if self._graphs is None:
            return lambda: self.step(num, all_greedy)
        key = (num, all_greedy)
        if key not in self._ready:
            state = self.state
            changed = [state.tokens, state.lengths, state.written, state.records, state.tick]
            if self.speculation is not None:
                changed += [self.speculation.first_draft, self.speculation.states]
            self._ready[key] = self._graphs.captured(lambda: self.step(num, all_greedy), changed)
        return self._ready[key]

    @property
    def pads_prompts(self) -> bool:
        """Prompts that are read together are padded to the longest."""
        return self._prefill is None

    def move(self, sources: Sequence[int], to: Sequence[int], length: int) -> None:
        """Sequences of at most `length` positions change rows."""
        length = min(length, self.model.capacity)
        self.model.move(sources, to, length)
        self.state.move(sources, to)
        if self.speculation is not None:
            self.speculation.move(sources, to, length)
