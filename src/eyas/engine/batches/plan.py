"""How many sequences fit at a time: decided, or refused, before the first prompt is read. Knows sizes, no tensors."""

from dataclasses import dataclass

from eyas.errors import EnvironmentMissing


class BatchMemoryTooSmall(EnvironmentMissing):
    """Not even one sequence fits the memory budget."""

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
    slot_bytes = longest * position_bytes
    num_slots = min(max_batch, num_requests, budget_bytes // slot_bytes)
    if num_slots < 1:
        raise BatchMemoryTooSmall(
            f"a sequence of {longest} tokens needs {slot_bytes / 2**20:.0f} MiB of cache",
            f"memory budget {budget_bytes / 2**20:.0f} MiB",
            "the longest prompt with its longest answer does not fit, so that the run would fail when it comes up",
            "raise the budget (eyas prepare: --max-cache-mib), lower the longest answer, or drop the longest prompts",
        )
    return BatchPlan(num_slots=num_slots, capacity=longest, num_bytes=num_slots * slot_bytes)


def default_budget(free_bytes: int) -> int:
    """Share of free memory that a cache may take: logits, activations and other programs need some, too."""
    return int(free_bytes * 0.6)
