"""Many texts to token ids and back in one call: what a tokenizer does one by one, without its cost per text."""

from collections.abc import Sequence
from typing import Any

from eyas.data.chat_template import Tokenizer


def encode_many(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text; nothing is added, cut or padded."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if not texts:
        return []
    if backend is None:
        ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids
    backend.no_truncation()  # a tokenizer.json may come with either
    backend.no_padding()
    return [encoded.ids for encoded in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def normalised(tokenizer: Tokenizer, text: str) -> str:
    """What the tokenizer makes of a text before it looks for tokens: Qwen's composes accents (NFC)."""
    normalizer: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    return text if normalizer is None else str(normalizer.normalize_str(text))


def decode_many(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    """The text of each row of ids, special tokens in it."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [tokenizer.decode(r, skip_special_tokens=False, clean_up_tokenization_spaces=False) for r in rows]
    texts: list[str] = backend.decode_batch([list(row) for row in rows], skip_special_tokens=False)
    return texts
