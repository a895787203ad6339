"""Fingerprint of a tokenizer by what its ids mean, not by how its file is written.

Each version of `tokenizers` writes the same tokenizer into other bytes (order, defaults, spacing), and a target that
was saved again is still the same target.
"""

import json
from pathlib import Path
from typing import Any

from eyas.records.fingerprint import of_file, of_json


def tokenizer_fingerprint(path: Path) -> str:
    """Of vocabulary, merges and added tokens in a tokenizer.json; of the bytes where the file has no such parts.

    How text is split before (normalizer, pre-tokenizer) is not in it: rows and drafts know tokens by their ids.
    """
    try:
        document = json.loads(path.read_bytes())
        model = document["model"]
        parts = [
            _vocabulary(model["vocab"]),
            _merges(model.get("merges") or []),
            _added(document["added_tokens"] or []),
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return of_file(path)
    return of_json(parts)


def _vocabulary(vocab: Any) -> list[Any]:
    """Tokens by id; a unigram model lists [token, score] in the order of ids."""
    return sorted(vocab.items(), key=lambda item: item[1]) if isinstance(vocab, dict) else list(vocab)


def _merges(merges: list[Any]) -> list[str]:
    """In order; written as "a b" by old versions and as ["a", "b"] by new ones."""
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _added(tokens: list[Any]) -> list[Any]:
    return sorted((token["id"], token["content"]) for token in tokens)
