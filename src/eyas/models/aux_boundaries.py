"""Which of the target's states a loaded draft reads: known, or a named error."""

from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft


class AuxBoundariesUnknown(EyasError):
    """Nothing says which of the target's states the draft reads."""

    code = "aux-boundaries-unknown"


def required_boundaries(draft: Eagle3Draft) -> tuple[int, ...]:
    """The draft's aux boundaries, as the number of decoder layers applied.

    Raises:
        AuxBoundariesUnknown: it does not name any, and the target that decides the default was not at hand.
    """
    if draft.spec.aux_boundaries is None:
        raise AuxBoundariesUnknown(
            "the draft does not say which target states it reads",
            "config.json: eagle_aux_hidden_state_layer_ids",
            "fed other states than it was trained on, a draft accepts next to nothing",
            "write the ids into its config, or name the target with --target so that the default can be computed",
        )
    return draft.spec.aux_boundaries
