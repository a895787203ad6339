"""The target's own answers in place of recorded ones: a draft must learn what its target writes, not another model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eyas.data.answering import Answering
from eyas.data.conversation import Conversation
from eyas.data.dialogue import Dialogue
from eyas.data.target_text import TargetText
from eyas.data.target_writer import Writes
from eyas.data.writing_config import WritingConfig
from eyas.talk import Talk


def regenerate(
    conversations: Sequence[Conversation],
    text: TargetText,
    writes: Writes,
    config: WritingConfig,
    max_length: int,
    talk: Talk,
) -> tuple[list[list[Dialogue]], Mapping[str, int]]:
    """Each conversation with its user turns kept and answered anew, turn by turn.

    A conversation ends where its recorded turns depend on what only the recorded answer said (a tool's result), and
    after an answer that was cut off.

    Args:
        conversations: usable ones (`why_unusable`).
        max_length: longest row.

    Returns:
        Dialogues by data file, and what was left out and why.
    """
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
    return _by_source(conversations, dialogues), answering.dropped


def _questions(messages: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The turns before each answer, up to a tool's result."""
    found: list[list[Mapping[str, Any]]] = [[]]
    for message in messages:
        if message["role"] == "tool":
            return found[:-1]
        if message["role"] == "assistant":
            found.append([])
        else:
            found[-1].append(message)
    return found[:-1]


def _by_source(conversations: Sequence[Conversation], dialogues: Sequence[Dialogue]) -> list[list[Dialogue]]:
    files: list[list[Dialogue]] = [[] for _ in range(1 + max((c.source for c in conversations), default=-1))]
    for conversation, dialogue in zip(conversations, dialogues, strict=True):
        if dialogue.rows:
            files[conversation.source].append(dialogue)
    return files
