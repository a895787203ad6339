"""A target's tokenizer, chat template and end-of-text ids, read from files that anyone may have written.

What a template does wrong is reported with the record that it was given.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.contract.files.json_file import read_json_object
from eyas.errors import EyasError

# Far beyond any context, unless a record itself is as long: 16 characters for each of a million tokens.
_MOST_CHARACTERS = 1 << 24
_MOST_TIMES = 64  # what a record holds


class TemplateFailed(EyasError):
    """The template cannot render this conversation."""

    code = "template-failed"


class TokenizerUnloadable(EyasError):
    """The target's folder holds no tokenizer that `transformers` can load."""

    code = "tokenizer-unloadable"


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a Hugging Face folder, or `TokenizerUnloadable`."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # files from outside meet a library of others: any kind comes
        raise TokenizerUnloadable(
            f"cannot load a tokenizer from {folder}",
            str(folder),
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            "put the target's tokenizer.json and tokenizer_config.json beside its config.json",
        ) from error


def prompt_ids(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Any, where: str) -> tuple[int, ...]:
    """A conversation under the chat template, ready for the answer, as token ids.

    Raises:
        TemplateFailed: see `rendered`.
    """
    text = rendered(tokenizer, messages, where, tools=tools, for_generation=True)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def rendered(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    where: str,
    *,
    tools: Any,
    for_generation: bool,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Text of the turns.

    Args:
        tokenizer: with a chat template.
        messages: turns.
        where: the record, for a message.
        tools: descriptions of tools for the template, or None.
        for_generation: adds what precedes the target's answer.
        options: further variables for the template.

    Raises:
        TemplateFailed: the template refuses (it wants alternating roles, for instance), or gives what is no prompt.
    """
    try:
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=tools,
            tokenize=False,
            add_generation_prompt=for_generation,
            **(options or {}),
        )
    except refusals() as error:
        raise _failed(where, f"{type(error).__name__}: {error}") from error
    require_prompt_text(text, (messages, tools), where)
    return text


def require_prompt_text(text: str, record: object, where: str) -> None:
    """Raise `TemplateFailed` where what was rendered of a record is no text, or too long for any tokenizer."""
    if len(text) > _MOST_CHARACTERS and len(text) > _MOST_TIMES * len(str(record)):
        raise _failed(where, f"it makes {len(text)} characters of it, more than any context holds")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _failed(where, f"it writes half of a surrogate pair, which is no text: {error}") from error


def refusals() -> tuple[type[Exception], ...]:
    """What a template's code raises when a conversation is not to its liking."""
    from jinja2 import TemplateError

    return TemplateError, TypeError, LookupError, AttributeError, ValueError, ArithmeticError, RecursionError


def _failed(where: str, why: str) -> TemplateFailed:
    return TemplateFailed(
        "the chat template cannot render a conversation",
        where,
        why,
        "correct the record or the template, or give the variable that the template wants",
    )


def stop_ids_of(folder: Path) -> frozenset[int]:
    """End-of-text ids from generation_config.json, else from config.json; empty when neither names one."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        stated = read_json_object(path).get("eos_token_id") if path.exists() else None
        ids = [i for i in (stated if isinstance(stated, list) else [stated]) if type(i) is int]
        if ids:
            return frozenset(ids)
    return frozenset()
