import torch

from eyas.train.step.metrics import Chains, StepCounts


def test_a_chain_ends_with_the_first_wrong_step_and_with_the_supervised_text():
    chains = Chains((1, 4), torch.device("cpu"))
    yes = torch.ones(1, 4, dtype=torch.bool)

    first = chains.count(yes, torch.tensor([[True, True, False, True]]))
    # position 3 has no step 1 (the text ends), position 2 was wrong before
    second = chains.count(torch.tensor([[True, True, True, False]]), torch.tensor([[True, False, True, False]]))

    assert [int(n) for n in first] == [4, 4, 3]  # chains, reached, joint
    assert [int(n) for n in second] == [3, 2, 1]


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
    record = (counts() + counts(num_right=[0, 0])).as_record()
    assert record["accuracy"] == [0.25, 0.25]
    assert record["loss_per_step"] == [1.5, 1.0]


def test_nothing_counted_is_no_number():
    record = counts(num_targets=[4, 0], num_reached=[4, 0]).as_record()
    assert record["accuracy"][1] is None
    assert record["conditional"][1] is None
