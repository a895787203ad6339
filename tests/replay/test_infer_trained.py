"""`infer` recovers all switches of drafts that were trained with others than their files state (make soak).

Each has the stress pair's sizes and is trained for its target, some seconds. ModelOpt's double norm is rebuilt the same
way; SpecForge's feedback and TorchSpec's head are in test_rebuilt_trainers.py.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import stress_pair
from eyas.contract.spec.target_spec import read_target
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import place
from eyas.models.target import LiveStates, Target
from eyas.records.eval_rows import EvalRow
from eyas.replay.infer import THETAS, as_read, changes_of, infer_switches, normed_twice
from eyas.replay.states import KeptStates
from eyas.talk import Silent
from stress_language import Language

K, STEPS = 4, 150
CPU = place("float32", "cpu")
HEADS = {"head_dim": 64, "num_heads": 2, "num_kv_heads": 1}
UP, DOWN, REVERSED = ({"aux_boundaries": b} for b in ((3, 5, 7), (1, 3, 5), (6, 4, 2)))
TRAINED_WITH = {
    "as stated": {},
    "boundaries up": UP,
    "boundaries reversed": REVERSED,
    "theta 1e4": {"theta": 1e4},
    "theta 1e6": {"theta": 1e6},
    "pairing": {"interleaved": True},
    "heads": HEADS,
    "boundaries and theta": {**UP, "theta": 1e4},
    "boundaries and heads": {**DOWN, **HEADS},
    "theta and pairing": {"theta": 1e6, "interleaved": True},
    "boundaries, theta, pairing": {**DOWN, "theta": 1e4, "interleaved": True},
    "residual": {"residual": "post-norm"},
    "feedback": {"feedback": "post-norm"},
    "residual, boundaries, theta": {"residual": "post-norm", **UP, "theta": 1e4},
}
# Of these switches the stress pair's draft needs one, not which: the state that it reads after the first step is small.
ALIKE = {"residual", "feedback"}

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(stress_pair.TARGET, CPU)


@pytest.fixture
def draft(target) -> Eagle3Draft:
    """Untrained, of the stress pair's sizes, with norms far from one."""
    spec = read_target(stress_pair.TARGET)
    trained = load_draft(stress_pair.DRAFT, CPU, target_spec=spec, target_embedding=target.parts.embedding)
    torch.manual_seed(3)
    fresh, draw = Eagle3Draft(trained.spec), torch.Generator().manual_seed(7)
    fresh.set_vocab_map(torch.arange(trained.spec.draft_vocab_size) + trained.d2t)
    with torch.no_grad():
        for name, parameter in fresh.named_parameters():
            if "norm" in name:
                is_high = torch.rand(parameter.shape, generator=draw) < 0.5
                parameter.copy_(torch.where(is_high, 1.9, 0.4))
    return fresh


def trained_on(draft: Eagle3Draft, target: Target, steps: int = STEPS) -> Eagle3Draft:
    """`draft`, trained further as what it is: training-time test, cross-entropy with the text."""
    language, draw = Language(), torch.Generator().manual_seed(1)
    parameters = [p.requires_grad_() for p in draft.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=5e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 5e-3 * min(1.0, (step + 1) / 10) * (1 - 0.9 * step / steps)
        ids, is_ruled = language.texts(12, 128, draw)
        assert draft.spec.aux_boundaries is not None
        with torch.no_grad():
            aux = target.forward(ids, draft.spec.aux_boundaries).aux
        loss = torch.zeros(())
        for j, one in enumerate(draft.ttt_steps(ids, aux, K)):
            truth, is_learned = ids[:, 2 + j :], is_ruled[:, 2 + j :]
            wanted, is_offered = draft.to_draft_ids(truth)
            logits = draft.head(one.normed[:, : truth.shape[1]])[is_learned & is_offered]
            loss = loss + 0.8**j * F.cross_entropy(logits, wanted[is_learned & is_offered])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        optimiser.step()
    return draft.eval()


def texts(num: int = 16) -> list[EvalRow]:
    """Texts that were not trained on; the target writes them itself (its language has no noise)."""
    ids, is_ruled = Language().texts(num, 140, torch.Generator().manual_seed(77))
    start = int((~is_ruled[0]).sum())
    rows = ids.tolist()
    return [
        EvalRow(id=str(i), set="s", prompt_ids=tuple(row[:start]), response_ids=tuple(row[start:]))
        for i, row in enumerate(rows)
    ]


def found(target: Target, as_filed: Eagle3Draft):
    states = KeptStates(LiveStates(target))
    known = range(target.num_layers + 1)
    return infer_switches(states, as_filed, texts(), K, Silent(), boundaries_known=known, thetas=THETAS)


def check(target: Target, made: Eagle3Draft, as_filed: Callable[[Eagle3Draft], Eagle3Draft], changes: dict) -> None:
    best, *others = found(target, as_filed(made))
    tied = [dict(variant.changes) for variant in others if variant.is_tied]
    print(f"{changes}: {dict(best.changes)}, accept length {best.accept_length:.2f}; tied {tied}", flush=True)
    assert best.accept_length > 1.5
    if ALIKE & set(changes):
        assert changes in [dict(best.changes), *tied]
        assert {k: v for k, v in best.changes.items() if k not in ALIKE} == {
            k: v for k, v in changes.items() if k not in ALIKE
        }
    else:
        assert best.changes == changes


@pytest.mark.parametrize("switches", list(TRAINED_WITH))
def test_all_switches_of_a_trained_draft_are_recovered(switches, draft, target):
    changes = dict(TRAINED_WITH[switches])
    rope = replace(draft.spec.rope, **{k: changes.pop(k) for k in ("theta", "interleaved") if k in changes})
    made = trained_on(as_read(draft, replace(draft.spec, rope=rope, **changes)), target)

    check(target, made, lambda one: as_read(one, draft.spec), changes_of(draft.spec, made.spec))


def test_modelopt_s_double_norm_is_recovered(draft, target):
    made = trained_on(normed_twice(draft), target)
    weights = {name.replace("hidden_norm.1.", "hidden_norm."): w for name, w in made.state_dict().items()}
    weights = {name: w for name, w in weights.items() if "hidden_norm.0." not in name}

    def as_filed(_: Eagle3Draft) -> Eagle3Draft:
        other = as_read(draft, draft.spec)
        other.load_state_dict(weights, assign=True)
        return other.eval()

    check(target, made, as_filed, {"hidden_norm": "after input_layernorm"})
