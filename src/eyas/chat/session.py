"""A conversation with a target: the messages so far, and the next answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from eyas.chat.prompt_reader import Message, PromptReader
from eyas.chat.text_stream import AnswerText, Piece
from eyas.decode.chain import rule_for
from eyas.decode.sampling import Sampling
from eyas.engine.adaptive import AdaptiveDepth
from eyas.engine.engine import Engine, Limits
from eyas.engine.generation import BONUS, PREFILL, Generation
from eyas.talk import Talk

_MOST = 5  # drafts of a round where depth adapts
_TYPICAL = 256  # positions in the cache while rounds are timed

Finish = Literal["stop", "length", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """Depth, sampling and limits of every answer.

    Attributes:
        depth: K; 0 = plain; None = adaptive.
        sampling: of the first answer; the seed grows by one with each.
        max_new_tokens: longest answer.
        stops: stop strings; an answer ends before the first.
        system: the first message, if any.
    """

    depth: int | None = 0
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 512
    stops: Sequence[str] = ()
    system: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """One answer.

    Attributes:
        prompt: the user's message.
        text: as shown.
        generation: ids, origins, rounds and times; it holds nothing beyond the text except what ended it.
        num_prompt_tokens: tokens that the target read before the answer.
        finish: `stop` = an end token or a stop string; `length` = `max_new_tokens` or the context; `interrupted`.
        seed: None where greedy.
    """

    prompt: str
    text: str
    generation: Generation
    num_prompt_tokens: int
    finish: Finish
    seed: int | None

    @property
    def tokens_per_s(self) -> float | None:
        """Decoding speed, without the prompt and the first token; None if there is nothing to measure."""
        num, seconds = len(self.generation.ids) - 1, self.generation.decode_s
        return num / seconds if num > 0 and seconds > 0 else None

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify pass, bonus included; None if nothing was drafted."""
        acceptance = self.generation.acceptance
        return acceptance.accept_length if sum(acceptance.proposed_at) else None

    def as_document(self) -> dict[str, Any]:
        """One entry of `answers` in `eyas.chat/1`."""
        text = self.generation
        return {
            "prompt": self.prompt,
            "text": self.text,
            "ids": list(text.ids),
            "origins": list(text.origins),
            "finish": self.finish,
            "seed": self.seed,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_draft_tokens": text.num_draft_tokens,
            "rounds": len(text.accepted),
            "accepted": list(text.accepted),
            "drafted": list(text.drafted),
            "accept_length": self.accept_length,
            "first_token_s": text.prefill_s,
            "decode_s": text.decode_s,
            "tokens_per_s": self.tokens_per_s,
        }


class ChatSession:
    """Answers one prompt after the other; each answer sees the whole conversation.

    Args:
        engine: with a draft unless `settings.depth` is 0.
        reader: the target's tokenizer and template.
        settings: of all answers.
        talk: notes of what is clamped.
    """

    def __init__(self, engine: Engine, reader: PromptReader, settings: ChatSettings, talk: Talk) -> None:
        self._engine, self._reader, self._settings, self._talk = engine, reader, settings, talk
        self._adaptive: AdaptiveDepth | None = None
        self._num_answers = 0
        self._messages: list[Message] = []
        self.is_plain = False
        """Whether speculation is switched off for now."""
        self.reset()

    @property
    def has_draft(self) -> bool:
        """Whether speculation can be switched on."""
        return self._settings.depth != 0

    def reset(self) -> None:
        """Forget the conversation, except the system message."""
        system = self._settings.system
        self._messages = [] if system is None else [{"role": "system", "content": system}]

    def answer(
        self,
        prompt: str,
        show: Callable[[Piece], None] = lambda piece: None,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> ChatAnswer:
        """Answer a prompt. The part of an interrupted answer that was generated stays in the conversation.

        Args:
            prompt: any text.
            show: takes the answer's text as it comes.
            is_enough: called after every round; True ends the answer.

        Raises:
            What `PromptReader.ids` raises; the conversation is then unchanged.
        """
        messages = [*self._messages, {"role": "user", "content": prompt}]
        prompt_ids = self._reader.ids(messages)
        sampling = self._settings.sampling.of_text(self._num_answers)
        listener = _Listener(self._reader, self._settings.stops, show, is_enough, self._limits(len(prompt_ids)))
        text = listener.finish(self._generate(prompt_ids, sampling, listener))
        self._num_answers += 1
        self._messages = [*messages, {"role": "assistant", "content": listener.answer.text}]
        return ChatAnswer(
            prompt=prompt,
            text=listener.answer.text,
            generation=text,
            num_prompt_tokens=len(prompt_ids),
            finish=_finish(text, has_stopped=listener.answer.has_stopped),
            seed=None if sampling.is_greedy else sampling.seed,
        )

    def _generate(self, prompt_ids: list[int], sampling: Sampling, listener: "_Listener") -> Generation:
        depth = 0 if self.is_plain else self._settings.depth
        rule = None if sampling.is_greedy else rule_for(sampling)
        if depth is None and self._adaptive is None:
            self._talk.line("timing rounds of every depth, once")
            typical = prompt_ids[: min(_TYPICAL, (self._reader.context or _TYPICAL * 4) // 4)]
            self._adaptive = self._engine.adaptive(typical, _MOST, rule)
        return self._engine.generate(
            prompt_ids,
            listener.limits,
            num_draft_tokens=depth or 0,
            adaptive=self._adaptive if depth is None else None,
            rule=rule,
            on_tokens=listener.hears,
        )

    def _limits(self, num_prompt_tokens: int) -> Limits:
        most, context = self._settings.max_new_tokens, self._reader.context
        if context is not None and num_prompt_tokens + most > context:
            most = context - num_prompt_tokens
            self._talk.note(f"the answer is limited to {most} tokens: the target's context is {context}")
        return Limits(max_new_tokens=most, stop_ids=self._reader.end_ids)


class _Listener:
    """Turns rounds into text as they come; ends the answer at a stop string or when `is_enough` says so."""

    def __init__(
        self,
        reader: PromptReader,
        stops: Sequence[str],
        show: Callable[[Piece], None],
        is_enough: Callable[[], bool],
        limits: Limits,
    ) -> None:
        self.answer, self.limits = AnswerText(reader.decode, stops, show), limits
        self._is_enough = is_enough
        self._num_heard = 0

    def hears(self, ids: Sequence[int]) -> bool:
        """Take a round's ids: accepted drafts, then the bonus token. The first call brings the token from prefill."""
        for at, token in enumerate(ids):
            self._num_heard += 1
            if token in self.limits.stop_ids or self._num_heard == self.limits.max_new_tokens:
                break  # an end token is not shown; if the length cuts a round, only the generation knows the origin
            self.answer.push(token, is_draft=at < len(ids) - 1)
        return self.answer.has_stopped or self._is_enough()

    def finish(self, text: Generation) -> Generation:
        """Show what is left; cut what the last round brought beyond a stop string."""
        if self.answer.num_ids < len(text.ids) and text.ids[-1] not in self.limits.stop_ids:
            self.answer.push(text.ids[-1], is_draft=text.origins[-1] not in (BONUS, PREFILL))
        self.answer.end()
        if self.answer.has_stopped:
            text.cut(self.answer.num_ids)
        return text


def _finish(text: Generation, *, has_stopped: bool) -> Finish:
    if has_stopped or text.finish == "stop":
        return "stop"
    return "interrupted" if text.finish == "caller" else "length"
