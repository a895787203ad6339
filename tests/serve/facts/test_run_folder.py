"""Each launch has its own folder; secrets do not get into it."""

import json
from pathlib import Path

import pytest

from eyas.serve.facts.run_folder import REDACTED, RunFolder, RunFolderUnreadable, redact_command, redact_environment


def test_two_launches_in_one_second_do_not_meet(tmp_path: Path):
    first, second = (RunFolder.create(tmp_path, engine="sglang", now=1000.0) for _ in range(2))

    assert first.path != second.path
    assert first.path.name.endswith("sglang-1")


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "WANDB_API_KEY"]
)
def test_secrets_of_the_environment_are_redacted(name: str):
    assert redact_environment({name: "sk-1234"}) == {name: REDACTED}


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "PATH"])
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
