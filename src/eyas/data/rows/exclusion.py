"""Prompts that must not be learned: benchmark prompts, found again by runs of words wherever they stand in a turn."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.data.text.chat_template import Tokenizer
from eyas.records.conversation import Conversation
from eyas.records.data_files import DataMalformed, data_records
from eyas.records.record_forms import PROMPT_FIELDS, conversation_of

# Long enough not to be shared by chance, short enough to find an edited copy.
NUM_WORDS = 8
# Thai, Lao, Burmese, Khmer, kana, Chinese characters: nothing stands between their words.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_UNSPACED_ONE = re.compile(f"[{_UNSPACED}]")
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))  # soft hyphens, joiners and the like


class Exclusion:
    """The runs of `NUM_WORDS` words (all of them, where a prompt is shorter) of the prompts to keep out.

    Words are compared in lower case, without what stands between them: an edited copy may have other commas. One text
    written in two ways (accents apart, full-width letters, soft hyphens) is the same. In scripts without spaces two
    characters count as a word.
    """

    def __init__(self, prompts: Sequence[str]) -> None:
        self._long: set[tuple[str, ...]] = set()
        self._beginnings: set[tuple[str, ...]] = set()  # of the runs: most turns hold none, and that is quickly seen
        self._short: set[tuple[str, ...]] = set()
        for prompt in prompts:
            words = _words(prompt)
            runs = _runs(words)
            self._long.update(runs)
            if words and not runs:
                self._short.add(words)
        self._beginnings.update(run[:3] for run in self._long)

    @classmethod
    def read(cls, paths: Sequence[Path], tokenizer: Tokenizer) -> "Exclusion":
        """The prompts in data files: conversations (their user turns), evaluation rows, or benchmark files.

        Raises:
            DataMalformed: a line without any prompt in it.
        """
        return cls([prompt for path in paths for prompt in _prompts(path, tokenizer)])

    @property
    def reason(self) -> str:
        """What is said of a record left out."""
        return f"shares {NUM_WORDS} words in a row with an excluded prompt"

    def holds(self, conversation: Conversation) -> bool:
        """A user turn contains (or is) one of the prompts."""
        if not self._long and not self._short:
            return False
        turns = [str(m.get("content") or "") for m in conversation.messages if m.get("role") == "user"]
        return any(self._holds(_words(turn)) for turn in turns)

    def _holds(self, words: tuple[str, ...]) -> bool:
        if words in self._short:
            return True
        may_hold = not self._beginnings.isdisjoint(zip(words, words[1:], words[2:], strict=False))
        return may_hold and not self._long.isdisjoint(_runs(words))


def num_unspaced(text: str) -> int:
    """Characters of scripts that put no space between words."""
    return 0 if text.isascii() else len(_UNSPACED_ONE.findall(text))


def _words(text: str) -> tuple[str, ...]:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_INVISIBLE)).casefold()
    lower = text.lower()
    return tuple(_WORD.findall(lower) or lower.split())


def _runs(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The run of `NUM_WORDS` words from each word on; shorter at the end."""
    if "".join(words).isascii():
        return [words[i : i + NUM_WORDS] for i in range(len(words) - NUM_WORDS + 1)]
    halves = [1 if num_unspaced(word) else 2 for word in words]
    runs, end, length = list[tuple[str, ...]](), 0, 0
    for begin in range(len(words)):
        while length < 2 * NUM_WORDS and end < len(words):
            length, end = length + halves[end], end + 1
        if length < 2 * NUM_WORDS:
            break
        runs.append(words[begin:end])
        length -= halves[begin]
    return runs


def _prompts(path: Path, tokenizer: Tokenizer) -> Iterator[str]:
    for number, record in data_records(path):
        try:
            prompts = _prompts_of(record, tokenizer)
        except (ValueError, TypeError, OverflowError) as error:  # the last two: `prompt_ids` that are not token ids
            raise DataMalformed(
                f"line {number} of {path.name} does not hold a prompt",
                f"{path}:{number}",
                str(error),
                f"give `messages`, `prompt_ids` or one of {', '.join(PROMPT_FIELDS)} on each line",
            ) from error
        yield from prompts


def _prompts_of(record: Any, tokenizer: Tokenizer) -> list[str]:
    if isinstance(record, Mapping):
        if any(record.get(name) for name in ("messages", "conversations")):
            return _user_turns(record)
        if "prompt_ids" in record:
            return _stretches(tokenizer.decode(record["prompt_ids"], skip_special_tokens=False), tokenizer)
        for field in PROMPT_FIELDS:
            value = record.get(field)
            if isinstance(value, str):
                return [value]
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                return list(value)
    return _user_turns(record)


def _user_turns(record: Any) -> list[str]:
    conversation = conversation_of(record, 0, 0)
    return [str(m.get("content") or "") for m in conversation.messages if m.get("role") == "user"]


def _stretches(text: str, tokenizer: Tokenizer) -> list[str]:
    """A rendered prompt in stretches between special tokens. A system prompt among them excludes nothing by itself:
    only user turns are compared."""
    for token in tokenizer.all_special_tokens:
        text = text.replace(token, "\0")
    return [part for part in text.split("\0") if part.strip()]
