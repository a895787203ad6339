"""One stream of text from a target, with or without a draft."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Protocol

from eyas.decode.chain import GreedyRule, Rule
from eyas.engine.adaptive import AdaptiveDepth
from eyas.engine.cost_table import CostTable, measure_costs
from eyas.engine.generation import Generation, OnTokens
from eyas.engine.known_ids import require_known_ids
from eyas.engine.round import Position, RoundResult, begin, play
from eyas.engine.sequence_protocols import DraftSequence, TargetSequence
from eyas.errors import EyasError


class PromptEmpty(EyasError):
    """There is nothing to continue."""

    code = "prompt-empty"


class LimitsInvalid(EyasError):
    """A text cannot end there."""

    code = "limits-invalid"


class DraftTokensInvalid(EyasError):
    """This number of draft tokens is not possible in a round."""

    code = "draft-tokens-invalid"


class DraftMissing(EyasError):
    """Draft tokens were asked for, but the engine has no draft."""

    code = "draft-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a text ends.

    Attributes:
        max_new_tokens: at least 1.
        stop_ids: end the text, themselves included.
    """

    max_new_tokens: int = 256
    stop_ids: frozenset[int] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        wrong, most, stops = [], self.max_new_tokens, self.stop_ids
        if not isinstance(most, Integral) or most < 1:
            wrong.append(f"max_new_tokens is {most!r}, must be a whole number, 1 or more")
        if not isinstance(stops, Collection) or not all(isinstance(token, Integral) for token in stops):
            wrong.append(f"stop_ids is {stops!r}, must be a set of token ids")
        if wrong:
            raise LimitsInvalid("a text cannot end there", "Limits", "; ".join(wrong), "correct the values named")


class FastPath(Protocol):
    """A faster way through some requests, with the same answers: captured rounds."""

    def takes(self, rule: Rule | None, num_draft_tokens: int, *, adapts: bool = False) -> bool:
        """Whether a request of this rule and depth goes through it; says once why one does not."""

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
        """See `Engine.generate`."""

    def measure_costs(self, num_positions: int, most: int) -> CostTable:
        """Seconds per round at context length `num_positions`, for every depth up to `most`."""

    def measure_parts(self, num_positions: int, depths: Sequence[int]) -> tuple[float, Mapping[int, float], float]:
        """Seconds of a plain step, of a verify pass per depth, of one draft token; once each, for a ceiling."""


class Engine:
    """Decodes one sequence at a time.

    Args:
        target: its cache is the engine's to use.
        draft: None for plain decoding only.
        fast: takes the requests that it can; None without a fast path.
        clock: seconds.
    """

    def __init__(
        self,
        target: TargetSequence,
        draft: DraftSequence | None = None,
        *,
        fast: FastPath | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target, self.draft, self.fast, self.clock = target, draft, fast, clock

    def adaptive(self, ids: Sequence[int], most: int = 7, rule: Rule | None = None) -> AdaptiveDepth:
        """A choice of depth for `generate`, from costs measured now; it keeps learning over all texts that use it.

        Args:
            ids: a text of typical length, at least one token.
            most: the deepest draft it may ask for, at least 1.
            rule: of the texts to come: says which rounds are timed.

        Raises:
            As `generate`.
        """
        ids = self._checked(ids, most, least=1)
        assert self.draft is not None, "checked just now"
        if self.fast is not None and self.fast.takes(rule, most, adapts=True):
            return AdaptiveDepth(self.fast.measure_costs(len(ids), most))
        return AdaptiveDepth(measure_costs(self.target, self.draft, ids, most, self.clock))

    def generate(
        self,
        prompt_ids: Sequence[int],
        limits: Limits,
        *,
        num_draft_tokens: int = 0,
        adaptive: AdaptiveDepth | None = None,
        rule: Rule | None = None,
        on_tokens: OnTokens | None = None,
    ) -> Generation:
        """Continue a prompt.

        Args:
            prompt_ids: at least one id.
            limits: when to end.
            num_draft_tokens: K drafts per verify pass; 0 = plain decoding, by the same code.
            adaptive: chooses each round's depth instead of `num_draft_tokens`; the text stays the same.
            rule: greedy unless given.
            on_tokens: called with each round's ids (none beyond the limits); it ends the text by returning True.

        Raises:
            PromptEmpty: no prompt ids.
            PromptOutsideVocabulary: an id that the target does not have.
            DraftTokensInvalid: K is not a whole number from 0 on.
            DraftMissing: K > 0 without a draft.
        """
        depth = num_draft_tokens if adaptive is None else adaptive.most
        prompt_ids = self._checked(prompt_ids, depth)
        if self.fast is not None and self.fast.takes(rule, depth, adapts=adaptive is not None):
            return self.fast.generate(
                prompt_ids,
                limits,
                num_draft_tokens=num_draft_tokens,
                adaptive=adaptive,
                rule=rule,
                on_tokens=on_tokens,
            )
        draft, rule = (self.draft if depth else None), rule or GreedyRule()
        capacity = len(prompt_ids) + limits.max_new_tokens + depth + 1
        self.target.start(capacity, draft.aux_boundaries if draft else ())
        if draft:
            draft.start(capacity)

        text = Generation(num_draft_tokens=depth)
        started = self.clock()
        is_lazy = adaptive is not None and not adaptive.is_on
        position = begin(self.target, draft, rule, list(prompt_ids), is_lazy=is_lazy)
        text.prefill_s = self.clock() - started
        has_ended = text.begin(position.pending_id, limits, on_tokens)
        while not has_ended:
            gained = self._play(draft, rule, position, num_draft_tokens, adaptive)
            num_drafted = gained.num_draft_tokens
            has_ended = text.add(gained.ids, gained.num_accepted_drafts, limits, on_tokens, num_drafted=num_drafted)
        text.decode_s = self.clock() - started - text.prefill_s
        return text

    def _play(
        self,
        draft: DraftSequence | None,
        rule: Rule,
        position: Position,
        num_draft_tokens: int,
        adaptive: AdaptiveDepth | None,
    ) -> RoundResult:
        if adaptive is None:
            return play(self.target, draft, rule, position, num_draft_tokens)
        asked = adaptive.most_now()
        wants = adaptive.wants_another
        gained = play(self.target, draft, rule, position, asked, wants_another=wants, is_lazy=True)
        adaptive.saw(asked, gained.num_draft_tokens, gained.num_accepted_drafts, gained.confidences)
        return gained

    def _checked(self, prompt_ids: Sequence[int], num_draft_tokens: int, least: int = 0) -> tuple[int, ...]:
        """The prompt as plain integers; raises what is wrong with a request before anything is computed."""
        ids = require_known_ids(prompt_ids, self.target.vocab_size, "prompt_ids")
        require_prompt(ids)
        if not isinstance(num_draft_tokens, Integral) or num_draft_tokens < least:
            raise DraftTokensInvalid(
                f"{num_draft_tokens!r} is not a number of draft tokens",
                "num_draft_tokens" if least == 0 else "most",
                f"it must be a whole number, {least} or more",
                "give another number; 0 is plain decoding",
            )
        if num_draft_tokens and self.draft is None:
            raise DraftMissing(
                f"{num_draft_tokens} drafts per verify pass, but no draft",
                "num_draft_tokens",
                "speculation needs a draft",
                "open the engine with a draft, or ask for 0 draft tokens",
            )
        return ids


def require_prompt(prompt_ids: Sequence[int], where: str = "prompt_ids") -> None:
    """Raise `PromptEmpty`, which says where, for a prompt without tokens."""
    if not prompt_ids:
        raise PromptEmpty(
            "the prompt has no tokens",
            where,
            "there is nothing to continue",
            "give at least one token, such as the begin-of-text id",
        )
