"""A tokenizer for the stub models: one letter an id, a space before none."""

from typing import Any

from eyas.chat.prompt_reader import PromptReader
from eyas.data.text.chat_template import ChatTemplate

LETTERS = "abcdefghijklm"  # 13, as the stubs have ids


class LetterTokenizer:
    """Chats as letters: a turn is the letters of its role's first letter and of its text; others become `a`."""

    def __init__(self) -> None:
        self.all_special_tokens: list[str] = []

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        if conversation[0]["role"] == "system" and conversation[0]["content"] == "refuse":
            raise ValueError("System role not supported")
        return "".join(f"{m['role'][0]}{m['content']}" for m in conversation) + "m"

    def __call__(self, text: Any, **options: Any) -> Any:
        return {"input_ids": self._ids(text) if isinstance(text, str) else [self._ids(t) for t in text]}

    def decode(self, token_ids: Any, **options: Any) -> str:
        return "".join(LETTERS[i] for i in token_ids)

    def _ids(self, text: str) -> list[int]:
        return [max(0, LETTERS.find(letter)) for letter in text]


def letter_reader(end_ids: frozenset[int] = frozenset(), context: int | None = None, *, is_raw: bool = False):
    tokenizer = LetterTokenizer()
    template = None if is_raw else ChatTemplate(tokenizer, (), {})
    return PromptReader(tokenizer=tokenizer, template=template, end_ids=end_ids, context=context)
