import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from eyas.models.target_folder import (
    TargetIncomplete,
    TargetUnknown,
    download_command,
    resolve_target,
)
from eyas.talk import Silent


def model_folder(folder: Path, weights: bytes = b"w" * 500_000) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def resolve(name: str, cache: Path) -> Path:
    return resolve_target(name, cache=cache, talk=Silent())


def test_a_folder_is_itself(tmp_path: Path):
    folder = model_folder(tmp_path / "m")
    assert resolve(str(folder), tmp_path) == folder


def test_a_folder_that_is_no_model_says_what_it_lacks(tmp_path: Path):
    with pytest.raises(TargetIncomplete, match=r"no config\.json and no \*\.safetensors"):
        resolve(str(tmp_path), tmp_path)


@pytest.mark.parametrize(("name", "do"), [("smollm2-135", "did you mean smollm2-135m?"), ("/no/such/dir", "give a")])
def test_an_unknown_name_is_told_with_the_nearest_alias(tmp_path: Path, name, do):
    with pytest.raises(TargetUnknown) as caught:
        resolve(name, tmp_path)
    assert caught.value.do.startswith(do)


def test_a_hub_id_offline_is_a_missing_environment_not_a_traceback(tmp_path: Path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    arguments = ["prepare", "--target", "nobody/nothing", "--data", "x", "--out", "y"]
    done = subprocess.run(
        [sys.executable, "-m", "eyas", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "error[environment-missing]: cannot get the target nobody/nothing from the Hugging Face hub" in done.stderr
    assert f"{download_command('nobody/nothing', 'FOLDER')} " in done.stderr
    assert "then --target FOLDER" in done.stderr


def test_the_command_that_is_advised_is_one_that_the_hubs_own_tool_takes(tmp_path: Path):
    tool = Path(sys.executable).with_name("hf")
    if not tool.exists():
        pytest.skip("the hub's command line tool is not installed")
    command = shlex.split(download_command("nobody/nothing", str(tmp_path / "m")))
    assert command[0] == "hf"
    # Without a network it gets as far as asking for the files.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([tool, *command[1:]], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, "2 is a usage error"
    assert "No such option" not in done.stderr
