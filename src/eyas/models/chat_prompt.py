"""A target's tokenizer, chat template and end-of-text ids, read from files that anyone may have written.

What a template does wrong is reported with the record that it was given.
"""

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eyas.contract.files.json_file import read_json_object
from eyas.errors import EyasError

# Far beyond any context, unless a record itself is as long: 16 characters for each of a million tokens.
_MOST_CHARACTERS = 1 << 24
_MOST_TIMES = 64  # what a record holds
_MOST_SECONDS = 10.0  # for one conversation; a thousand turns take less than one


class TemplateEndless(EyasError):
    """The chat template does not finish: its loops run for more than 10 s with one conversation."""

    code = "template-endless"


class TemplateFailed(EyasError):
    """The template cannot render this conversation."""

    code = "template-failed"


class TokenizerUnloadable(EyasError):
    """The target's folder holds no tokenizer that `transformers` can load."""

    code = "tokenizer-unloadable"


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a Hugging Face folder, or `TokenizerUnloadable`.

    One that is code of its own is not run. transformers would make another one of its vocabulary, with other seams
    between words.
    """
    from transformers import AutoTokenizer

    about = folder / "tokenizer_config.json"
    code = (read_json_object(about) if about.exists() else {}).get("auto_map")
    if isinstance(code, dict) and "AutoTokenizer" in code and not (folder / "tokenizer.json").exists():
        raise _unloadable(folder, "it is code that the model brings along, which eyas does not run")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # files from elsewhere meet a foreign library: any kind comes
        raise _unloadable(folder, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from error


def _unloadable(folder: Path, why: str) -> TokenizerUnloadable:
    return TokenizerUnloadable(
        f"cannot load a tokenizer from {folder}",
        str(folder),
        why,
        (
            "put the target's tokenizer.json and tokenizer_config.json beside its config.json",
            "in `eyas prepare`, give --url of an SGLang or vLLM server of it, which then tokenises",
        ),
    )


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
        TemplateFailed: the template refuses (it wants alternating roles, for instance), or gives what is not a prompt.
    """
    try:
        with ends_within(_MOST_SECONDS):
            text: str = tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=tools,
                tokenize=False,
                add_generation_prompt=for_generation,
                **(options or {}),
            )
    except TimeoutError as error:
        raise TemplateEndless(
            "the chat template does not finish",
            where,
            f"it was stopped after {_MOST_SECONDS:.0f} s with one conversation",
            "correct the loops in the target's chat template",
        ) from error
    except refusals() as error:
        raise _failed(where, f"{type(error).__name__}: {error}") from error
    require_prompt_text(text, (messages, tools), where)
    return text


class _TooLong(BaseException):
    """Not an `Exception`: nothing on its way may take it for a refusal."""


@contextmanager
def ends_within(limit_s: float) -> Iterator[None]:
    """Stop the block's Python code with `TimeoutError` after so long; a single call into C is not interrupted."""
    thread, lock, is_done = ctypes.c_ulong(threading.get_ident()), threading.Lock(), threading.Event()

    def stop() -> None:
        with lock:
            if not is_done.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_TooLong))

    timer = threading.Timer(limit_s, stop)
    timer.daemon = True
    try:
        timer.start()
        yield
        with lock:  # what was sent and has not arrived is taken back
            is_done.set()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)
    except _TooLong:
        raise TimeoutError(f"longer than {limit_s} s") from None
    finally:
        is_done.set()
        timer.cancel()


def require_prompt_text(text: str, record: object, where: str) -> None:
    """Raise `TemplateFailed` where what was rendered of a record is not text, or too long for any tokenizer."""
    if len(text) > _MOST_CHARACTERS and len(text) > _MOST_TIMES * len(str(record)):
        raise _failed(where, f"it renders {len(text)} characters, more than any context holds")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _failed(where, f"it writes half of a surrogate pair, which is not text: {error}") from error


def refusals() -> tuple[type[Exception], ...]:
    """What a template's code raises when it refuses a conversation, and `ends_within` when it goes on for too long."""
    from jinja2 import TemplateError

    of_python = TypeError, LookupError, AttributeError, ValueError, ArithmeticError, RecursionError
    return TemplateError, TimeoutError, *of_python


def _failed(where: str, why: str) -> TemplateFailed:
    return TemplateFailed(
        "the chat template cannot render a conversation",
        where,
        why,
        "correct the record or the template, or give the variable that the template needs",
    )


def stop_ids_of(folder: Path) -> frozenset[int]:
    """End-of-text ids from generation_config.json, else from config.json (a wrapper's text model included); empty when
    none of them names one."""
    for name in ("generation_config.json", "config.json"):
        document = read_json_object(folder / name) if (folder / name).exists() else {}
        for part in (document, document.get("text_config")):
            stated = part.get("eos_token_id") if isinstance(part, dict) else None
            if ids := [i for i in (stated if isinstance(stated, list) else [stated]) if type(i) is int]:
                return frozenset(ids)
    return frozenset()
