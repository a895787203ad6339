"""The stress pair does what it is for: nothing of its draft can be wrong without a cost in accept length.

A wrong emulation, and a wrong engine, therefore show in counts (tests/parity/test_served_counts.py,
tests/real_engines/test_vllm_cpu_accepts.py).
"""

from dataclasses import replace

import pytest
import torch

import stress_pair
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import read_target
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import place
from eyas.models.target import LiveStates, Target
from eyas.parity.signatures import signatures
from eyas.replay.figures import figures_of
from eyas.replay.infer import THETAS
from eyas.replay.replay import replay_states
from eyas.replay.states import KeptStates
from eyas.talk import Silent

K, COST = 5, 0.2
CPU = place("float32", "cpu")
# Switches that no single key turns on: each is (what, the spec that an engine would compute).
MORE_SWITCHES = {
    "half of each head rotated": lambda s: replace(s, rope=replace(s.rope, partial_rotary_factor=0.5)),
    "RoPE scaled": lambda s: replace(s, rope=replace(s.rope, scaling={"rope_type": "linear", "factor": 2.0})),
    "a window of 16": lambda s: replace(s, sliding_window=16),
    "norms of queries and keys": lambda s: replace(s, qk_norm=True),
    "default boundaries": lambda s: replace(s, aux_boundaries=(2, 3, 4)),
}
# Wrong and nearly without a cost, and why that is no gap in the proof.
HARMLESS = {
    "norm over all states": (
        lambda s: replace(s, aux_norm="over-concat"),
        "with weights of one it scales g, and hidden_norm takes the scale away; with its own weights it is a tensor",
    ),
    "norm of each state": (
        lambda s: replace(s, aux_norm="per-state"),
        "likewise, but for the three scales between the states",
    ),
    "gelu": (lambda s: replace(s, activation="gelu"), "near silu; vLLM refuses it, SGLang runs silu in its place"),
    "another eps": (lambda s: replace(s, rms_norm_eps=1e-6), "the states are far from zero"),
}


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(stress_pair.TARGET, CPU)


@pytest.fixture(scope="module")
def states(target) -> KeptStates:
    return KeptStates(LiveStates(target))


def the_draft(target, folder=stress_pair.DRAFT) -> Eagle3Draft:
    spec = read_target(stress_pair.TARGET)
    return load_draft(folder, CPU, target_spec=spec, target_embedding=target.parts.embedding)


def accept_length(states, draft, num_draft_tokens: int = K) -> float:
    results = replay_states(states, draft, stress_pair.prompts(), num_draft_tokens, Silent(), batch_tokens=4096)
    return figures_of(results, num_draft_tokens).accept_length


def read_as(draft: Eagle3Draft, spec: DraftSpec) -> Eagle3Draft:
    other = Eagle3Draft(spec)
    other.load_state_dict(draft.state_dict(), strict=False)  # norms that it adds stay at one
    return other.eval()


def test_it_is_what_it_is_said_to_be(target, states):
    draft = the_draft(target)
    norms = torch.cat([p.flatten() for n, p in draft.named_parameters() if "norm" in n])

    assert sum(path.stat().st_size for path in stress_pair.FOLDER.rglob("*") if path.is_file()) < 5 << 20
    assert norms.min() < 0.35
    assert norms.max() > 1.9
    assert draft.spec.embedding == "own"
    assert draft.spec.has_vocab_map
    assert draft.spec.aux_boundaries == (2, 4, 6) != (2, target.num_layers // 2, target.num_layers - 3)
    assert not torch.equal(draft.d2t, torch.full_like(draft.d2t, int(draft.d2t[0])))
    assert accept_length(states, draft, 3) >= 2.5
    assert 3.0 < accept_length(states, draft) < 4.0  # rounds end at every position
    assert accept_length(states, the_draft(target, stress_pair.SHARED)) > 5.0


@torch.no_grad()
def test_each_tensor_and_each_switch_costs_accept_length_when_it_is_wrong(target, states):
    draft = the_draft(target)
    trained = accept_length(states, draft)

    known = signatures(
        states,
        draft,
        stress_pair.prompts(),
        K,
        Silent(),
        boundaries_known=range(target.num_layers + 1),
        thetas=THETAS,
        target_embedding=target.parts.embedding,
        fills=("zeros", "normal"),
    )

    cheap = {one.name: one.acceptance.accept_length for one in known if trained - one.acceptance.accept_length < COST}
    assert cheap == {}
    tried = {fault for one in known for fault in one.faults}
    assert {name.removesuffix(".weight") for name in draft.state_dict() if name not in ("d2t", "t2d")} <= {
        fault.split(" not loaded")[0] for fault in tried
    }
    for switch in ("residual", "feedback", "aux_boundaries", "rope_theta", "rope_interleaved", "head_dim"):
        assert any(f"served as if {switch} =" in fault for fault in tried), switch


@torch.no_grad()
def test_switches_beyond_those_that_infer_tries_cost_as_much(target, states):
    draft = the_draft(target)
    trained = accept_length(states, draft)

    lengths = {
        what: accept_length(states, read_as(draft, change(draft.spec))) for what, change in MORE_SWITCHES.items()
    }
    harmless = {
        what: accept_length(states, read_as(draft, change(draft.spec))) for what, (change, _) in HARMLESS.items()
    }

    assert {what for what, length in lengths.items() if trained - length < COST} == set()
    assert {what for what, length in harmless.items() if trained - length >= COST} == set(), "no longer an exception"
