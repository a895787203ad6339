import torch

from eyas.train.optimise.step_outcome import PendingStep, pack_figures, read_steps
from eyas.train.step.ttt_loss import StepCounts, count_chains


def test_a_chain_ends_with_the_first_wrong_step_and_with_the_supervised_text():
    is_target = torch.tensor([[True, True, True, True], [True, True, True, False], [True, True, True, False]])
    # position 3 has no step 1 (the text ends), position 2 was wrong before
    is_right = torch.tensor([[True, True, False, True], [True, False, True, False], [True, True, True, False]])

    num_chains, num_reached, num_joint = count_chains(is_target, is_right)

    assert num_chains.tolist() == [4, 3, 3]
    assert num_reached.tolist() == [4, 2, 1]
    assert num_joint.tolist() == [3, 1, 1]


def counts(**changes: list[float]) -> StepCounts:
    fields = {
        "loss": [6.0, 2.0],
        "num_targets": [4, 2],
        "num_in_vocab": [3, 2],
        "num_right": [2, 1],
        "num_chains": [4, 2],
        "num_reached": [4, 1],
        "num_joint": [2, 0],
    }
    return StepCounts(**{name: torch.tensor(value) for name, value in {**fields, **changes}.items()})


def test_every_ratio_has_its_own_denominator():
    record = counts().as_record()
    assert record["loss_per_step"] == [1.5, 1.0]
    assert record["accuracy"] == [0.5, 0.5]  # over all targets: one of the four is outside the draft vocabulary
    assert record["in_vocab"] == [0.75, 1.0]
    assert record["joint"] == [0.5, 0.0]
    assert record["conditional"] == [0.5, 0.0]


def test_counts_of_micro_batches_add_before_they_are_divided():
    figures = sum(pack_figures(torch.tensor(1.0), part) for part in (counts(), counts(num_right=[0, 0])))
    step = PendingStep(step=0, figures=figures, norms=torch.ones(1), names=["w"], lr=1.0, padding_share=0.0)
    record = read_steps([step])[0][0].counts.as_record()
    assert record["accuracy"] == [0.25, 0.25]
    assert record["loss_per_step"] == [1.5, 1.0]


def test_nothing_counted_is_no_number():
    record = counts(num_targets=[4, 0], num_reached=[4, 0]).as_record()
    assert record["accuracy"][1] is None
    assert record["conditional"][1] is None
