"""`--quantize`: refused by name where it cannot be had, and part of what identifies written texts."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from byte_tokenizer import save_target_with
from eyas.bench.bench_config import BenchConfig, BenchConfigInvalid
from eyas.cli.app import main
from eyas.data.prepare_config import WritingConfig
from eyas.data.writing.answering import writer_fingerprint
from eyas.errors import ExitCode

has_torchao = importlib.util.find_spec("torchao") is not None


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_with(tmp_path_factory.mktemp("quantize") / "target")


@pytest.mark.skipif(has_torchao, reason="torchao is installed")
def test_prepare_says_what_is_missing(target, tmp_path, capsys):
    arguments = ["--target", str(target), "--out", str(tmp_path / "rows"), "--self-chat", "1", "--device", "cpu"]
    assert main(["prepare", *arguments, "--quantize", "int8"]) == ExitCode.ENVIRONMENT
    assert "pip install 'eyas[quantise]'" in capsys.readouterr().err


def test_a_peer_with_whole_weights_is_no_peer():
    BenchConfig(quantize="int8")
    with pytest.raises(BenchConfigInvalid, match="none with --quantize"):
        BenchConfig(quantize="int8", peer="transformers")


def test_texts_of_a_quantised_target_are_another_target_s(target):
    whole = WritingConfig(self_chat=1, device="cpu")
    assert writer_fingerprint(target, whole) != writer_fingerprint(target, replace(whole, quantize="int8"))
    assert writer_fingerprint(target, whole) == writer_fingerprint(target, replace(whole, max_batch=3))


@pytest.mark.skipif(not has_torchao, reason="torchao is not installed")
def test_prepare_writes_with_a_quantised_target(target, tmp_path, capsys):
    arguments = ["--target", str(target), "--out", str(tmp_path / "rows"), "--self-chat", "4", "--device", "cpu"]
    limits = ["--max-answer-tokens", "8", "--max-user-tokens", "8", "--min-user-words", "0"]
    main(["prepare", *arguments, *limits, "--quantize", "int8"])
    assert "the matrices of the layers are int8" in capsys.readouterr().err
