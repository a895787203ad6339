"""Our engine drafting trees, as an arm of the benchmark; and the times of a tree round's parts. Torch when used."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from eyas.bench.arm import Answer, BenchPrompt
from eyas.decode.tree_shape import TreeShape
from eyas.records.bench_record import Ceiling

if TYPE_CHECKING:
    from eyas.engine.engine import Engine, Limits

Result = TypeVar("Result")


class TreeArm:
    """Our engine with a tree per verify pass.

    Args:
        engine: with a draft.
        limits: as for the other arms.
        shape: of every round's tree; its depth is the arm's K.

    Raises:
        TreeUnsupported: target or draft cannot read trees.
    """

    def __init__(self, engine: "Engine", limits: "Limits", shape: TreeShape) -> None:
        from eyas.engine.trees.tree_engine import TreeEngine

        self._engine, self._limits, self.shape = TreeEngine(engine), limits, shape
        self.name, self.num_draft_tokens = f"tree={shape}", shape.depth

    def answer(self, prompt: BenchPrompt) -> Answer:
        """See `Arm.answer`."""
        text = self._engine.generate(prompt.prompt_ids, self._limits, self.shape)
        return Answer(
            ids=tuple(text.ids),
            origins=tuple(text.origins),
            accepted=tuple(text.accepted),
            prefill_s=text.prefill_s,
            decode_s=text.decode_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePartTimes:
    """Medians in this run, seconds.

    Attributes:
        one_row: one pass of the target over one row.
        verify: one pass over all nodes and the pending token, with their mask.
        read: the draft's step from the target's states, which gives depth 1.
        expand: one pass of the draft over `width` nodes.
        num_expansions: passes of the draft per round, at most: depth - 1.
    """

    one_row: float
    verify: float
    read: float
    expand: float
    num_expansions: int

    def ceiling(self, accept_length: float, histogram: Sequence[int]) -> Ceiling:
        """The speedup that these times allow at an accept length; a round's own bookkeeping is not among them."""
        drafting = self.read + self.num_expansions * self.expand
        return Ceiling(
            speedup=accept_length * self.one_row / (self.verify + drafting),
            one_row_ms=1e3 * self.one_row,
            verify_ms=1e3 * self.verify,
            draft_step_ms=1e3 * drafting / (1 + self.num_expansions),
        )


class TreePartTimer:
    """Times the parts of a tree round by themselves, for the ceiling.

    Args:
        engine: with a draft; target and draft read trees.
        ids: a text of typical length: attention reads all of it.
        shapes: every tree to time.
        clock: seconds.
    """

    def __init__(
        self,
        engine: "Engine",
        ids: Sequence[int],
        shapes: Sequence[TreeShape],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        from eyas.engine.trees.tree_engine import require_trees

        self._target, self._draft = require_trees(engine.target, engine.draft)
        self._ids, self._shapes, self._clock = list(ids), tuple(shapes), clock
        self._times: dict[TreeShape, dict[str, list[float]]] = {
            shape: {part: [] for part in ("one_row", "verify", "read", "expand")} for shape in shapes
        }

    def sample(self, num_repeats: int) -> None:
        """Time every part `num_repeats` times, in turns; call it before and after what the ceiling is held against."""
        # Each timed pass over one row lengthens the text by it: a draft reads a position once.
        capacity = len(self._ids) + 2 + max(max(s.num_nodes, s.width) for s in self._shapes)
        capacity += num_repeats * len(self._shapes)
        self._target.start(capacity, self._draft.aux_boundaries)
        output = self._target.prefill(self._ids)
        next_id = int(output.logits[-1].argmax())
        self._draft.start(capacity)
        self._draft.read([*self._ids[1:], next_id], output.aux_states)
        for _ in range(num_repeats):
            for shape in self._shapes:
                self._sample(shape, next_id)

    def _sample(self, shape: TreeShape, next_id: int) -> None:
        times, rows = self._times[shape], shape.num_nodes + 1
        one_row, output = self._timed(lambda: self._target.forward([next_id]))
        aux_states = output.aux_states.clone()
        # Any tree will do: what a row costs hardly depends on whose descendant it is.
        parents = [-1, *(row // shape.width for row in range(shape.num_nodes))]
        verify, _ = self._timed(lambda: self._target.forward_tree([next_id] * rows, parents))
        self._target.keep([], rows)
        read, _ = self._timed(lambda: self._draft.read([next_id], aux_states))
        expand, _ = self._timed(lambda: self._draft.expand([next_id] * shape.width, [-1] * shape.width))
        for part, seconds in (("one_row", one_row), ("verify", verify), ("read", read), ("expand", expand)):
            times[part].append(seconds)

    def _timed(self, part: Callable[[], Result]) -> tuple[float, Result]:
        started = self._clock()
        result = part()
        return self._clock() - started, result

    def times(self, shape: TreeShape) -> TreePartTimes:
        """Medians of all samples of one tree."""
        medians = {part: median(times) for part, times in self._times[shape].items()}
        return TreePartTimes(**medians, num_expansions=shape.depth - 1)
