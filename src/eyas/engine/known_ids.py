"""Prompts before anything is computed of them: an id that a target does not have reads memory that is not its own."""

from collections.abc import Iterable
from operator import index

from eyas.errors import EyasError


class PromptOutsideVocabulary(EyasError):
    """A prompt holds what is no token of the target."""

    code = "prompt-outside-vocabulary"


def require_known_ids(ids: Iterable[int], vocab_size: int, where: str) -> tuple[int, ...]:
    """The ids as plain integers.

    Args:
        ids: of a prompt; integers of any library.
        vocab_size: rows of the target's embedding.
        where: whose prompt, for the message.

    Raises:
        PromptOutsideVocabulary: an id is no whole number, below 0, or `vocab_size` and more.
    """
    try:
        known = tuple(map(index, ids))
    except TypeError as error:
        raise _outside("holds what is no token id", where, str(error), "give whole numbers") from error
    wrong = next((i for i in known if not 0 <= i < vocab_size), None)
    if wrong is not None:
        raise _outside(
            f"holds token id {wrong}",
            where,
            f"the target has the ids 0 … {vocab_size - 1}: its tokenizer does not belong to it, or knows added tokens"
            " for which its embedding has no rows",
            "use the tokenizer that the target was trained with",
        )
    return known


def _outside(what: str, where: str, why: str, do: str) -> PromptOutsideVocabulary:
    return PromptOutsideVocabulary(f"the prompt {what}", where, why, do)
