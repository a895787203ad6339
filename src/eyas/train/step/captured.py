"""A micro-batch recorded once for each shape and replayed from then on: one launch instead of some hundreds.

At a few thousand tokens a step the host cannot launch kernels as fast as a GPU runs them. So rows are padded to one of
a few shapes, every tensor that a micro-batch reads or adds to has its place for good, and what happens between is
recorded as a CUDA graph. `Recorder` is the seam: on a CPU, `run_again` stands for the graph and computes the same.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eyas.data.text.tokenise import TokenRow
from eyas.models.states import StateSource
from eyas.train.rows.packing import GPU_MULTIPLE, Packed, PackedShape, index_lists, least_shape, unpack, upload
from eyas.train.step.packed_target import LlamaStates
from eyas.train.step.unroll import FusedUnroll, Unroll

# Records work, which is done once meanwhile, and gives what does it again.
Recorder = Callable[[Callable[[], None]], Callable[[], None]]
# Adds a packed micro-batch's gradients, with these [K] step weights; gives its figures.
MicroBatch = Callable[[Packed, Tensor], Tensor]

_MOST_SHAPES = 48  # each keeps its launches; rarer shapes are computed without a graph


def run_again(work: Callable[[], None]) -> Callable[[], None]:
    """The recorder of a device without graphs: computes each time."""
    work()
    return work


class CudaGraphs:
    """Records into CUDA graphs that share one pool of memory: they are never replayed at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Recorder`. The first call compiles kernels, which a recording must not."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay


@dataclass(slots=True)
class _Recorded:
    """One shape: where its index lists go, and what does its work."""

    lists: Tensor
    replay: Callable[[], None] | None = None


class CapturedMicroBatches:
    """Adds micro-batches by replaying what was recorded for their shape.

    Args:
        draft: whose gradients are added to.
        unroll: of that draft.
        num_steps: K.
        add: the work to record.
        record: makes it repeatable.
        waiting: entered around work on data.

    Attributes:
        figures: what `add` gave, summed since `begin`.
    """

    def __init__(
        self,
        draft: nn.Module,
        unroll: FusedUnroll,
        num_steps: int,
        add: MicroBatch,
        record: Recorder,
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        device = unroll.head.value.device
        self._num_steps, self._device, self._add_packed, self._record = num_steps, device, add, record
        self._waiting = waiting
        self._step_weights = torch.zeros(num_steps, dtype=torch.float32, device=device)
        self.figures = torch.zeros(1 + 7 * num_steps, dtype=torch.float64, device=device)
        matrices = {id(part) for weight in unroll.weights for part in weight.parts}
        # Their gradients come from autograd, straight into `grad`.
        self._others = [
            (p, torch.zeros_like(p)) for p in draft.parameters() if p.requires_grad and id(p) not in matrices
        ]
        held = [weight.hold_gradient() for weight in unroll.weights if weight.is_trained]
        self._sums = [*held, *(grad for _, grad in self._others), self.figures]
        self._shapes: dict[tuple[int, int, int, int], _Recorded] = {}

    def begin(self, step_weights: Tensor) -> None:
        """Begin an optimiser step, whose gradients are unset; `step_weights` [K]."""
        for sum_ in self._sums:
            sum_.zero_()
        for parameter, grad in self._others:
            parameter.grad = grad
        self._step_weights.copy_(step_weights, non_blocking=True)

    def add(self, rows: Sequence[TokenRow]) -> int:
        """Add the micro-batch `rows`; gives the positions computed."""
        least = least_shape(rows, 1)
        if least.num_teachers == 0:
            return least.length
        shape = PackedShape(
            length=_rounded(least.length),
            num_starts=_power_of_two(least.num_starts, 16),
            num_teachers=_rounded(least.num_teachers),
        )
        num_tokens = sum(len(row.token_ids) for row in rows)
        longest = _power_of_two(max(*(len(row.token_ids) for row in rows), shape.length - num_tokens), GPU_MULTIPLE)
        key = (shape.length, shape.num_starts, shape.num_teachers, min(longest, shape.length))
        with self._waiting():
            uploaded = upload(index_lists(rows, self._num_steps, shape), self._device)
        found = self._shapes.get(key)
        if found is not None and found.replay is not None:
            found.lists.copy_(uploaded)
            found.replay()
        elif len(self._shapes) >= _MOST_SHAPES:
            self._compute(uploaded, shape, key[3])
        else:
            self._shapes[key] = self._recorded(uploaded, shape, key[3])
        return shape.length

    def _recorded(self, lists: Tensor, shape: PackedShape, longest: int) -> _Recorded:
        """Record the work on `lists`; what it added while it was recorded is added once."""
        found = _Recorded(lists.clone())
        before = [sum_.clone() for sum_ in self._sums]
        found.replay = self._record(lambda: self._compute(found.lists, shape, longest))
        for sum_, value in zip(self._sums, before, strict=True):
            sum_.copy_(value)
        found.replay()
        return found

    def _compute(self, lists: Tensor, shape: PackedShape, longest: int) -> None:
        # The lengths of single rows are not known to a recording; nothing fused asks for more than the longest.
        packed = unpack(lists, self._num_steps, shape, (longest,), shape.length - 1)
        self.figures += self._add_packed(packed, self._step_weights)


def why_not_captured(states: StateSource, unroll: Unroll, *, has_shards: bool) -> str | None:
    """Why a micro-batch cannot be recorded; None where it can."""
    reasons = {
        "the target's states are not computed by the fused forward": not isinstance(states, LlamaStates),
        "the draft is computed by its modules": not isinstance(unroll, FusedUnroll),
        "the draft's own embedding is trained": isinstance(unroll, FusedUnroll) and unroll.trains_embedding,
        "the draft is sharded": has_shards,
    }
    return next((reason for reason, is_so in reasons.items() if is_so), None)


def _rounded(number: int) -> int:
    """`number` with an eighth of padding at most, so that a few sizes serve all."""
    multiple = max(GPU_MULTIPLE, (1 << (number.bit_length() - 1)) // 8)
    return -(-number // multiple) * multiple


def _power_of_two(number: int, least: int) -> int:
    return max(least, 1 << (number - 1).bit_length())
