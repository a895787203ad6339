"""Where a turn's words begin and end in a chat template, so that a model can be asked to write them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eyas.data.text.target_text import TargetText
from eyas.errors import EyasError
from eyas.models.chat_prompt import TemplateFailed
from eyas.records.conversation import Conversation

# Letters only: no template trims, escapes or splits it.
_MARK = "Qzeyasuserwordsqz"


class UserSlotUnclear(EyasError):
    """The template does not show where a user turn begins or ends."""

    code = "user-slot-unclear"


@dataclass(frozen=True, slots=True)
class UserSlot:
    """A place for a user turn.

    Attributes:
        before: the rendered text up to it.
        end_id: the special token that closes the turn; None where the template has none.
        end_text: the text that closes it then.
    """

    before: str
    end_id: int | None
    end_text: str


def user_slots(text: TargetText, conversations: Sequence[Conversation]) -> list[UserSlot]:
    """The place of the next user turn after each conversation, which may be empty or hold a system prompt only.

    Raises:
        UserSlotUnclear: the template leaves the user's words out, repeats them, or closes their turn with nothing.
    """
    marked = [replace(c, messages=[*c.messages, {"role": "user", "content": _MARK}]) for c in conversations]
    return [_slot(rendered, text) for rendered in text.template.render_many(marked, [len(c.messages) for c in marked])]


def answer_end(text: TargetText) -> frozenset[int]:
    """The special token that the template puts after an answer, if it does."""
    words = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": _MARK}]
    try:
        rendered = text.template.render(Conversation(messages=words, source=0, line=0), 2)
    except TemplateFailed:
        return frozenset()
    token = _token_at(rendered.partition(_MARK)[2].strip(), text)
    return frozenset() if token is None else frozenset([token[1]])


def _slot(rendered: str, text: TargetText) -> UserSlot:
    before, mark, after = rendered.partition(_MARK)
    if not mark or _MARK in after:
        raise _unclear(f"the rendered text holds a user's words {rendered.count(_MARK)} times")
    after = after.strip()
    token = _token_at(after, text)
    if token is None and not after:
        raise _unclear("nothing closes a user turn, so a target would not know where to end it")
    return UserSlot(before=before, end_id=token[1] if token else None, end_text=token[0] if token else after)


def _token_at(after: str, text: TargetText) -> tuple[str, int] | None:
    """The special token that `after` begins with, and its id."""
    for token in sorted(text.closing, key=len, reverse=True):
        if after.startswith(token):
            (token_id,) = text.tokenizer(token, add_special_tokens=False)["input_ids"]
            return token, token_id
    return None


def _unclear(why: str) -> UserSlotUnclear:
    return UserSlotUnclear(
        "the chat template does not show where a user turn begins and ends",
        "chat template",
        why,
        "give prompts with --data and --regenerate instead of --self-chat",
    )
