"""`eyas header`: one JSON document that reads back, for a person to attach to a report."""

import json
from pathlib import Path

import pytest

from drafts import write_draft
from eyas.cli.app import main
from eyas.contract.files.read_checkpoint import read_checkpoint


def test_the_printed_document_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = write_draft(tmp_path / "draft")
    assert main(["header", str(folder)]) == 0
    text = capsys.readouterr().out
    (tmp_path / "x.json").write_text(text)
    assert set(read_checkpoint(tmp_path / "x.json").tensors) == set(read_checkpoint(folder).tensors)
    assert str(tmp_path) not in text


def test_json_is_one_line_with_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["header", str(write_draft(tmp_path / "draft")), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["schema"] == "eyas.header/1"


def test_a_truncated_file_is_a_usage_error_with_both_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = write_draft(tmp_path / "draft")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1])
    assert main(["header", str(folder)]) == 2
    message = capsys.readouterr().err
    assert "error[file-truncated]" in message
    assert str(len(data)) in message
    assert str(len(data) - 1) in message
