"""A signature is what a faulty draft accepts; faults that are alike on every text are one class."""

import pytest
import torch

from eyas.decode.accept_length import Acceptance
from eyas.models.target import LiveStates, Target
from eyas.parity.faults import suspects
from eyas.parity.signatures import signatures
from eyas.records.eval_rows import EvalRow
from eyas.replay.emulate import FILLS
from eyas.replay.infer import as_read
from eyas.replay.replay import replay_states
from eyas.replay.states import KeptStates
from eyas.talk import Silent
from tiny_draft import tiny_draft
from tiny_target import tiny_target

K = 3
LAYER = "layers.0."


@pytest.fixture(scope="module")
def case():
    target = Target(tiny_target(vocab_size=6, seed=3))
    draft = tiny_draft(vocab_size=6, draft_vocab_size=5, target_hidden_size=32, aux_boundaries=(1, 2, 4))
    draw = torch.Generator().manual_seed(2)
    texts = torch.randint(6, (6, 40), generator=draw).tolist()
    rows = [
        EvalRow(id=str(i), set="s", prompt_ids=(*ids[:3],), response_ids=(*ids[3:],)) for i, ids in enumerate(texts)
    ]
    return KeptStates(LiveStates(target)), draft, rows, target


@pytest.fixture(scope="module")
def known(case):
    return found(case)


def found(case, **options):
    states, draft, rows, _ = case
    return signatures(states, draft, rows, K, Silent(), boundaries_known=range(5), thetas=[5e5], **options)


def class_of(known, fault: str):
    (one,) = [one for one in known if fault in one.faults]
    return one


def test_faults_that_silence_the_same_part_are_one_class(known):
    def lost(*parts: str) -> set[str]:
        return {f"{LAYER}{part} not loaded" for part in parts}

    assert set(class_of(known, *lost("self_attn.o_proj")).faults) == lost("self_attn.o_proj", "self_attn.v_proj")
    assert set(class_of(known, *lost("self_attn.q_proj")).faults) == lost("self_attn.q_proj", "self_attn.k_proj")
    assert set(class_of(known, *lost("mlp.up_proj")).faults) == lost("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    for alone in ("residual = post-norm", "feedback = post-norm", "aux_boundaries = (4, 2, 1)"):
        assert class_of(known, f"served as if {alone}").faults == (f"served as if {alone}",)


@torch.no_grad()
def test_a_signature_is_what_the_faulty_draft_accepts(case):
    states, draft, rows, target = case
    faulty = as_read(draft, draft.spec)
    faulty.load_state_dict({"norm.weight": torch.ones_like(draft.norm.weight)}, strict=False, assign=True)
    counted = replay_states(states, faulty, rows, K, Silent())
    before = {name: tensor.clone() for name, tensor in draft.state_dict().items()}
    given = found(case, target_embedding=target.parts.embedding, fills=FILLS)

    assert class_of(given, "norm not loaded").acceptance == Acceptance.of_rounds(
        [n for row in counted for n in row.accepted], K
    )
    names = [fault for one in given for fault in one.faults]
    assert len(names) == len(set(names))
    assert "the target's embedding in place of the draft's own" in names
    assert {f"fc not loaded (memory holds {fill})" for fill in FILLS} <= set(names)
    assert all(torch.equal(before[name], tensor) for name, tensor in draft.state_dict().items())
    every = {name.removesuffix(".weight") for name in draft.state_dict() if name not in ("d2t", "t2d")}
    assert every <= {name.split(" not loaded")[0] for name in names}


def test_what_the_signature_says_is_suspected_first_and_the_harmless_never(known):
    guilty = class_of(known, f"{LAYER}mlp.up_proj not loaded")

    nearest = suspects(guilty.acceptance, known)[0]

    assert (nearest.signature, nearest.distance) == (guilty, 0.0)
    harmless = [one for one in known if one.is_harmless]
    assert not {id(s.signature) for one in harmless for s in suspects(one.acceptance, known)} & set(map(id, harmless))
