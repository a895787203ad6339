"""What to say of a draft of which nothing is accepted: it would only slow a server down."""

from eyas.records.eval_record import Figures

_NOTHING = 1.005  # shown as 1.00


def is_nothing_accepted(figures: Figures) -> bool:
    """Whether the accept length is 1.00, as it is shown. Without a round nothing is known: False."""
    return figures.rounds > 0 and figures.accept_length < _NOTHING


def nothing_accepted(figures: Figures, causes: str) -> str:
    """The note, with the likely `causes` in the order in which to look."""
    return (
        f"nothing is accepted: accept length {figures.accept_length:.2f} over {figures.rounds} rounds, so this draft"
        f" speeds nothing up. Likely: {causes}; docs/training.md, 'When nothing is accepted'"
    )
