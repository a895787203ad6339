"""A clone made without Git LFS is told as such by every reader, not as a damaged file."""

from pathlib import Path

import pytest

from drafts import write_draft
from eyas.cli.app import main
from eyas.contract.files.git_lfs import GitLfsPointer
from eyas.contract.files.read_checkpoint import read_checkpoint

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model.bin", "config.json", "model.safetensors.index.json"]
)
def test_a_pointer_is_recognised_whatever_it_stands_for(tmp_path: Path, name: str):
    draft = write_draft(tmp_path / "draft")
    if name.endswith(".bin"):
        (draft / "model.safetensors").unlink()
    (draft / name).write_bytes(POINTER)

    with pytest.raises(GitLfsPointer) as caught:
        read_checkpoint(draft)

    assert name in caught.value.what
    assert f"in {draft}: git lfs pull" in caught.value.do


@pytest.mark.parametrize("command", [["check"], ["header"], ["convert", "--to", "sglang", "--dry-run"]])
def test_every_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]):
    draft = write_draft(tmp_path / "draft")
    (draft / "model.safetensors").write_bytes(POINTER)

    assert main([*command, str(draft)]) == 2
    assert "error[git-lfs-pointer]: model.safetensors is a Git LFS pointer" in capsys.readouterr().err


def test_an_ordinary_file_that_begins_alike_is_not_one(tmp_path: Path):
    draft = write_draft(tmp_path / "draft")
    (draft / "model.safetensors").write_bytes(b"version 2 of something else")
    with pytest.raises(Exception, match="header claims"):
        read_checkpoint(draft)
