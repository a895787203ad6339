"""What kinds of rows there are hardly any of: a draft accepts less on text that it has not seen."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from eyas.data.text.tokenise import TokenRow

_LONG_PROMPT = 512  # tokens
_FEW = 0.01  # share of the rows
_LEAST_ROWS = 100  # fewer tell nothing
_MOST_TEXTS = 2000  # rows whose text is looked at
_DIGITS = 0.05  # share of an answer's characters, from which it calculates


def turns_of(row: TokenRow) -> int:
    """Stretches of supervised tokens: answers."""
    flags = (False, *row.is_supervised)
    return sum(now and not before for before, now in pairwise(flags))


def missing_kinds(rows: Sequence[TokenRow], texts: Sequence[str]) -> list[str]:
    """Names of the kinds of which there are hardly any.

    Args:
        rows: all, or a sample.
        texts: decoded rows, of the same or another sample.
    """
    by_row: Mapping[str, Callable[[TokenRow], bool]] = {
        f"prompts of {_LONG_PROMPT} tokens or more": lambda row: row.is_supervised.index(True) >= _LONG_PROMPT,
        "conversations of several turns": lambda row: turns_of(row) > 1,
    }
    by_text: Mapping[str, Callable[[str], bool]] = {
        "code": lambda text: "```" in text,
        "calculations": lambda text: sum(map(str.isdigit, text)) > _DIGITS * max(1, len(text)),
    }
    few = [name for name, is_one in by_row.items() if sum(map(is_one, rows)) < _FEW * len(rows)]
    return few + [name for name, is_one in by_text.items() if sum(map(is_one, texts)) < _FEW * len(texts)]


def lengths(rows: Sequence[TokenRow]) -> str:
    """How long prompts and answers are: "prompts of 9 … 431 tokens (median 61), answers of 2 … 320 (median 190)"."""
    prompts = sorted(row.is_supervised.index(True) for row in rows)
    answers = sorted(sum(row.is_supervised) for row in rows)
    middle = len(rows) // 2
    return (
        f"prompts of {prompts[0]} … {prompts[-1]} tokens (median {prompts[middle]}), answers of {answers[0]} …"
        f" {answers[-1]} (median {answers[middle]})"
    )


def sample(num_rows: int) -> range | None:
    """Numbers of the rows to look at, evenly spread; None where there are too few to tell."""
    return None if num_rows < _LEAST_ROWS else range(0, num_rows, -(-num_rows // _MOST_TEXTS))
