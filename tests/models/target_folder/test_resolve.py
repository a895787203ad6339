import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from eyas.contract.files.git_lfs import GitLfsPointer
from eyas.contract.files.json_file import FileUnreadable
from eyas.errors import EnvironmentMissing
from eyas.models.target_folder import (
    TargetIncomplete,
    TargetUnknown,
    resolve_target,
    resolve_target_headers,
)
from eyas.models.target_folder.hub_snapshot import download_command, hub_headers
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
    arguments = ["prepare", "--target", "nobody/nothing", "--self-chat", "3", "--out", "y"]
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


@pytest.mark.parametrize("name", ["./tinny", "../tinny", "~/tinny", "models/of/tinny", "tinny/", "tiny/confg.json"])
def test_what_is_written_like_a_path_is_never_a_question_to_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # asked, it would be an EnvironmentMissing
    for resolve_any in (resolve_target, resolve_target_headers):
        with pytest.raises(TargetUnknown, match="there is no folder or file"):
            resolve_any(name, cache=tmp_path, talk=Silent())


def test_a_mistyped_path_is_told_what_is_there_instead(tmp_path: Path):
    model_folder(tmp_path / "tiny")
    with pytest.raises(TargetUnknown, match="has tiny;"):
        resolve(str(tmp_path / "tinny"), tmp_path)


def test_headers_are_known_by_a_config_alone_and_a_run_wants_weights(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    for given in (tmp_path, tmp_path / "config.json"):
        assert resolve_target_headers(str(given), cache=tmp_path, talk=Silent()) == given
        with pytest.raises(TargetIncomplete):
            resolve(str(given), tmp_path)


def test_a_clone_without_its_weights_is_told_before_anything_is_loaded(tmp_path: Path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    with pytest.raises(GitLfsPointer, match="git lfs pull"):
        resolve(str(model_folder(tmp_path / "m", weights=pointer)), tmp_path)


def test_weights_that_are_a_pipe_are_not_waited_for(tmp_path: Path):
    weights = model_folder(tmp_path / "m") / "model.safetensors"
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(FileUnreadable, match="not a regular file"):
        resolve(str(weights.parent), tmp_path)


def cached_snapshot(cache: Path, files: dict[str, bytes]) -> Path:
    """The model o/n as huggingface_hub leaves it in its cache."""
    snapshot = cache / "models--o--n" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (cache / "models--o--n" / "refs").mkdir()
    (cache / "models--o--n" / "refs" / "main").write_text("0" * 40)
    for name, data in files.items():
        (snapshot / name).write_bytes(data)
    return snapshot


INDEX = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'


@pytest.mark.parametrize(
    "files", [{}, {"model.safetensors.index.json": INDEX, "model-00001-of-00002.safetensors": b""}]
)
def test_a_cache_with_a_part_of_a_model_serves_its_headers_and_is_no_model(tmp_path: Path, monkeypatch, files):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot = cached_snapshot(tmp_path, {"config.json": b"{}", **files})
    assert hub_headers("o/n", Silent()) == snapshot / "config.json"
    with pytest.raises(EnvironmentMissing, match="cannot get the target o/n"):
        resolve("o/n", tmp_path)


def test_a_cached_model_is_used_whole_and_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot = cached_snapshot(tmp_path, {"config.json": b"{}", "model.safetensors": b"w"})
    assert resolve("o/n", tmp_path) == snapshot
    assert hub_headers("o/n", Silent()) == snapshot


def test_only_a_run_fetches_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hub, asked = pytest.importorskip("huggingface_hub"), []

    def download(name: str, *, allow_patterns: list[str], local_files_only: bool = False) -> str:
        if local_files_only:
            raise OSError("not cached")
        asked.append(allow_patterns)
        (tmp_path / "config.json").write_text("{}")
        if "*.safetensors" in allow_patterns:
            (tmp_path / "model.safetensors").write_bytes(b"w")
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert hub_headers("o/n", Silent(), ask_hub=False) is None
    assert hub_headers("o/n", Silent()) == tmp_path / "config.json"
    resolve("o/n", tmp_path)
    assert [any("safetensors" in pattern for pattern in patterns) for patterns in asked] == [False, True]


def test_without_the_hubs_library_a_hub_id_is_a_missing_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for resolve_any in (resolve_target, resolve_target_headers):
        with pytest.raises(EnvironmentMissing, match="pip install huggingface_hub"):
            resolve_any("o/n", cache=tmp_path, talk=Silent())
