"""Each launch has its own folder; secrets do not get into it."""

import json
import os
import re
from pathlib import Path

import pytest

from eyas.serve.facts.run_folder import (
    REDACTED,
    RunFolder,
    RunFolderUnreadable,
    read_document,
    redact_command,
    redact_environment,
)


def test_two_launches_in_one_second_do_not_meet(tmp_path: Path):
    first, second = (RunFolder.create(tmp_path, engine="sglang", now=1000.0) for _ in range(2))

    assert first.path != second.path
    assert first.path.name.endswith("sglang-1")


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "MY_PASSWORD",
        "WANDB_API_KEY",
        "PROXY_AUTHORIZATION",
        "SSH_PASSPHRASE",
        "MYSQL_PWD",
        "CI_TOKENS",
        "SESSION_COOKIE",
        "MINIO_ACCESSKEY",
        "BEARER",
        "my_client_secret",
    ],
)
def test_secrets_of_the_environment_are_redacted(name: str):
    assert redact_environment({name: "sk-1234"}) == {name: REDACTED}


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "PATH", "PWD", "OLDPWD", "KEYBOARD"]
)
def test_what_is_no_secret_stays(name: str):
    assert redact_environment({name: "x"}) == {name: "x"}


def test_a_login_in_a_proxys_url_is_redacted():
    assert redact_environment({"http_proxy": "http://me:pw@proxy:80"})["http_proxy"] == f"http://{REDACTED}@proxy:80"


def test_keys_on_the_command_line_are_redacted_in_both_spellings():
    command = ["python", "--api-key", "sk-1", "--admin-api-key=sk-2", "--max-num-batched-tokens", "10"]

    assert redact_command(command) == [
        "python",
        "--api-key",
        REDACTED,
        f"--admin-api-key={REDACTED}",
        "--max-num-batched-tokens",
        "10",
    ]


def test_the_launch_file_holds_no_secret_and_is_read_back(tmp_path: Path):
    folder = RunFolder.create(tmp_path, engine="vllm")
    folder.write_launch(["vllm", "--api-key", "sk-9"], {"HF_TOKEN": "hf_9"}, engine="vllm", version="0.32.0")

    assert "sk-9" not in folder.launch_path.read_text()
    assert "hf_9" not in folder.launch_path.read_text()
    assert RunFolder.open(folder.path).read_launch()["version"] == "0.32.0"


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(RunFolderUnreadable):
        RunFolder.open(tmp_path)


def test_events_are_appended_as_lines(tmp_path: Path):
    folder = RunFolder.create(tmp_path, engine="vllm")
    folder.append_event({"n": 1})
    folder.append_event({"n": 2})

    assert [json.loads(line)["n"] for line in folder.events_path.read_text().splitlines()] == [1, 2]


def test_stacks_never_overwrite_each_other(tmp_path: Path):
    folder = RunFolder.create(tmp_path, engine="vllm")

    assert folder.write_stacks("a").name == "stacks-1.txt"
    assert folder.write_stacks("b").name == "stacks-2.txt"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://hub/x?token=hf_1&b=2", f"https://hub/x?token={REDACTED}&b=2"),
        ("https://hub/x?b=2&X-Amz-Signature=abc#f", f"https://hub/x?b=2&X-Amz-Signature={REDACTED}#f"),
        ("Authorization: Bearer sk-1", f"Authorization: Bearer {REDACTED}"),
        ("http://me:pw@proxy:80/?api_key=1", f"http://{REDACTED}@proxy:80/?api_key={REDACTED}"),
    ],
)
def test_secrets_inside_other_values_are_redacted(value: str, shown: str):
    assert redact_environment({"EXTRA": value}) == {"EXTRA": shown}
    assert redact_command(["x", value]) == ["x", shown]


@pytest.mark.parametrize("what", ["a pipe", "a folder", "a device", "deep", "a list"])
def test_what_stands_in_the_place_of_a_document_is_none(tmp_path: Path, what: str):
    path = tmp_path / "last.json"
    if what == "a pipe":
        os.mkfifo(path)  # reading it would wait for its writer for ever
    elif what == "a folder":
        path.mkdir()
    elif what == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text("[" * 100_000 if what == "deep" else "[1]")

    assert read_document(path) == {}


def test_the_run_folder_holds_no_byte_that_a_terminal_obeys(tmp_path: Path):
    foreign = "\x1b]0;title\x07 \x1b]52;c;aGk=\x07 \x1bc \x9b31m \u202e"
    folder = RunFolder.create(tmp_path, engine="sglang")
    folder.write_document("last.json", {"reason": foreign})
    folder.append_event({"text": foreign})
    folder.write_stacks(foreign)
    folder.write_launch([foreign], {}, engine="sglang", version=None)

    for path in folder.path.iterdir():
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", path.read_text()), path
    assert read_document(folder.path / "last.json") == {"reason": foreign}
