"""One stream of text from a target, with or without a draft."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from eyas.decode.chain import GreedyRule, Rule
from eyas.engine.generation import PREFILL, Generation
from eyas.engine.round import begin, play
from eyas.engine.runner import Draft, Target
from eyas.errors import EyasError


class PromptEmpty(EyasError):
    """There is nothing to continue."""

    code = "prompt-empty"


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
        assert self.max_new_tokens >= 1, "a text has at least one token"


class Engine:
    """Decodes one sequence at a time.

    Args:
        target: its cache is the engine's to use.
        draft: None for plain decoding only.
        clock: seconds.
    """

    def __init__(
        self, target: Target, draft: Draft | None = None, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.target, self.draft, self._clock = target, draft, clock

    def generate(
        self,
        prompt_ids: Sequence[int],
        limits: Limits,
        *,
        num_draft_tokens: int = 0,
        rule: Rule | None = None,
        on_tokens: Callable[[Sequence[int]], None] | None = None,
    ) -> Generation:
        """Continue a prompt.

        Args:
            prompt_ids: at least one id.
            limits: when to end.
            num_draft_tokens: K drafts per verify pass; 0 = plain decoding, by the same code.
            rule: greedy unless given.
            on_tokens: called with each round's ids (tokens beyond the limits left out).

        Raises:
            PromptEmpty: no prompt ids.
            DraftMissing: K > 0 without a draft.
        """
        self._check(prompt_ids, num_draft_tokens)
        draft, rule = (self.draft if num_draft_tokens else None), rule or GreedyRule()
        capacity = len(prompt_ids) + limits.max_new_tokens + num_draft_tokens + 1
        self.target.start(capacity, draft.aux_boundaries if draft else ())
        if draft:
            draft.start(capacity)

        text = Generation(num_draft_tokens=num_draft_tokens)
        started = self._clock()
        position = begin(self.target, draft, rule, list(prompt_ids))
        text.prefill_s = self._clock() - started
        text.ids.append(position.pending_id)
        text.origins.append(PREFILL)
        _tell(on_tokens, text.ids)
        has_ended = position.pending_id in limits.stop_ids or limits.max_new_tokens == 1
        if position.pending_id in limits.stop_ids:
            text.finish = "stop"
        while not has_ended:
            before = len(text.ids)
            gained = play(self.target, draft, rule, position, num_draft_tokens)
            has_ended = text.add(gained.ids, gained.num_accepted_drafts, limits.stop_ids, limits.max_new_tokens)
            _tell(on_tokens, text.ids[before:])
        text.decode_s = self._clock() - started - text.prefill_s
        return text

    def _check(self, prompt_ids: Sequence[int], num_draft_tokens: int) -> None:
        if not prompt_ids:
            raise PromptEmpty(
                "the prompt has no tokens",
                "prompt_ids",
                "there is nothing to continue",
                "give at least one token, such as the begin-of-text id",
            )
        if num_draft_tokens and self.draft is None:
            raise DraftMissing(
                f"{num_draft_tokens} draft tokens per round, but no draft",
                "num_draft_tokens",
                "speculation needs a draft",
                "give the engine a draft, or ask for 0 draft tokens",
            )


def _tell(on_tokens: Callable[[Sequence[int]], None] | None, ids: Iterable[int]) -> None:
    if on_tokens is not None:
        on_tokens(tuple(ids))
