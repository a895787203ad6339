"""Where the target's own words begin and end in a rendered conversation. Text only, no token ids.

The boundaries come from the template itself: the rendering of all turns before an answer, with the generation prompt,
is what the target reads; what the full rendering has after it, up to the token that closes the turn, is what it has to
write: also what a template puts before the answer's own words (a channel, a line feed, think tags). Nothing is searched
by patterns, so a template without `{% generation %}` tags works, and one that rewrites earlier turns is noticed. An
answer that its data switches off (`weight: 0`) is read like a prompt.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import groupby
from typing import Any, Protocol

from eyas.errors import EyasError
from eyas.models.chat_prompt import ends_within, refusals, rendered, require_prompt_text
from eyas.records.conversation import Conversation, is_learned


class TemplateUnstable(EyasError):
    """The template renders the same turns differently once a later turn is there."""

    code = "template-unstable"


class TemplateRewritesAnswer(EyasError):
    """The recorded answer, or a call in it, does not occur in the rendered text."""

    code = "template-rewrites-answer"


_SPLIT = "use `--turns split`: one row for each answer, with the prompt as the target would read it"
_REGENERATE = (
    "the prompt ends with what the finished turn lacks, so no text says what the target writes after it: use"
    " `--regenerate`, which keeps its very tokens, or the `--template-options` with which the answers were written"
)


_MANY_SECONDS = 30.0  # for a thousand conversations at once; then they are rendered one by one
_TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")


class Tokenizer(Protocol):
    """What is used of a `transformers` tokenizer."""

    all_special_tokens: list[str]
    chat_template: Any

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Render (tokenize=False)."""

    def __call__(self, text: Any, **options: Any) -> Any:
        """Token ids under `input_ids`."""

    def decode(self, token_ids: Any, **options: Any) -> str:
        """Text of ids."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of rendered text, tokenised on its own; supervised when the target wrote it."""

    text: str
    is_supervised: bool


class ChatTemplate:
    """A tokenizer's chat template with its options fixed.

    Args:
        tokenizer: with a `chat_template`.
        closing: tokens that close a turn or a text; the first after an answer is supervised with it.
        stops: those at which generation ends; one that follows the closing token at once is supervised, too.
        options: further variables for the template, such as `enable_thinking`.

    Attributes:
        inserted: what the template put between a prompt and the words of an answer without reasoning -> how often.
    """

    def __init__(
        self, tokenizer: Tokenizer, closing: Sequence[str], options: Mapping[str, Any], stops: Sequence[str] = ()
    ) -> None:
        self._tokenizer, self._options, self._stops = tokenizer, dict(options), frozenset(stops)
        self._closing = tuple(sorted(set(closing), key=len, reverse=True))
        self.inserted = Counter[str]()

    def fix_day(self, day: date) -> bool:
        """Freeze the date that a template writes (gpt-oss, Llama 3.2), so that a resumed run sees the same prompt.

        Returns whether it writes a date. A date once frozen stays.
        """
        template = self._tokenizer.chat_template
        if not isinstance(template, str):
            return False
        fixed, num_dates = _TODAY.subn(lambda call: repr(day.strftime(call[2])), template)
        if num_dates:
            self._tokenizer.chat_template = fixed
        return num_dates > 0

    def render(self, conversation: Conversation, num_turns: int, *, for_generation: bool = False) -> str:
        """Text of the first `num_turns` turns; `for_generation` adds what precedes the target's answer.

        Raises:
            TemplateFailed: see `models.chat_prompt.rendered`.
        """
        return rendered(
            self._tokenizer,
            conversation.messages[:num_turns],
            _where(conversation),
            tools=conversation.tools,
            for_generation=for_generation,
            options=self._options,
        )

    def render_many(
        self, conversations: Sequence[Conversation], lengths: Sequence[int], *, for_generation: bool = False
    ) -> list[str]:
        """`render` of each conversation's first `lengths[i]` turns, several times as fast.

        Raises:
            TemplateFailed: as `render`, for the first conversation that the template refuses.
        """
        texts: list[str] = []
        jobs = list(zip(conversations, lengths, strict=True))
        for same_tools in _runs_of_one_tools(jobs):
            try:
                with ends_within(_MANY_SECONDS):
                    some = self._tokenizer.apply_chat_template(
                        [[dict(message) for message in c.messages[:length]] for c, length in same_tools],
                        tools=same_tools[0][0].tools,
                        tokenize=False,
                        add_generation_prompt=for_generation,
                        **self._options,
                    )
            except refusals():  # rendering one by one finds the record and names it
                some = [self.render(c, length, for_generation=for_generation) for c, length in same_tools]
            for text, (c, _) in zip(some, same_tools, strict=True):
                require_prompt_text(text, (c.messages, c.tools), _where(c))
            texts += some
        return texts

    def segments(self, conversation: Conversation) -> list[Segment]:
        """The whole conversation up to its last answer, all answers supervised but those that are switched off.

        Raises:
            TemplateUnstable: an earlier rendering is not a prefix of a later one.
            TemplateRewritesAnswer: an answer's text does not occur after its prompt.
        """
        return self.segments_many([conversation])[0]

    def segments_many(self, conversations: Sequence[Conversation]) -> list[list[Segment]]:
        """`segments` of each; its errors name the first conversation that has one."""
        jobs = [(c, turn) for c in conversations for turn in self.answer_turns(c)]
        owners = [c for c, _ in jobs]
        prompts = iter(self.render_many(owners, [turn for _, turn in jobs], for_generation=True))
        fulls = iter(self.render_many(owners, [turn + 1 for _, turn in jobs]))
        return [self._segments(c, prompts, fulls) for c in conversations]

    def _segments(self, conversation: Conversation, prompts: Iterator[str], fulls: Iterator[str]) -> list[Segment]:
        turns = self.answer_turns(conversation)
        done, segments = "", list[Segment]()
        for turn in turns:
            prompt = next(prompts)
            self._require_prefix(done, prompt, conversation, turn, _SPLIT)
            segments.append(Segment(prompt[len(done) :], False))
            full = next(fulls)
            self._require_prefix(prompt, full, conversation, turn, _REGENERATE)
            is_cut = turn == turns[-1] and not conversation.is_finished
            answer = self._answer(full[len(prompt) :], conversation, turn, is_cut=is_cut)
            segments.append(Segment(answer, is_learned(conversation.messages[turn])))
            done = prompt + answer
        return [segment for segment in segments if segment.text]

    def segments_by_turn(self, conversation: Conversation) -> list[list[Segment]]:
        """One list per answer to learn: its prompt as the target would read it, then the answer alone supervised."""
        rows, turns = [], self.answer_turns(conversation)
        for turn in (turn for turn in turns if is_learned(conversation.messages[turn])):
            is_finished = conversation.is_finished or turn != turns[-1]
            part = replace(conversation, messages=conversation.messages[: turn + 1], is_finished=is_finished)
            prompt = self.render(part, turn, for_generation=True)
            full = self.render(part, turn + 1)
            self._require_prefix(prompt, full, conversation, turn, _REGENERATE)
            answer = self._answer(full[len(prompt) :], part, turn, is_cut=not part.is_finished)
            rows.append([segment for segment in (Segment(prompt, False), Segment(answer, True)) if segment.text])
        return rows

    @staticmethod
    def answer_turns(conversation: Conversation) -> list[int]:
        """Indices of the assistant's turns."""
        return [turn for turn, message in enumerate(conversation.messages) if message["role"] == "assistant"]

    def _answer(self, text: str, conversation: Conversation, turn: int, *, is_cut: bool) -> str:
        """What the target wrote of `text`, which is all after the prompt: up to and with the closing token.

        The rest belongs to the next turn.
        """
        message = conversation.messages[turn]
        if isinstance(message.get("tool_calls"), list):
            self._require_calls(text, message, f"{_where(conversation)}, turn {turn + 1}")
        content = message.get("content") or ""
        start = self._place(text, content)
        if start < 0:
            content = content.strip()
            start = self._place(text, content)
        if start < 0:
            raise TemplateRewritesAnswer(
                "the chat template changes the text of an answer",
                f"{_where(conversation)}, turn {turn + 1}",
                f"rendered as {text[:60]!r}, but the data says {content[:60]!r}",
                "put reasoning into `reasoning_content`, or remove the markup that the template rewrites",
            )
        end = start + len(content)
        if not is_cut:
            end += self._closing_length(text[end:])
        elif not content.strip():  # cut off while it thought: what closes the thoughts is the template's
            thoughts = str(message.get("reasoning_content") or "").strip()
            end = text.find(thoughts) + len(thoughts) if thoughts in text else 0
        if message.get("tool_calls") and not is_cut:
            end = max(end, self._last_closing(text))
        if start and not any(message.get(key) for key in ("reasoning_content", "thinking", "tool_calls")):
            self.inserted[text[:start]] += 1
        return text[:end]

    def _place(self, text: str, content: str) -> int:
        """Where `content` begins, -1 where it does not occur: the last place after which a turn is closed (an "n" may
        also occur in inserted think tags); without such a place, the end of `text` or the first one."""
        place = text.rfind(content)
        while place >= 0:
            if self._closing_length(text[place + len(content) :]):
                return place
            place = text.rfind(content, 0, place + len(content) - 1) if place else -1
        return text.rfind(content) if text.rstrip().endswith(content.rstrip()) else text.find(content)

    def _closing_length(self, rest: str) -> int:
        """Characters up to and with the closing token, if nothing but white space stands before it; and with the stop
        token, if that follows at once (Cohere's `<|END_RESPONSE|><|END_OF_TURN_TOKEN|>`)."""
        begun = rest.lstrip()
        token = self._token_at(begun)
        if not token:
            return 0
        at = end = len(token)
        while token and token not in self._stops:
            token = self._token_at(begun[at:])
            at += len(token)
            end = at if token in self._stops else end
        return len(rest) - len(begun) + end

    def _token_at(self, text: str) -> str:
        """The closing token that `text` begins with; empty without one."""
        return next((token for token in self._closing if text.startswith(token)), "")

    def _last_closing(self, text: str) -> int:
        return max((text.rfind(token) + len(token) for token in self._closing if token in text), default=len(text))

    @staticmethod
    def _require_calls(text: str, message: Mapping[str, Any], where: str) -> None:
        """A template without tools would leave an empty answer, from which a draft learns to end at once."""
        rest = text
        for key in ("content", "reasoning_content", "thinking"):  # where the function may be spoken of
            rest = rest.replace(str(message.get(key) or "").strip() or "\0", "")
        for name in filter(None, map(_called, message["tool_calls"])):
            if name not in rest:
                raise TemplateRewritesAnswer(
                    "the chat template leaves out a call of an answer",
                    where,
                    f"the data calls {name}, but the turn is rendered as {text[:60]!r}",
                    "leave out conversations with `tool_calls`: this target's template does not take them",
                )

    @staticmethod
    def _require_prefix(prefix: str, text: str, conversation: Conversation, turn: int, do: str) -> None:
        if text.startswith(prefix):
            return
        same = next(
            (i for i, (a, b) in enumerate(zip(prefix, text, strict=False)) if a != b), min(len(prefix), len(text))
        )
        raise TemplateUnstable(
            "the chat template renders earlier turns differently once a later one is there",
            f"{_where(conversation)}, turn {turn + 1}",
            f"{prefix[same : same + 40]!r} became {text[same : same + 40]!r}: a mask over the whole would not be exact",
            do,
        )


def _called(call: Any) -> str:
    """The function's name, where a call has one."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    return str(function.get("name") or "") if isinstance(function, Mapping) else ""


def _runs_of_one_tools(jobs: list[tuple[Conversation, int]]) -> list[list[tuple[Conversation, int]]]:
    """Neighbours with the same tools: a template gets tools once for a whole batch. Equal ones may differ: keys in
    another order, 1 and true."""
    return [list(run) for _, run in groupby(jobs, key=lambda job: repr(job[0].tools))]


def _where(conversation: Conversation) -> str:
    return f"data file {conversation.source + 1}, record {conversation.line}"
