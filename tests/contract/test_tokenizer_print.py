"""A tokenizer is known by what its ids mean: the same one written by another version is the same one."""

import json
from pathlib import Path
from typing import Any

import pytest

from eyas.contract.tokenizer_print import tokenizer_fingerprint

DOCUMENT: dict[str, Any] = {
    "version": "1.0",
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [{"id": 3, "content": "<s>", "special": True}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
}


def written(path: Path, document: dict[str, Any], **layout: Any) -> str:
    path.write_text(json.dumps(document, **layout))
    return tokenizer_fingerprint(path)


def test_spacing_order_defaults_and_the_spelling_of_merges_do_not_matter(tmp_path: Path):
    other = {
        "model": {"merges": ["a b"], "vocab": {"ab": 2, "b": 1, "a": 0}, "dropout": None},
        "added_tokens": [{"content": "<s>", "id": 3, "lstrip": False}],
    }
    assert written(tmp_path / "a", DOCUMENT, indent=2) == written(tmp_path / "b", other)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {**DOCUMENT["model"], "vocab": {"a": 1, "b": 0, "ab": 2}}},
        {"model": {**DOCUMENT["model"], "merges": []}},
        {"added_tokens": [{"id": 3, "content": "</s>"}]},
    ],
)
def test_another_meaning_of_an_id_is_another_tokenizer(tmp_path: Path, change: dict[str, Any]):
    assert written(tmp_path / "a", DOCUMENT) != written(tmp_path / "b", DOCUMENT | change)


@pytest.mark.parametrize("text", ["{", "[]", '{"model": 3, "added_tokens": []}', '{"model": {"vocab": {"a": 0}}}'])
def test_a_file_of_another_form_is_known_by_its_bytes(tmp_path: Path, text: str):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text(text)
    second.write_text(text + "\n")

    assert tokenizer_fingerprint(first) != tokenizer_fingerprint(second)
