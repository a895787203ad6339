"""What training measures, per unrolled step, with every denominator.

A draft token is *right* when, as a target id, it is the target's first choice; where that choice is
outside the draft vocabulary the draft is wrong. Position t counts at step j when token t + 2 + j is supervised.

- accuracy: right at step j, whatever steps before said (teacher-forced: the draft read the true tokens).
- joint: right at steps 0 … j, over positions supervised at all of them: the share that greedy decoding would accept.
- conditional: right at step j among those right at all steps before.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Sums over positions, one entry per unrolled step; all [K].

    Attributes:
        loss: sum of losses.
        num_targets: positions that count.
        num_in_vocab: those whose target argmax is in the draft vocabulary (only they have a loss).
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


def count_chains(is_target: Tensor, is_right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`num_chains`, `num_reached` and `num_joint` of each step, [K] each.

    Args:
        is_target: [K, T], positions that count at each step.
        is_right: [K, T], positions where the step is right; false elsewhere.
    """
    chains = is_target.long().cumprod(0)
    joint = (chains * is_right).cumprod(0)
    num_chains, num_joint = chains.sum(1), joint.sum(1)
    reached = chains.clone()
    reached[1:] *= joint[:-1]
    return num_chains, reached.sum(1), num_joint
