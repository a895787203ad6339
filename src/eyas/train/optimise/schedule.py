"""What changes during a run, as functions of the step alone: the learning rate, the average of the weights."""

import math

from eyas.train.config import TrainConfig


def lr_share(step: int, num_steps: int, config: TrainConfig) -> float:
    """The share of the peak learning rate at `step` (0-based): a linear warm-up, then `config.schedule`."""
    warmup = max(1, round(config.warmup_share * num_steps))
    if step < warmup:
        return (step + 1) / warmup
    floor = config.final_lr_share
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "wsd":
        falling = max(1, round(config.decay_share * num_steps))
        return 1.0 - (1.0 - floor) * max(0.0, (step + 1 - num_steps + falling) / falling)
    progress = (step - warmup + 1) / max(1, num_steps - warmup)
    if config.schedule == "linear":
        return 1.0 - (1.0 - floor) * progress
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


def average_keep(step: int, num_steps: int, config: TrainConfig) -> float:
    """How much of the average of the weights is kept at `step` (0-based): 1 - 1 / (steps that it reaches back).

    The first steps reach back a tenth of what there is, so that the initial weights are soon forgotten.
    """
    horizon = max(1.0, config.average_share * num_steps)
    return min(1.0 - 1.0 / horizon, (1 + step) / (10 + step))
