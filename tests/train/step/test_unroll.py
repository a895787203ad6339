"""The fast ways through target and draft equal the readable ones; packed rows equal rows one by one."""

import copy
from typing import Any

import pytest
import torch

from eyas.data.text.tokenise import TokenRow
from eyas.models.draft import Eagle3Draft
from eyas.models.states import from_padded, to_padded
from eyas.models.target import LiveStates, Target
from eyas.train.rows.packing import Packed, micro_batches, pack
from eyas.train.step.compute_weights import ComputeWeight
from eyas.train.step.packed_target import LlamaStates, live_states
from eyas.train.step.unroll import FusedUnroll, ModuleUnroll, make_unroll, why_not_fused
from tiny_draft import NUM_AUX, TARGET_HIDDEN, tiny_draft, tiny_spec
from tiny_target import tiny_target
from token_rows import rows_of

CPU, STEPS = torch.device("cpu"), 4
SWITCHES: list[dict[str, Any]] = [
    {},
    {"residual": "post-norm"},
    {"feedback": "post-norm"},
    {"aux_norm": "over-concat"},
    {"aux_norm": "per-state", "feedback": "post-norm"},
    {"num_layers": 3},
    {"embedding": "target"},
    {"num_kv_heads": 4},
]


def learn(unroll: Any, packed: Packed, aux: torch.Tensor) -> torch.Tensor:
    """States; the gradients of a fixed weighting of them are left in the draft, as head_loss would leave them."""
    states: torch.Tensor = unroll.states(packed, aux)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(5), dtype=states.dtype)
    states.backward(weights * packed.is_target.unsqueeze(-1))
    unroll.publish()
    return states.detach()[packed.is_target]


def gradients(draft: Eagle3Draft) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in draft.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("changes", SWITCHES, ids=str)
def test_the_fused_unroll_equals_the_modules_states_and_gradients(changes):
    draft = tiny_draft(**changes).double()
    other = copy.deepcopy(draft)
    packed = pack(rows_of(13, 6, 3, 21), STEPS, CPU)
    aux = torch.randn(packed.length, NUM_AUX * TARGET_HIDDEN, dtype=torch.float64)

    fused = learn(FusedUnroll(draft, STEPS, torch.float64), packed, aux)
    plain = learn(ModuleUnroll(other, STEPS, torch.float64), packed, aux)

    torch.testing.assert_close(fused, plain, rtol=1e-6, atol=1e-6)  # angles are fp32 in both
    mine, theirs = gradients(draft), gradients(other)
    assert set(mine) == set(theirs)
    for name, grad in theirs.items():
        torch.testing.assert_close(mine[name], grad, rtol=1e-5, atol=1e-5, msg=name)


def test_a_packed_row_is_computed_as_if_it_were_alone():
    draft = tiny_draft().double()
    rows = rows_of(9, 14, 5)
    aux = [torch.randn(len(r.token_ids), NUM_AUX * TARGET_HIDDEN, dtype=torch.float64) for r in rows]
    filling = torch.randn(1, NUM_AUX * TARGET_HIDDEN, dtype=torch.float64)

    together = learn(FusedUnroll(draft, STEPS, torch.float64), pack(rows, STEPS, CPU), torch.cat([*aux, filling]))
    together_states = pack(rows, STEPS, CPU)
    summed = {name: grad.clone() for name, grad in gradients(draft).items()}
    # the same positions from packs of one row, in the order of steps then rows
    alone = []
    draft.zero_grad()
    for row, states in zip(rows, aux, strict=True):
        packed = pack([row], STEPS, CPU)
        found = FusedUnroll(draft, STEPS, torch.float64).states(packed, torch.cat([states, filling]))
        alone.append(found)
    whole = torch.cat(alone, 1)

    torch.testing.assert_close(together, whole.detach()[together_states.is_target])
    weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(5), dtype=whole.dtype)
    unrolls = FusedUnroll(draft, STEPS, torch.float64)
    total = torch.zeros(())
    begin = 0
    for row, states in zip(rows, aux, strict=True):
        packed = pack([row], STEPS, CPU)
        part = weights[:, begin : begin + len(packed.teachers)]
        begin += len(packed.teachers)
        total = (
            total + (unrolls.states(packed, torch.cat([states, filling])) * part * packed.is_target[..., None]).sum()
        )
    draft.zero_grad()
    total.backward()
    unrolls.publish()
    for name, grad in gradients(draft).items():
        torch.testing.assert_close(grad, summed[name], rtol=1e-9, atol=1e-9, msg=name)


def test_half_compute_keeps_its_gradients_close_to_the_masters():
    draft = tiny_draft()
    other = copy.deepcopy(draft)
    packed = pack(rows_of(13, 21), 2, CPU)
    aux = torch.randn(packed.length, NUM_AUX * TARGET_HIDDEN)
    learn(FusedUnroll(draft, 2, torch.bfloat16), packed, aux)
    learn(FusedUnroll(other, 2, torch.float32), packed, aux)
    for (name, grad), exact in zip(gradients(draft).items(), gradients(other).values(), strict=True):
        assert grad.dtype == torch.float32
        assert (grad - exact).norm() < 0.05 * exact.norm(), name


@pytest.mark.parametrize(
    "changes",
    [{"qk_norm": True}, {"attention_bias": True}, {"sliding_window": 4}, {"activation": "gelu"}, {"mlp_bias": True}],
)
def test_what_the_fused_unroll_does_not_compute_goes_through_the_modules(changes):
    assert why_not_fused(tiny_spec(**changes)) is not None
    assert isinstance(make_unroll(tiny_draft(**changes), 2, torch.float32), ModuleUnroll)
    assert why_not_fused(tiny_spec()) is None


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_the_fused_target_equals_transformers_on_packed_rows(kind):
    target = Target(tiny_target(kind, seed=2))
    packed = pack(rows_of(12, 5, 30), 2, CPU)
    boundaries = (0, 2, 4)
    wanted = LiveStates(target, 40)(packed, boundaries)
    before = {name: p.clone() for name, p in target.model.named_parameters()}

    found = live_states(target, 40)

    if isinstance(found, LiveStates):
        pytest.skip(f"{kind} has a window here")
    assert isinstance(found, LlamaStates)
    states = found(packed, boundaries)
    real = packed.num_tokens
    torch.testing.assert_close(states.aux[:real], wanted.aux[:real], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states.last[:real], wanted.last[:real], rtol=1e-4, atol=1e-5)
    # the model's own parameters are views of the fused ones now, with the same values
    for name, parameter in target.model.named_parameters():
        assert torch.equal(parameter, before[name]), name
    again = LiveStates(target, 40)(packed, boundaries)
    torch.testing.assert_close(again.last, wanted.last)


def test_other_targets_go_through_transformers():
    assert isinstance(live_states(Target(tiny_target("gemma2")), 100), LiveStates)


def test_packing_restarts_positions_and_names_what_each_step_learns_from():
    rows = [TokenRow((5, 6, 7, 8), (False, True, True, True)), TokenRow((9, 3), (True, True))]
    packed = pack(rows, 2, CPU, multiple=4)

    assert packed.ids.tolist() == [5, 6, 7, 8, 9, 3, 0, 0, 0, 0]  # two of filling, two beyond
    assert packed.positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1]
    assert packed.starts.tolist() == [0, 4, 6, 8]
    assert (packed.lengths, packed.longest, packed.num_tokens) == ((4, 2, 2), 4, 6)
    # tokens 7 and 8 are supervised and at least the third of their row: learnt from the positions before them
    assert packed.teachers.tolist() == [1, 2]
    assert packed.picks.tolist() == [[0, 1], [7, 0]]  # step 1 of the first would begin before its row: filling
    assert packed.is_target.tolist() == [[True, True], [False, True]]


def test_rows_side_by_side_and_end_to_end_are_the_same_rows():
    packed = pack(rows_of(3, 6, 2), 2, CPU, multiple=8)
    x = torch.randn(packed.length, 5)
    back = from_padded(packed, to_padded(packed, x))
    assert torch.equal(back[:11], x[:11])
    assert not back[11:].any()


def test_micro_batches_count_tokens_without_padding():
    rows = rows_of(5, 4, 9, 2, 2)
    assert [len(part) for part in micro_batches(rows, 13)] == [2, 3]


def test_the_halves_of_a_matrix_add_up_in_its_master():
    master = torch.nn.Parameter(torch.randn(3, 4))
    left, right = (ComputeWeight([master], torch.float32, columns) for columns in (slice(0, 2), slice(2, 4)))
    x, grad = torch.randn(6, 4), torch.randn(6, 3)
    left.add_gradient(grad, x[:, :2])
    right.add_gradient(grad, x[:, 2:])
    right.add_gradient(grad, x[:, 2:])
    left.publish()
    right.publish()
    wanted = grad.T @ x
    wanted[:, 2:] *= 2
    torch.testing.assert_close(master.grad, wanted)
