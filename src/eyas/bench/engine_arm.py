"""Arms in process: chains and trees of eyas' engine, and transformers' `generate`; the times of a round's parts.

Imports torch when used.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from eyas.bench.compare import PartTimes
from eyas.bench.measure import Answer, BenchPrompt
from eyas.decode.tree_shape import TreeShape
from eyas.records.bench_record import Ceiling

if TYPE_CHECKING:
    from eyas.engine.adaptive import AdaptiveDepth
    from eyas.engine.engine import Engine, FastPath, Limits
    from eyas.engine.generation import Generation
    from eyas.engine.sequence_protocols import DraftSequence, TargetSequence

Result = TypeVar("Result")


class EngineArm:
    """Eyas' engine with K drafts per pass, or with an adaptive depth; K = 0 is the plain arm, by the same code."""

    def __init__(
        self, engine: "Engine", limits: "Limits", num_draft_tokens: int, adaptive: "AdaptiveDepth | None" = None
    ) -> None:
        self._engine, self._limits, self._adaptive = engine, limits, adaptive
        self.num_draft_tokens = num_draft_tokens if adaptive is None else adaptive.most
        self.name = "k=auto" if adaptive else f"k={num_draft_tokens}" if num_draft_tokens else "plain"

    def answer(self, prompt: BenchPrompt) -> Answer:
        """See `Arm.answer`."""
        depth = 0 if self._adaptive else self.num_draft_tokens
        text = self._engine.generate(prompt.prompt_ids, self._limits, num_draft_tokens=depth, adaptive=self._adaptive)
        return _answer(text, speculates=self.num_draft_tokens > 0, adapts=self._adaptive is not None)


class EngineOracle:
    """The engine's target, as the judge of near-ties."""

    def __init__(self, engine: "Engine") -> None:
        self._target = engine.target

    def logit_gap(self, ids: Sequence[int], tokens: Sequence[int]) -> float:
        """See `Oracle.logit_gap`."""
        self._target.start(len(ids) + 1, ())
        logits = self._target.prefill(list(ids)).logits[0].float()
        return float(logits.max() - logits[list(tokens)].min())


class TransformersArm:
    """Greedy `generate` of `transformers`, as a user would call it: the peer of the plain arm.

    Args:
        folder: of the target.
        limits: as for the other arms.
        dtype, device: by name.
        num_threads: torch's own number.
    """

    name, num_draft_tokens = "transformers", 0

    def __init__(self, folder: Path, limits: "Limits", dtype: str, device: str, num_threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch, self._limits, self._num_threads = torch, limits, num_threads
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True)
        self._model = model.to(device).eval()

    def answer(self, prompt: BenchPrompt) -> Answer:
        """See `Arm.answer`; the first token's time is when it reaches a streamer."""
        torch, times = self._torch, []

        class Streamer:
            def put(self, value: Any) -> None:
                times.append(time.perf_counter())

            def end(self) -> None:
                return None

        ids = torch.tensor([prompt.prompt_ids], device=self._model.device)
        of_engine = torch.get_num_threads()
        torch.set_num_threads(self._num_threads)  # the engine may have chosen fewer for itself
        started = time.perf_counter()
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=self._limits.max_new_tokens,
            eos_token_id=sorted(self._limits.stop_ids) or None,
            pad_token_id=next(iter(self._limits.stop_ids), 0),
            streamer=Streamer(),
        )
        ended = time.perf_counter()
        torch.set_num_threads(of_engine)
        first = times[1]  # times[0] is the prompt's own echo
        new_ids = out[0, ids.shape[1] :].tolist()
        return Answer(ids=tuple(new_ids), prefill_s=first - started, decode_s=ended - first)


class PartTimer:
    """Times the parts of a round by themselves, for the ceiling; captured rounds by their captured parts.

    Args:
        engine: with a draft.
        ids: a text of typical length: attention reads all of it.
        depths: every K to time a verify pass for.
    """

    def __init__(self, engine: "Engine", ids: Sequence[int], depths: Sequence[int]) -> None:
        assert engine.draft is not None, "the parts of a round include a draft"
        self._target, self._draft, self._fast = engine.target, engine.draft, engine.fast
        self._ids, self._depths = list(ids), sorted(set(depths))
        self._rows: dict[int, list[float]] = {rows: [] for rows in (1, *(k + 1 for k in self._depths))}
        self._steps: list[float] = []

    def sample(self, num_repeats: int) -> None:
        """Time every part `num_repeats` times, in turns; call it before and after what the ceiling is held against."""
        if self._fast is not None:
            self._sample_fast(self._fast, num_repeats)
            return
        deepest = self._depths[-1]
        capacity = len(self._ids) + deepest + 2 + num_repeats  # each timed step lengthens the draft's text by one
        next_id = _begin(self._target, self._draft, self._ids, capacity)
        rows_ids = [next_id] * (deepest + 1)
        for _ in range(num_repeats):
            for rows, times in self._rows.items():
                times.append(_timed(lambda rows=rows: self._target.forward(rows_ids[:rows]))[0])  # type: ignore[misc]
                self._target.truncate(len(self._ids))
            self._steps.append(_timed(lambda: self._draft.step(next_id))[0])

    def _sample_fast(self, fast: "FastPath", num_repeats: int) -> None:
        for _ in range(num_repeats):
            one_row, verify, step = fast.measure_parts(len(self._ids), self._depths)
            self._rows[1].append(one_row)
            for depth, seconds in verify.items():
                self._rows[depth + 1].append(seconds)
            self._steps.append(step)

    @property
    def times(self) -> PartTimes:
        """Medians of all samples."""
        return PartTimes(
            one_row=median(self._rows[1]),
            verify={k: median(self._rows[k + 1]) for k in self._depths},
            draft_step=median(self._steps),
        )


class TreeArm:
    """Eyas' engine with a draft tree per verify pass.

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
        return _answer(text)


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
        """The speedup that these times allow at an accept length; they leave out a round's own bookkeeping."""
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
        next_id = _begin(self._target, self._draft, self._ids, capacity)
        for _ in range(num_repeats):
            for shape in self._shapes:
                self._sample(shape, next_id)

    def _sample(self, shape: TreeShape, next_id: int) -> None:
        times, rows = self._times[shape], shape.num_nodes + 1
        one_row, output = _timed(lambda: self._target.forward([next_id]), self._clock)
        aux_states = output.aux_states.clone()
        # Any tree will do: a row's cost hardly depends on its parent.
        parents = [-1, *(row // shape.width for row in range(shape.num_nodes))]
        verify, _ = _timed(lambda: self._target.forward_tree([next_id] * rows, parents), self._clock)
        self._target.keep([], rows)
        read, _ = _timed(lambda: self._draft.read([next_id], aux_states), self._clock)
        expand, _ = _timed(lambda: self._draft.expand([next_id] * shape.width, [-1] * shape.width), self._clock)
        for part, seconds in (("one_row", one_row), ("verify", verify), ("read", read), ("expand", expand)):
            times[part].append(seconds)

    def times(self, shape: TreeShape) -> TreePartTimes:
        """Medians of all samples of one tree."""
        medians = {part: median(times) for part, times in self._times[shape].items()}
        return TreePartTimes(**medians, num_expansions=shape.depth - 1)


def _begin(target: "TargetSequence", draft: "DraftSequence", ids: Sequence[int], capacity: int) -> int:
    """Let both read the text; the next token."""
    target.start(capacity, draft.aux_boundaries)
    output = target.prefill(list(ids))
    next_id = int(output.logits[-1].argmax())
    draft.start(capacity)
    draft.read([*ids[1:], next_id], output.aux_states)
    return next_id


def _timed(part: Callable[[], Result], clock: Callable[[], float] = time.perf_counter) -> tuple[float, Result]:
    started = clock()
    result = part()
    return clock() - started, result


def _answer(text: "Generation", *, speculates: bool = True, adapts: bool = False) -> Answer:
    return Answer(
        ids=tuple(text.ids),
        origins=tuple(text.origins),
        accepted=tuple(text.accepted) if speculates else None,
        drafted=tuple(text.drafted) if adapts else None,
        prefill_s=text.prefill_s,
        decode_s=text.decode_s,
    )
