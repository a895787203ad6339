"""What a draft learns from: the target's frozen parts, and where its states come from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from eyas.models.placement import Placement
from eyas.models.states import StateSource
from eyas.models.target import FrozenParts, LiveStates, Target
from eyas.train.config import TrainConfig
from eyas.train.feed.fed_states import FedStates
from eyas.train.step.packed_target import live_states


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """A target as training sees it; the target itself need not be in this process.

    Attributes:
        parts: embedding, norm and head.
        states: over the training rows.
        held_out: states over the held-out rows; None where there are none of them.
        plain: the target through transformers, which fused states are compared with; None where it is not here.
        feed: the same as `states` where they are fetched from elsewhere, else None.
        own_logits: token ids [n] -> the target's own logits [n, V], which the teacher's are compared with; or None.
    """

    parts: FrozenParts
    states: StateSource
    held_out: StateSource | None
    plain: StateSource | None = None
    feed: FedStates | None = None
    own_logits: Callable[[Sequence[int]], Tensor] | None = None

    @property
    def reference(self) -> StateSource:
        """The plain target where it is here, else what there is."""
        return self.plain or self.states

    @classmethod
    def live(cls, target: Target, config: TrainConfig) -> "Teaching":
        """By a target in this process."""
        plain = LiveStates(target)
        most_tokens = config.micro_batch_on(target.device.type)
        return cls(
            parts=target.frozen,
            states=live_states(target, most_tokens, is_fused=config.unroll != "modules"),
            held_out=plain,
            plain=plain,
            own_logits=target.own_logits,
        )

    @classmethod
    def load(cls, folder: Path, placement: Placement, config: TrainConfig) -> "Teaching":
        """By the target in `folder`, loaded whole. Raises what `Target.load` raises."""
        return cls.live(Target.load(folder, placement), config)
