"""The Makefile: alone it only tells what there is."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


def make(*arguments: str) -> str:
    # Not as a part of the `make test` that may run this.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    command = ["make", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment).stdout


def test_without_a_target_it_prints_every_target_and_does_nothing_else():
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.M)
    assert targets is not None

    assert [line.split()[:2] for line in make().splitlines()] == [["make", name] for name in targets.group(1).split()]
    assert all(len(line.split(maxsplit=2)) == 3 for line in make().splitlines())
    assert len(make("-n").splitlines()) == 1


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", ".ci/run", ".pre-commit-config.yaml"])
def test_targets_that_are_written_about_are_there(page: str):
    targets = {line.split()[1] for line in make().splitlines()}
    # At the start of a line, in backquotes or as a hook's entry: elsewhere it may be the verb.
    named = set(re.findall(r"(?:^|`|entry: )make ([a-z][a-z-]+)", (ROOT / page).read_text(), re.M))

    assert named
    assert named <= targets


def test_the_workflow_runs_what_any_machine_can_run_and_the_hooks_run_parts_of_it():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["test"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    script = (ROOT / ".ci" / "run").read_text().splitlines()

    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert {hook["entry"] for hook in hooks} <= set(script)
