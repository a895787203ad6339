"""A trainer whose target runs in the process."""

from typing import Any

from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.train.config import TrainConfig
from eyas.train.optimise.teaching import Teaching
from eyas.train.optimise.trainer import Trainer


def live_trainer(draft: Eagle3Draft, target: Target, config: TrainConfig, **options: Any) -> Trainer:
    """The target's states are computed for each step."""
    return Trainer(draft, Teaching.live(target, config), config, **options)
