"""What accept length an engine will reach with a draft: the emulated draft replayed, as a range over unknown memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from eyas.contract.engines.loading.ledger import Ledger
from eyas.models.draft import Eagle3Draft
from eyas.records.eval_record import Figures
from eyas.records.eval_rows import EvalRow
from eyas.replay.emulate import FILLS, emulate
from eyas.replay.figures import figures_of
from eyas.replay.replay import replay_states
from eyas.replay.states import States
from eyas.talk import Talk


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Accept length of a draft as trained, and as one engine runs it.

    Attributes:
        engine: label.
        trained: replayed as it was trained.
        served: fill -> replayed as the engine runs it; a single entry "exact" when nothing is left uninitialised.
        lost: canonical names of the tensors that the engine does not get.
        not_emulated: ignored config keys whose effect is not in the figures.
    """

    engine: str
    trained: Figures
    served: Mapping[str, Figures]
    lost: tuple[str, ...]
    not_emulated: tuple[str, ...]

    @property
    def accept_length_range(self) -> tuple[float, float]:
        """Lowest and highest accept length over what memory may hold."""
        lengths = [figures.accept_length for figures in self.served.values()]
        return min(lengths), max(lengths)


def predict(
    states: States,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    ledger: Ledger,
    num_draft_tokens: int,
    talk: Talk,
    *,
    target: Mapping[str, Tensor] | None = None,
) -> Prediction:
    """Replay `draft` as trained and as `ledger`'s engine runs it.

    Args:
        states: of the target over `rows`, at the draft's and the engine's aux boundaries.
        target: see `emulate`.

    Raises:
        EmulationImpossible: the engine does not start.
        ProbeLacksBoundary: the engine taps states that the pack does not hold.
    """

    def figures(as_run: Eagle3Draft) -> Figures:
        return figures_of(replay_states(states, as_run, rows, num_draft_tokens, talk), num_draft_tokens)

    first = emulate(draft, ledger, FILLS[0], target=target)
    served = (
        {"exact": first} if not first.lost else {fill: emulate(draft, ledger, fill, target=target) for fill in FILLS}
    )
    return Prediction(
        engine=ledger.engine.label,
        trained=figures(draft),
        served={fill: figures(emulated.draft) for fill, emulated in served.items()},
        lost=first.lost,
        not_emulated=first.not_emulated,
    )
