"""The learning rate's course over the steps."""

import math

from eyas.train.config import TrainConfig


def lr_share(step: int, num_steps: int, config: TrainConfig) -> float:
    """The share of the peak learning rate at `step` (0-based): linear warm-up, then cosine, linear or constant."""
    warmup = max(1, round(config.warmup_share * num_steps))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup + 1) / max(1, num_steps - warmup)
    floor = config.final_lr_share
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "linear":
        return 1.0 - (1.0 - floor) * progress
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
