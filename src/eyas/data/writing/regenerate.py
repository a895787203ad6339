"""The target's own answers in place of recorded ones: a draft must learn what its target writes, not another model."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eyas.data.prepare_config import WritingConfig
from eyas.data.text.target_text import TargetText
from eyas.data.writing.answering import Answering, Dialogue, Writes, chunks
from eyas.models.chat_prompt import TemplateFailed
from eyas.records.conversation import NO_TEXT, Conversation, is_no_text, why_no_prompt
from eyas.talk import Talk

_SOME_ANSWER = {"role": "assistant", "content": "Yes."}


def regenerate(
    conversations: Sequence[Conversation],
    text: TargetText,
    writes: Writes,
    config: WritingConfig,
    max_length: int,
    talk: Talk,
) -> tuple[list[list[Dialogue]], Mapping[str, int]]:
    """Each conversation with its user turns kept and answered again, turn by turn.

    A conversation ends where its recorded turns depend on what only the recorded answer said (a tool's result), and
    after an answer that was cut off.

    Args:
        conversations: with user turns (`why_unanswerable`).
        max_length: longest row.

    Returns:
        Dialogues by data file, and what was left out and why.

    Raises:
        TemplateFailed: the template refuses every conversation; told before the target writes anything.
    """
    conversations, refused = _renderable(conversations, text)
    answering = Answering(text, writes, config, max_length)
    temperatures = config.answer_temperature
    dialogues = [
        Dialogue(
            id=f"{c.source + 1}-{c.line}",
            messages=[],
            temperature=temperatures[number % len(temperatures)],
            tools=c.tools,
        )
        for number, c in enumerate(conversations)
    ]
    waiting = [_questions(c.messages) for c in conversations]
    for turn in range(1, max(map(len, waiting), default=0) + 1):
        going = [(d, w) for d, w in zip(dialogues, waiting, strict=True) if d.is_open and len(w) >= turn]
        if not going:
            break
        answering.prepare_next([dialogue for dialogue, _ in going if dialogue.rows])
        for dialogue, questions in going:
            dialogue.messages += questions[turn - 1]
        talk.line(f"turn {turn}: the target answers {len(going)} conversations")
        answering.answer(f"answer-{turn}", [dialogue for dialogue, _ in going])
    return _by_source(conversations, dialogues), answering.dropped + refused


def why_unanswerable(conversation: Conversation) -> str | None:
    """The reason not to ask the target; None if there is none. Prompts without answers are enough."""
    reason = why_no_prompt(conversation.messages)
    if reason is not None and reason != NO_TEXT:
        return reason
    questions = _questions(conversation.messages)
    if any(is_no_text(message) for question in questions for message in question):
        return NO_TEXT
    return None if questions else "no user turn"


def _renderable(conversations: Sequence[Conversation], text: TargetText) -> tuple[list[Conversation], Counter[str]]:
    """Those that the template takes, and how many it refuses, by reason."""
    kept, refused, first = list[Conversation](), Counter[str](), None
    for some in chunks(conversations):
        planned = [_planned(c) for c in some]
        try:
            text.template.render_many(planned, [len(c.messages) for c in planned], for_generation=True)
            kept += some
        except TemplateFailed:
            for conversation, plan in zip(some, planned, strict=True):
                try:
                    text.template.render(plan, len(plan.messages), for_generation=True)
                    kept.append(conversation)
                except TemplateFailed as error:
                    first = first or error
                    refused[f"{error.what} ({error.why[:100]})"] += 1
    if first is not None and not kept:
        raise first
    return kept, refused


def _planned(conversation: Conversation) -> Conversation:
    """What the target will read before its last answer, with a word in place of those before."""
    turns = [turn for question in _questions(conversation.messages) for turn in (*question, _SOME_ANSWER)]
    return replace(conversation, messages=turns[:-1])


def _questions(messages: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Each user turn with the system's before it, up to a tool's result."""
    found, before = list[list[Mapping[str, Any]]](), list[Mapping[str, Any]]()
    for message in messages:
        if message["role"] == "tool":
            break
        if message["role"] != "assistant":
            before.append(message)
        if message["role"] == "user":
            found.append(before)
            before = []
    return found


def _by_source(conversations: Sequence[Conversation], dialogues: Sequence[Dialogue]) -> list[list[Dialogue]]:
    files: list[list[Dialogue]] = [[] for _ in range(1 + max((c.source for c in conversations), default=-1))]
    for conversation, dialogue in zip(conversations, dialogues, strict=True):
        if dialogue.rows:
            files[conversation.source].append(dialogue)
    return files
