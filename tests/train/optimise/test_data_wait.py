import torch

from eyas.train.optimise.trainer import DataWait


def test_work_on_data_counts_where_the_device_had_nothing_else_to_do():
    now, is_idle = [0.0], [True]
    wait = DataWait(lambda: is_idle[0], lambda: now[0])
    for seconds, idle in ((1.0, True), (2.0, False), (4.0, True)):
        with wait():
            now[0] += seconds
            is_idle[0] = idle
        now[0] += 8.0

    assert wait.take() == 5.0
    assert wait.take() == 0.0


def test_a_cpu_that_packs_does_nothing_else():
    wait = DataWait.of(torch.device("cpu"))
    with wait():
        pass
    assert wait.take() > 0.0
