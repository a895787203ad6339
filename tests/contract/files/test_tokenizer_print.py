"""A tokenizer is known by what its ids mean: the same one written by another version is the same one."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from drafts import write_draft, write_target
from eyas.contract.check.check import check
from eyas.contract.files.header_dump import dump_document
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint
from eyas.contract.files.tokenizer_print import tokenizer_fingerprint
from eyas.contract.spec.target_spec import read_target

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


def pair(folder: Path, document: dict[str, Any], **recorded: str) -> tuple[Path, Path]:
    """A draft made for the target beside it, whose tokenizer is `document`; `recorded` is what eyas.json says else."""
    draft, target = write_draft(folder / "draft"), write_target(folder / "target")
    (target / "tokenizer.json").write_text(json.dumps(document))
    made_for = read_target(target).as_document()
    (draft / "eyas.json").write_text(json.dumps({"schema": "eyas.draft/1", "target": {**made_for, **recorded}}))
    return draft, target


def says_that_tokenizers_differ(draft: Path, target: Path) -> bool:
    report = check(read_checkpoint(draft), read_target_checkpoint(target), [])
    return "tokenizer-differs" in {finding.code for finding in report.findings}


def test_the_same_bytes_are_the_same_tokenizer_whatever_was_recorded_of_their_meaning(tmp_path: Path):
    assert not says_that_tokenizers_differ(*pair(tmp_path, DOCUMENT, tokenizer_hash="of another rule"))


def test_other_bytes_are_the_same_tokenizer_if_they_mean_the_same_and_another_one_if_not(tmp_path: Path):
    draft, target = pair(tmp_path, DOCUMENT)

    (target / "tokenizer.json").write_text(json.dumps(DOCUMENT, indent=4))
    assert not says_that_tokenizers_differ(draft, target)

    (target / "tokenizer.json").write_text(json.dumps(DOCUMENT | {"added_tokens": []}))
    assert says_that_tokenizers_differ(draft, target)


def test_a_draft_that_records_no_bytes_is_still_compared_by_meaning(tmp_path: Path):
    draft, target = pair(tmp_path, DOCUMENT)
    sidecar = json.loads((draft / "eyas.json").read_text())
    del sidecar["target"]["tokenizer_file_hash"]
    (draft / "eyas.json").write_text(json.dumps(sidecar))
    assert not says_that_tokenizers_differ(draft, target)


def test_check_does_not_parse_a_tokenizer_whose_bytes_it_knows(tmp_path: Path):
    vocab = {f"token {i}": i for i in range(100_000)}
    draft, target = pair(tmp_path, {"added_tokens": [], "model": {"type": "BPE", "vocab": vocab, "merges": []}})
    says_that_tokenizers_differ(draft, target)  # what is imported and kept from now on is not the file's

    tracemalloc.start()
    says_that_tokenizers_differ(draft, target)
    known = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    (target / "tokenizer.json").write_bytes((target / "tokenizer.json").read_bytes() + b"\n")
    says_that_tokenizers_differ(draft, target)
    unknown = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert known < 10 << 20, "a pass over the bytes, in slices of 4 MiB"
    assert unknown > 20 << 20, "a parsed one shows up here, or this test could not fail"


def test_a_dump_of_a_target_has_both_fingerprints(tmp_path: Path):
    draft, target = pair(tmp_path, DOCUMENT)
    dump = tmp_path / "target.json"
    dump.write_text(json.dumps(dump_document(read_checkpoint(target))))

    assert read_target(dump).as_document() == read_target(target).as_document()
    assert not says_that_tokenizers_differ(draft, dump)
    # the same tokenizer in other bytes: the dump has no file to parse
    (target / "tokenizer.json").write_text(json.dumps(DOCUMENT, indent=4))
    dump.write_text(json.dumps(dump_document(read_checkpoint(target))))
    assert not says_that_tokenizers_differ(draft, dump)
