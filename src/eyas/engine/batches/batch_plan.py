"""How many sequences fit at a time: decided, or refused, before the first prompt is read. Knows sizes, no tensors."""

from dataclasses import dataclass

from eyas.errors import EnvironmentMissing


class BatchMemoryTooSmall(EnvironmentMissing):
    """The required number of sequences does not fit the memory budget."""

    code = "batch-memory-too-small"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The cache that will be allocated.

    Attributes:
        num_slots: sequences at a time.
        capacity: positions of a slot.
        num_bytes: of the whole cache.
    """

    num_slots: int
    capacity: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSize:
    """What one sequence takes.

    Attributes:
        capacity: positions.
        position_bytes: of one position, in all caches together.
        row_bytes: besides, whatever its length.
        num_spare: slots that are allocated beyond those that are used.
    """

    capacity: int
    position_bytes: int
    row_bytes: int = 0
    num_spare: int = 0

    def of(self, num_slots: int) -> int:
        """Bytes of `num_slots` sequences."""
        return (num_slots + self.num_spare) * (self.capacity * self.position_bytes + self.row_bytes)


def plan_batch(longest: int, num_requests: int, max_batch: int, position_bytes: int, budget_bytes: int) -> BatchPlan:
    """Fit as many sequences as the budget and `max_batch` allow.

    Args:
        longest: prompt and answer of the longest request, positions.
        num_requests: no more slots than requests.
        max_batch: no more slots than this.
        position_bytes: cache bytes of one position.
        budget_bytes: for the cache.

    Raises:
        BatchMemoryTooSmall: the longest request does not fit.
    """
    size = SlotSize(capacity=longest, position_bytes=position_bytes)
    return plan_slots(size, budget_bytes, least=1, most=min(max_batch, num_requests))


def plan_slots(size: SlotSize, budget_bytes: int, *, least: int, most: int) -> BatchPlan:
    """Fit as many sequences as the budget allows.

    Args:
        size: of one.
        budget_bytes: for all of it.
        least, most: how many there must and may be.

    Raises:
        BatchMemoryTooSmall: `least` do not fit.
    """
    one = size.of(1) - size.of(0)
    num_slots = min(most, budget_bytes // one - size.num_spare)
    if num_slots < least:
        who = f"{least} sequences of {size.capacity} tokens need"
        who = who if least > 1 else f"a sequence of {size.capacity} tokens needs"
        raise BatchMemoryTooSmall(
            f"{who} {size.of(least) / 2**20:.0f} MiB of cache",
            f"memory budget {budget_bytes / 2**20:.0f} MiB",
            "the longest prompt with its longest answer does not fit, and the run would fail when its turn comes",
            "raise the budget of the cache, take fewer sequences at a time, lower the longest answer, or drop the"
            " longest prompts",
        )
    return BatchPlan(num_slots=num_slots, capacity=size.capacity, num_bytes=size.of(num_slots))


def default_budget(free_bytes: int) -> int:
    """Share of free memory that a cache may take: logits, activations and other programs need some, too."""
    return int(free_bytes * 0.6)
