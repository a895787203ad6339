"""One sampled stream by the batched rounds: what captured rounds, which are greedy, cannot take.

Text and counts are those of the reference round with the same rule: `batches.batch_round` draws the target's token at
each row with the number that the rule would draw for that place of the text.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from eyas.decode.chain import SampledRule
from eyas.engine.batches.batch_draft import BatchDraft
from eyas.engine.batches.batch_llama import BatchLlama
from eyas.engine.batches.batch_ops import BatchOps, ReferenceBatchOps
from eyas.engine.batches.batch_round import BatchSpeculation
from eyas.engine.batches.batch_runner import BatchRunner, Block, Pace, captured_pace
from eyas.engine.batches.batch_state import NewRow
from eyas.engine.batches.prefill import PIECE_SIZES
from eyas.engine.engine import Limits, require_prompt
from eyas.engine.generation import Generation, OnTokens
from eyas.engine.llama.llama_weights import LlamaWeights
from eyas.models.draft import Eagle3Draft

_STEPS = 2  # rounds of a block; tokens stream at this grain


class SampledStream:
    """Sampled texts one after the other, drafts being the draft's argmax; one runner per depth, made when needed.

    Args:
        weights: of the target.
        draft: in its dtype, on its device; None for plain sampling only.
        aux_boundaries: that the draft reads.
        captures: rounds are CUDA graphs of Triton kernels; else plain operators, as for tests on a CPU.
        clock: seconds.
    """

    def __init__(
        self,
        weights: LlamaWeights,
        draft: Eagle3Draft | None,
        aux_boundaries: tuple[int, ...],
        *,
        captures: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._weights, self._draft, self._boundaries = weights, draft, aux_boundaries
        self._captures, self._clock = captures, clock
        self._runners: dict[int, BatchRunner] = {}

    def generate(
        self,
        prompt_ids: Sequence[int],
        limits: Limits,
        rule: SampledRule,
        *,
        num_draft_tokens: int,
        on_tokens: OnTokens | None,
    ) -> Generation:
        """As `Engine.generate`, with the numbers that `rule` would draw; the rule has drawn them afterwards."""
        require_prompt(prompt_ids)
        runner = self._runner(num_draft_tokens, len(prompt_ids) + limits.max_new_tokens)
        text, started = Generation(num_draft_tokens=num_draft_tokens), self._clock()
        # The last round may run past the limit by its K drafts, and draws for them as the reference round does.
        most = limits.max_new_tokens + num_draft_tokens
        row = NewRow(
            row=0,
            length=len(prompt_ids),
            sampling=rule.sampling,
            num_drawn=most,
            numbers=rule.upcoming(most),
        )
        runner.join([row], [prompt_ids])
        rounds, num_drawn = _rounds(runner), 1
        first = next(rounds)[0]
        text.prefill_s = self._clock() - started
        has_ended = text.begin(first, limits, on_tokens)
        while not has_ended:
            ids = next(rounds)
            num_drawn += len(ids)  # past the text's end, too: the reference round draws for whole rounds
            has_ended = text.add(ids, len(ids) - 1, limits, on_tokens)
        text.decode_s = self._clock() - started - text.prefill_s
        runner.state.leave([0])
        rule.drew(num_drawn)
        return text

    def _runner(self, num_draft_tokens: int, num_positions: int) -> BatchRunner:
        """The runner of this depth, with room for `num_positions` and for what runs ahead."""
        capacity = num_positions + 3 * _STEPS * (num_draft_tokens + 1)
        runner = self._runners.get(num_draft_tokens)
        if runner is None or runner.model.capacity < capacity:
            self._runners[num_draft_tokens] = runner = self._make(
                num_draft_tokens, max(1024, 1 << (capacity - 1).bit_length())
            )
        return runner

    def _make(self, num_draft_tokens: int, capacity: int) -> BatchRunner:
        ops, pace = _ops_and_pace(self._captures)
        model = BatchLlama(self._weights, 1, capacity, ops)
        if not num_draft_tokens:
            return BatchRunner(model, pace)
        assert self._draft is not None, "the caller has asked for a draft"
        draft = BatchDraft(self._draft, 1, capacity, ops)
        return BatchRunner(model, pace, BatchSpeculation(draft, self._boundaries, num_draft_tokens, model))


def _ops_and_pace(captures: bool) -> tuple[BatchOps, Pace]:
    if not captures:
        return ReferenceBatchOps(), Pace(steps=_STEPS, lookahead=1)
    from eyas.engine.batches.triton_batch_ops import TritonBatchOps

    return TritonBatchOps(), captured_pace(1, _STEPS, PIECE_SIZES)


def _rounds(runner: BatchRunner) -> Iterator[list[int]]:
    """The prompt's token, then what each round gained, without end; blocks are launched ahead of the reader."""
    flying, is_first = deque[Block](), True
    while True:
        while len(flying) <= runner.pace.lookahead:
            flying.append(runner.launch(1, _STEPS))
        first, *steps = flying.popleft().steps()[0]
        if is_first:
            yield first
        is_first = False
        for ids in steps:
            if runner.speculation is not None:
                yield ids
            else:
                yield from ([token] for token in ids)
