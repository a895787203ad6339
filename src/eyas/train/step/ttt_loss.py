"""Training-time test on a micro-batch: the unrolled steps, their weighted loss, their gradients and their counts.

Step j at index t reads token t+1+j and learns the target's distribution at t+1+j, where token t+2+j is supervised.

Logits of all positions and steps would be the largest tensors of training by far ([K, T, D]), the teacher's next
([N, V]). `head_loss` computes a chunk of teacher rows, scores the K steps that learn from them, takes the gradients of
states and head while the logits exist, and drops the chunk. The backward has nothing left to do there.

What is counted: a draft token is *right* when, as a target id, it is the target's first choice; where that choice is
outside the draft vocabulary the draft is wrong. Position t counts at step j when token t + 2 + j is supervised.

- accuracy: right at step j, whatever steps before said (teacher-forced: the draft read the true tokens).
- joint: right at steps 0 … j, over positions supervised at all of them: the share that greedy decoding would accept.
- conditional: right at step j among those right at all steps before.

Shapes: K steps, N teacher rows, T positions, H draft hidden, Ht target hidden, D draft vocabulary, V target vocabulary.
Source: docs/training.md, "The objective"; EAGLE-3, arXiv:2503.01840.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.models.states import States
from eyas.models.target import FrozenParts
from eyas.train.config import LossName
from eyas.train.rows.packing import Packed
from eyas.train.step.compute_weights import ComputeWeight
from eyas.train.step.distributions import DistributionOps, DraftVocabulary
from eyas.train.step.unroll import Unroll


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


# Largest number of logits, of the target or of the draft's K steps, that exist at a time.
_MOST_LOGITS = {"cuda": 1 << 27, "cpu": 1 << 23}
_MULTIPLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLoss:
    """Of N teacher rows and K steps.

    Attributes:
        losses: [K, N]; 0 where the weight is 0.
        drafted: [K, N], the draft's argmax as draft ids.
        argmax_draft: [N], the target's argmax as draft ids, -1 where the draft vocabulary does not have it.
        grad_states: [K, N, H] of Σ weight * loss.
    """

    losses: Tensor
    drafted: Tensor
    argmax_draft: Tensor
    grad_states: Tensor


@torch.no_grad()
def head_loss(
    states: Tensor,
    last: Tensor,
    weights: Tensor,
    head: ComputeWeight,
    *,
    teacher: FrozenParts,
    vocabulary: DraftVocabulary,
    loss: LossName,
    ops: DistributionOps,
) -> HeadLoss:
    """Losses and gradients; the head's gradient is added to `head`.

    Args:
        states: [K, N, H] after the draft's final norm.
        last: [N, Ht] after the target's final norm, of the positions learnt from.
        weights: [K, N] of each loss in the sum; 0 where the position has no loss. Rows whose target argmax is outside
            the draft vocabulary have no loss either.
        head: [D, H] of the draft.
    """
    num_steps, num, width = states.shape
    grad_states = torch.empty_like(states)
    losses, drafted, argmax_draft = [], [], []
    chunk = chunk_size(num_steps, teacher.vocab_size, len(head.value), states.device)
    for begin in range(0, num, chunk):
        part = slice(begin, begin + chunk)
        taught = ops.reduce(teacher.logits(last[part]), vocabulary)
        chosen = states[:, part].reshape(-1, width)
        part_weights = torch.where(taught.argmax_draft >= 0, weights[:, part], 0.0).flatten()
        found = ops.losses(F.linear(chosen, head.value), taught, part_weights, loss)
        grad_states[:, part] = (found.grad @ head.value).view(num_steps, -1, width)
        head.add_gradient(found.grad, chosen)
        losses.append(found.losses.view(num_steps, -1))
        drafted.append(found.drafted.view(num_steps, -1))
        argmax_draft.append(taught.argmax_draft)
    return HeadLoss(
        losses=torch.cat(losses, 1),
        drafted=torch.cat(drafted, 1),
        argmax_draft=torch.cat(argmax_draft),
        grad_states=grad_states,
    )


def chunk_size(num_steps: int, vocab_size: int, draft_vocab_size: int, device: torch.device) -> int:
    """Teacher rows handled at once."""
    most = _MOST_LOGITS["cuda" if device.type == "cuda" else "cpu"]
    fits = most // max(vocab_size, num_steps * draft_vocab_size)
    return max(_MULTIPLE, fits // _MULTIPLE * _MULTIPLE)


# Called with the name of a phase; its context manager is open during the phase.
PhaseClock = Callable[[str], AbstractContextManager[None]]


def no_clock(phase: str) -> AbstractContextManager[None]:
    """Times nothing."""
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class TttObjective:
    """How the steps' losses become one number: Σ_j decay^j · (sum of step j's losses) / denominators[j].

    Attributes:
        loss: per position.
        weights: K numbers, decay^j / denominators[j]. The denominators are the supervised targets of step j in the
            whole optimiser step, known from the data before any forward pass, so that micro-batches and ranks add up
            to the same number.
    """

    loss: LossName
    weights: tuple[float, ...]

    @classmethod
    def of(cls, loss: LossName, step_decay: float, denominators: list[int]) -> "TttObjective":
        """With weights from the decay and the targets of each step."""
        return cls(loss=loss, weights=tuple(step_decay**j / max(1, n) for j, n in enumerate(denominators)))

    def weights_on(self, device: torch.device) -> Tensor:
        """[K] fp32; the host does not wait for the copy."""
        return torch.tensor(self.weights, dtype=torch.float32).to(device, non_blocking=True)


def ttt_backward(
    unroll: Unroll,
    packed: Packed,
    states: States,
    loss: LossName,
    step_weights: Tensor,
    *,
    teacher: FrozenParts,
    vocabulary: DraftVocabulary,
    ops: DistributionOps,
    clock: PhaseClock = no_clock,
) -> tuple[Tensor, StepCounts]:
    """Add the micro-batch's gradients; gives its share of the objective (a scalar) and its counts.

    Args:
        step_weights: [K] fp32, `TttObjective.weights`.
    """
    with clock("draft forward"):
        picked = unroll.states(packed, states.aux)
    weights = torch.where(packed.is_target, step_weights[:, None], 0.0)
    with clock("teacher, head, loss"):
        found = head_loss(
            picked.detach(),
            states.last.index_select(0, packed.teachers),
            weights,
            unroll.head,
            teacher=teacher,
            vocabulary=vocabulary,
            loss=loss,
            ops=ops,
        )
    if picked.requires_grad:
        with clock("draft backward"):
            torch.autograd.backward(picked, found.grad_states)
    total = (found.losses * weights).sum()
    return total, _counts(found, packed)


def no_counts(num_steps: int, device: torch.device) -> tuple[Tensor, StepCounts]:
    """Loss and counts of a micro-batch without a target."""
    none = {field.name: torch.zeros(num_steps, dtype=torch.int64, device=device) for field in fields(StepCounts)}
    return torch.zeros((), device=device), StepCounts(**none)


def _counts(found: HeadLoss, packed: Packed) -> StepCounts:
    """[K] each, still on the device."""
    num_steps = len(packed.picks)
    is_known = packed.is_target & (found.argmax_draft >= 0)
    is_right = is_known & (found.drafted == found.argmax_draft)
    # By the position that learns, not the one learnt from; the padding takes what does not count.
    shape = (num_steps, packed.length)
    device = is_known.device
    is_target_at = torch.zeros(shape, dtype=torch.bool, device=device).scatter_(1, packed.picks, packed.is_target)
    is_right_at = torch.zeros(shape, dtype=torch.bool, device=device).scatter_(1, packed.picks, is_right)
    num_chains, num_reached, num_joint = count_chains(is_target_at, is_right_at)
    return StepCounts(
        loss=found.losses.sum(1),
        num_targets=packed.is_target.sum(1),
        num_in_vocab=is_known.sum(1),
        num_right=is_right.sum(1),
        num_chains=num_chains,
        num_reached=num_reached,
        num_joint=num_joint,
    )
