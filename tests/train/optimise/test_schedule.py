import pytest

from eyas.train.config import TrainConfig
from eyas.train.optimise.schedule import average_keep, lr_share


def course(**options) -> list[float]:
    return [
        lr_share(step, 100, TrainConfig(**{"warmup_share": 0.1, "final_lr_share": 0.1, **options}))
        for step in range(100)
    ]


@pytest.mark.parametrize(("schedule", "middle"), [("cosine", 0.55), ("linear", 0.55), ("constant", 1.0), ("wsd", 1.0)])
def test_the_rate_rises_to_its_peak_then_follows_its_schedule(schedule, middle):
    shares = course(schedule=schedule)
    assert shares[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert shares[54] == pytest.approx(middle)
    assert shares[-1] == pytest.approx(1.0 if schedule == "constant" else 0.1)
    assert shares[10:] == sorted(shares[10:], reverse=True)


def test_a_run_of_one_step_learns_at_the_peak():
    assert lr_share(0, 1, TrainConfig()) == 1.0


def test_wsd_stays_at_its_peak_until_its_last_share():
    shares = course(schedule="wsd", decay_share=0.25, final_lr_share=0.0)
    assert shares[9:75] == [1.0] * 66
    assert shares[75:] == pytest.approx([(24 - i) / 25 for i in range(25)])


def test_the_average_reaches_back_over_its_share_of_the_run_and_forgets_the_first_weights_at_once():
    config = TrainConfig(average_share=0.1)
    assert average_keep(0, 1000, config) == pytest.approx(0.1)
    assert average_keep(999, 1000, config) == pytest.approx(0.99)
    assert average_keep(0, 5, config) == 0.0  # shorter than a step: the last weights
