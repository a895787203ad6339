"""The draft vocabulary: the target's tokens that the draft can propose, chosen by their frequency in the answers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eyas.errors import EyasError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class DraftVocabTooLarge(EyasError):
    """The draft vocabulary asked for is larger than the target's."""

    code = "draft-vocab-too-large"


@dataclass(frozen=True, slots=True)
class ChosenVocabulary:
    """The chosen draft vocabulary.

    Attributes:
        ids: D target ids, ascending and distinct.
        coverage: share of the supervised tokens that are among them; any other token can never be drafted.
        num_seen: how many of `ids` are supervised at least once; the others are the lowest remaining ids.
    """

    ids: tuple[int, ...]
    coverage: float
    num_seen: int


def choose_vocabulary(counts: "NDArray[np.int64]", size: int) -> ChosenVocabulary:
    """The `size` most frequent tokens; ties go to the lower id (in a BPE vocabulary the commoner one).

    Args:
        counts: [V] how often each target id is supervised.
        size: D; 0 = all V.

    Raises:
        DraftVocabTooLarge: size > V.
    """
    import numpy as np

    vocab_size = len(counts)
    if size > vocab_size:
        raise DraftVocabTooLarge(
            f"a draft vocabulary of {size} is larger than the target's",
            f"--draft-vocab-size {size}",
            f"the target has {vocab_size} tokens",
            "give a smaller one, or `full`",
        )
    size = size or vocab_size
    chosen = np.sort(np.argsort(-counts, kind="stable")[:size])
    total = int(counts.sum())
    return ChosenVocabulary(
        ids=tuple(chosen.tolist()),
        coverage=float(counts[chosen].sum() / total) if total else 0.0,
        num_seen=int((counts[chosen] > 0).sum()),
    )
