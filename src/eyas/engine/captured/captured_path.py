"""The fast path of an `Engine`: captured rounds, one per depth, made on first use, over one pair of caches.

Knows which requests the captured rounds can take. A round writes at fixed addresses, so its caches have a fixed length;
a request that does not fit gets longer caches, and the rounds are captured again.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from eyas.decode.chain import GreedyRule, Rule, SampledRule
from eyas.engine.adaptive import AdaptiveDepth
from eyas.engine.batches.sampled_stream import SampledStream
from eyas.engine.captured.adaptive_rounds import AdaptiveRounds
from eyas.engine.captured.captured_engine import FastEngine, FastSettings
from eyas.engine.captured.captured_round import MOST_DRAFTS, new_round
from eyas.engine.captured.captured_weights import FastDraft, FastTarget, fast_draft, fast_target, with_length
from eyas.engine.captured.prompt_pass import PromptPass, prompt_pass
from eyas.engine.captured.round_ops import ReferenceOps, RoundOps
from eyas.engine.captured.workspace import key_value_cache
from eyas.engine.cost_table import CostTable
from eyas.engine.engine import Limits
from eyas.engine.generation import Generation, OnTokens
from eyas.engine.llama.llama_weights import LlamaWeights
from eyas.models.draft import Eagle3Draft
from eyas.talk import Talk

_FIRST_LENGTH = 1024
_AHEAD = 64  # rounds in flight and rejected drafts, beyond prompt and answer


class CapturedPath:
    """See `engine.FastPath`.

    Args:
        weights: of the target, on the device and in the dtype to compute in.
        draft: its draft, or None.
        aux_boundaries: that the draft reads.
        ops: Triton kernels, or the reference operators.
        settings: launching.
        talk: notified once per kind of request that falls back.
        clock: seconds.

    Raises:
        FastPathUnsupported: see `fast_target` and `fast_draft`.
    """

    def __init__(
        self,
        weights: LlamaWeights,
        draft: Eagle3Draft | None,
        aux_boundaries: tuple[int, ...],
        *,
        ops: RoundOps,
        settings: FastSettings,
        talk: Talk,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._weights, self._spec = weights, None if draft is None else draft.spec
        self._ops, self._settings, self._talk, self._clock = ops, settings, talk, clock
        self._length = _FIRST_LENGTH
        self._target = fast_target(weights, max_length=self._length, aux_boundaries=aux_boundaries)
        self._draft = None if draft is None else fast_draft(draft, self._target)
        self._sampled = SampledStream(weights, draft, aux_boundaries, captures=settings.captures, clock=clock)
        self._said: set[str] = set()
        self._memory: tuple[tuple[Tensor, Tensor | None], PromptPass] | None = None
        self._engines: dict[int, FastEngine] = {}
        self._adaptive: dict[int, AdaptiveRounds] = {}

    @property
    def name(self) -> str:
        """For a report."""
        return "captured round, run eagerly" if isinstance(self._ops, ReferenceOps) else "captured CUDA graph"

    def takes(self, rule: Rule | None, num_draft_tokens: int, *, adapts: bool = False) -> bool:
        """See `FastPath.takes`."""
        reason, is_greedy = None, rule is None or isinstance(rule, GreedyRule)
        if num_draft_tokens > MOST_DRAFTS:
            reason = f"captured rounds draft at most {MOST_DRAFTS}"
        elif not is_greedy and not (isinstance(rule, SampledRule) and rule.drafts == "greedy"):
            reason = "captured rounds do not sample drafts"
        elif not is_greedy and adapts:
            reason = "depth adapts in captured rounds of greedy texts only"
        if reason is not None and reason not in self._said:
            self._said.add(reason)
            self._talk.note(f"some requests take the reference rounds: {reason}")
        return reason is None

    def generate(
        self,
        prompt_ids: Sequence[int],
        limits: Limits,
        *,
        num_draft_tokens: int,
        adaptive: AdaptiveDepth | None,
        rule: Rule | None,
        on_tokens: OnTokens | None,
    ) -> Generation:
        """See `FastPath.generate`."""
        if isinstance(rule, SampledRule):
            return self._sampled.generate(
                prompt_ids, limits, rule, num_draft_tokens=num_draft_tokens, on_tokens=on_tokens
            )
        self._make_room(len(prompt_ids) + limits.max_new_tokens + _AHEAD)
        if adaptive is not None:
            return self.adaptive(adaptive.most).generate(prompt_ids, limits, adaptive, on_tokens=on_tokens)
        return self.engine(num_draft_tokens).generate(prompt_ids, limits, on_tokens=on_tokens)

    def measure_costs(self, num_positions: int, most: int) -> CostTable:
        """See `FastPath.measure_costs`."""
        rounds = self.adaptive(most)
        return rounds.measure_costs(min(num_positions, self._length // 2))

    def measure_parts(self, num_positions: int, depths: Sequence[int]) -> tuple[float, Mapping[int, float], float]:
        """See `FastPath.measure_parts`; verifying is the rest of a round when its proposing has been timed."""
        at = min(num_positions, self._length // 2)
        plain, _ = self.engine(0).measure(at)
        times = {depth: self.engine(depth).measure(at) for depth in depths}
        step = sum(propose for _, propose in times.values()) / sum(depths)
        return plain, {depth: max(plain, whole - propose) for depth, (whole, propose) in times.items()}, step

    def engine(self, num_draft_tokens: int) -> FastEngine:
        """Rounds of one depth; captured on first use, which compiles kernels for its number of rows."""
        if num_draft_tokens not in self._engines:
            target, draft = self._models(num_draft_tokens)
            caches, prompt = self._shared()
            round_ = new_round(
                self._ops,
                target,
                draft,
                num_draft_tokens=num_draft_tokens,
                max_length=self._length,
                caches=caches,
            )
            self._engines[num_draft_tokens] = FastEngine(
                round_, self._settings, clock=self._clock, talk=self._talk, prompt=prompt
            )
        return self._engines[num_draft_tokens]

    def adaptive(self, most: int) -> AdaptiveRounds:
        """Rounds of every depth up to `most`; captured on first use."""
        if most not in self._adaptive:
            assert self._draft is not None, "depth adapts where there is a draft"
            caches, prompt = self._shared()
            self._adaptive[most] = AdaptiveRounds(
                self._ops,
                self._target,
                self._draft,
                most=most,
                max_length=self._length,
                caches=caches,
                settings=self._settings,
                clock=self._clock,
                talk=self._talk,
                prompt=prompt,
            )
        return self._adaptive[most]

    def _models(self, num_draft_tokens: int) -> tuple[FastTarget, FastDraft | None]:
        if num_draft_tokens:
            return self._target, self._draft
        return self._target.untapped(), None

    def _shared(self) -> tuple[tuple[Tensor, Tensor | None], PromptPass]:
        """Caches of target and draft, and what reads prompts into the first: rounds of all depths use them in turn."""
        if self._memory is None:
            draft, boundaries = self._draft, self._target.aux_boundaries
            cache = key_value_cache(self._target, len(self._target.layers), self._length)
            prompt = prompt_pass(self._weights, cache, boundaries, captures=self._settings.captures)
            self._memory = ((cache, None if draft is None else key_value_cache(draft, 1, self._length)), prompt)
        return self._memory

    def _make_room(self, num_positions: int) -> None:
        if num_positions <= self._length:
            return
        self._length = 1 << (num_positions - 1).bit_length()
        self._talk.note(f"captured rounds are rebuilt for {self._length} positions")
        self._engines, self._adaptive, self._memory = {}, {}, None
        self._target, self._draft = with_length(self._target, self._draft, self._weights, self._spec, self._length)
