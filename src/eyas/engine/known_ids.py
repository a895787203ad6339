"""Checks prompts before anything is computed: an id outside the vocabulary would read foreign memory."""

from collections.abc import Iterable
from operator import index

from eyas.errors import EyasError


class PromptOutsideVocabulary(EyasError):
    """A prompt has an id that is not a token of the target."""

    code = "prompt-outside-vocabulary"


def require_known_ids(ids: Iterable[int], vocab_size: int, where: str) -> tuple[int, ...]:
    """The ids as plain integers.

    Args:
        ids: of a prompt; integers of any library.
        vocab_size: rows of the target's embedding.
        where: whose prompt, for the message.

    Raises:
        PromptOutsideVocabulary: an id is not a whole number in [0, `vocab_size`).
    """
    try:
        known = tuple(map(index, ids))
    except TypeError as error:
        raise _outside("holds something that is not a token id", where, str(error), "give whole numbers") from error
    wrong = next((i for i in known if not 0 <= i < vocab_size), None)
    if wrong is not None:
        raise _outside(
            f"holds token id {wrong}",
            where,
            f"the target has the ids 0 … {vocab_size - 1}: its tokenizer belongs to another model, or has added"
            " tokens for which its embedding has no rows",
            "use the tokenizer that the target was trained with",
        )
    return known


def _outside(what: str, where: str, why: str, do: str) -> PromptOutsideVocabulary:
    return PromptOutsideVocabulary(f"the prompt {what}", where, why, do)
