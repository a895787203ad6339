"""A source that gives other states is found, and the message says which ones they are."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eyas.extract.proof import Proof, Prover, StatesMismatch
from eyas.models.placement import Placement
from eyas.models.target import FrozenParts
from states_target import BOUNDARIES, FaultySource, rows_of, saved_target, true_source
from tiny_target import CONFIGS, NESTED

CPU = Placement(torch.float32, torch.device("cpu"))
_Change = Callable[[Tensor, int], Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_target(tmp_path_factory.mktemp("target"))


def _proof(
    folder: Path,
    change: _Change = lambda v, _: v,
    *,
    boundaries: tuple[int, ...] = BOUNDARIES,
    has_reference: bool = True,
    dtype: torch.dtype = torch.float32,
    **options: str,
) -> Proof:
    """What is found of a source that computes at `boundaries` and is taken to give BOUNDARIES."""
    inner, asked = true_source(folder, dtype, boundaries=boundaries), true_source(folder, dtype)
    source = FaultySource(inner, change, **options)
    parts = FrozenParts.load(folder, CPU)
    return Prover(source, asked.wanted, parts, asked.target if has_reference else None).prove(rows_of(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_true_states_are_proven_with_neighbours_far_away(folder: Path, dtype: torch.dtype):
    proof = _proof(folder, dtype=dtype)

    assert proof.faults == []
    assert [state.name for state in proof.states] == ["boundary 1", "boundary 2", "boundary 4", "last"]
    for state in proof.states[:-1]:
        assert state.below is not None and state.above is not None  # noqa: PT018
        assert state.error < 0.05 < min(state.below, state.above)
    assert (proof.num_greedy, proof.num_greedy_right) == (4, 4)
    assert "boundary 4" in proof.text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v, _: v.roll(1, 0), r"boundary 2: it looks like boundary 2 of 1 token earlier"),
        (lambda v, _: v.roll(-1, 0), r"boundary 4: it looks like boundary 4 of 1 token later"),
        (lambda v, _: v[:, [1, 0, 2, 3]], r"boundary 1: it looks like boundary 2 "),
        (lambda v, _: v[:, [0, 1, 3, 2]], r"boundary 4: it looks like the last state after the final norm"),
        (lambda v, _: v.bfloat16().float(), r"all values are bfloat16 numbers, .* gives float32: they were rounded"),
        (lambda v, _: v.half().float(), r"all values are float16 numbers"),
        (lambda v, _: v * torch.tensor(float("inf")), r"boundary 1: it holds NaN or infinities"),
        (lambda v, _: torch.zeros_like(v), r"boundary 1: it looks like none of the target's states"),
        (
            lambda v, _: torch.cat([v[:-6], v[-6:].flip(0)]),
            r"boundary 1: \d+% of the positions are other states",
        ),
        (lambda v, num: v * (1.2 if num == 1 else 1.0), r"a row alone and among others: 100% of the states differ"),
    ],
)
def test_a_planted_fault_is_named(folder: Path, change: _Change, said: str):
    faults = "; ".join(_proof(folder, change).faults)
    assert re.search(said, faults), faults


@pytest.mark.parametrize("given", [(2, 3, 5), (0, 1, 3)])
def test_boundaries_of_another_convention_are_named(folder: Path, given: tuple[int, ...]):
    faults = "; ".join(_proof(folder, boundaries=given).faults)
    for wanted, found in zip(BOUNDARIES, given, strict=True):
        assert f"boundary {wanted}: it looks like boundary {found} (" in faults


@pytest.mark.parametrize("has_reference", [True, False])
def test_a_state_before_the_final_norm_is_not_taken_for_one_after_it(folder: Path, has_reference: bool):
    inner, asked = true_source(folder, boundaries=(*BOUNDARIES, 6)), true_source(folder)
    source = FaultySource(inner, lambda values, _: values[:, :4])  # boundary 6 in place of the last state
    prover = Prover(source, asked.wanted, FrozenParts.load(folder, CPU), asked.target if has_reference else None)
    faults = "; ".join(prover.prove(rows_of(4)).faults)
    if has_reference:
        assert "last: it looks like boundary 6, the state before the final norm" in faults
    else:
        assert "it looks like the state before the final norm" in faults
    source.last = "pre-norm"  # and where the source says so, it is right
    proof = prover.prove(rows_of(4))
    assert (proof.faults, proof.num_greedy_right) == ([], 4)


def test_without_a_reference_the_head_finds_a_last_state_of_another_position(folder: Path):
    assert _proof(folder, has_reference=False).faults == []
    faults = _proof(folder, lambda v, _: v.roll(1, 0), has_reference=False).faults
    assert any("gives another token than the source wrote" in fault for fault in faults)


def test_rounding_to_fp8_on_the_way_is_found_in_bf16(folder: Path):
    faults = _proof(folder, lambda v, _: v.to(torch.float8_e4m3fn).to(v.dtype), dtype=torch.bfloat16).faults
    assert any("float8_e4m3fn numbers" in fault for fault in faults)


def test_a_row_of_a_run_is_checked_against_the_reference_or_asked_for_again(folder: Path):
    asked = true_source(folder)
    parts = FrozenParts.load(folder, CPU)
    row = rows_of(1)[0]
    for reference in (asked.target, None):
        source = FaultySource(true_source(folder), lambda v, num: v * (1 + num % 2))
        prover = Prover(source, asked.wanted, parts, reference)
        good = next(iter(asked.states([row])))
        if reference is not None:
            prover.recheck(row, good)
            with pytest.raises(StatesMismatch, match=r"boundary 1: it looks like none"):
                prover.recheck(row, next(iter(source.states([row]))))
        else:
            with pytest.raises(StatesMismatch, match=r"asked for again alone: 100% of the states differ"):
                prover.recheck(row, good)


@pytest.mark.parametrize(
    "kind", ["llama", "deepseek_v3", "gemma3", *(pytest.param(k, marks=pytest.mark.soak) for k in (*CONFIGS, *NESTED))]
)
def test_the_states_of_an_architecture_are_proven_in_batches_and_alone(kind: str, tmp_path: Path):
    source = true_source(saved_target(tmp_path, kind, num_layers=4), boundaries=(1, 2, 3))
    proof = Prover(source, source.wanted, FrozenParts.load(tmp_path, CPU), source.target).prove(rows_of(4))
    assert proof.faults == []
    assert (proof.num_greedy_right, proof.num_greedy) == (4, 4)
