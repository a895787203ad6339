"""How much a text repeats itself. Greedy answers of small models do, and a repeated text flatters every draft."""

from collections.abc import Sequence

# A text above it counts as repetitive: a quarter of it was there before.
REPETITIVE = 0.25


def repetition_share(texts: Sequence[Sequence[int]], width: int = 4) -> float:
    """Share of tokens that end an n-gram of `width` seen before in the same text; 0.0 without any."""
    repeated = total = 0
    for ids in texts:
        seen: set[tuple[int, ...]] = set()
        for end in range(width, len(ids) + 1):
            gram = tuple(ids[end - width : end])
            repeated += gram in seen
            seen.add(gram)
            total += 1
    return repeated / total if total else 0.0
