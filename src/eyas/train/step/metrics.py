"""What training measures, per unrolled step, with every denominator counted.

Honest definitions. A draft token is *right* when, as a target id, it is the target's first choice; where that choice is
outside the draft vocabulary the draft is wrong. Position t counts at step j when token t + 2 + j is supervised.

- accuracy: right at step j, whatever steps before said (teacher-forced: the draft read the true tokens).
- joint: right at steps 0 … j, over positions supervised at all of them: the share that greedy decoding would accept.
- conditional: right at step j among those right at all steps before.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Sums over positions, one entry per unrolled step; all [K].

    Attributes:
        loss: sum of losses.
        num_targets: positions that count.
        num_in_vocab: those whose target argmax the draft can say (only they have loss).
        num_right: right ones.
        num_chains: positions supervised at all steps up to this one.
        num_reached: chains right at all steps before.
        num_joint: chains right up to and with this step.
    """

    loss: Tensor
    num_targets: Tensor
    num_in_vocab: Tensor
    num_right: Tensor
    num_chains: Tensor
    num_reached: Tensor
    num_joint: Tensor

    def __add__(self, other: "StepCounts") -> "StepCounts":
        return StepCounts(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @classmethod
    def stack(cls, steps: list["StepCounts"]) -> "StepCounts":
        """Scalars of single steps to [K]."""
        return cls(**{f.name: torch.stack([getattr(step, f.name) for step in steps]) for f in fields(cls)})

    def as_record(self) -> dict[str, list[float | None]]:
        """Ratios per step; None where nothing was counted. `loss_per_step` is over all counted positions."""
        pairs = {
            "loss_per_step": (self.loss, self.num_targets),
            "accuracy": (self.num_right, self.num_targets),
            "joint": (self.num_joint, self.num_chains),
            "conditional": (self.num_joint, self.num_reached),
            "in_vocab": (self.num_in_vocab, self.num_targets),
        }
        record: dict[str, list[float | None]] = {}
        for name, (over, under) in pairs.items():
            record[name] = [a / b if b else None for a, b in zip(over.tolist(), under.tolist(), strict=True)]
        record["num_targets"] = self.num_targets.tolist()
        return record


class Chains:
    """Follows, from step to step, which positions are still a chain and still right. Shapes [B, T]."""

    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        self._is_chain = torch.ones(shape, dtype=torch.bool, device=device)
        self._is_right = torch.ones(shape, dtype=torch.bool, device=device)

    def count(self, is_target: Tensor, is_right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers of chains, of those reached, and of those right so far, after one more step.

        Args:
            is_target: positions that count at this step.
            is_right: positions where this step is right; false elsewhere.
        """
        self._is_chain &= is_target
        num_reached = (self._is_right & self._is_chain).sum()
        self._is_right &= self._is_chain & is_right
        return self._is_chain.sum(), num_reached, self._is_right.sum()
