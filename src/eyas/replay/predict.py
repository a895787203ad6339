"""What accept length an engine will reach with a draft: the draft as that engine runs it (`emulate`), replayed.

What an engine leaves uninitialised is whatever memory held: zeros on a fresh GPU, anything later. So a prediction is a
range over `FILLS`, never one number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from eyas.contract.engines.loading.ledger import Ledger, PositionLimit
from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft
from eyas.models.states import StateSource
from eyas.records.eval_record import Figures
from eyas.records.eval_rows import EvalRow
from eyas.records.probe_pack import ProbeLacksBoundary
from eyas.replay.emulate import FILLS, EmulationImpossible, emulate, impossible
from eyas.replay.figures import figures_of
from eyas.replay.replay import replay_states
from eyas.replay.states import SomeRows
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
        blocked: codes of what keeps this launch from serving: the figures hold once it is mended.
        limit: tokens of the texts that are in the figures of `served`, and what follows beyond; None = all.
    """

    engine: str
    trained: Figures
    served: Mapping[str, Figures]
    lost: tuple[str, ...]
    not_emulated: tuple[str, ...]
    blocked: tuple[str, ...] = ()
    limit: PositionLimit | None = None

    @property
    def accept_length_range(self) -> tuple[float, float]:
        """Lowest and highest accept length over what memory may hold."""
        lengths = [figures.accept_length for figures in self.served.values()]
        return min(lengths), max(lengths)

    def as_document(self) -> dict[str, Any]:
        """The prediction as a JSON object."""
        low, high = self.accept_length_range
        return {
            "accept_length": {"low": low, "high": high},
            "served": {fill: asdict(figures) for fill, figures in self.served.items()},
            "lost": list(self.lost),
            "not_emulated": list(self.not_emulated),
            "blocked": list(self.blocked),
            "limit": asdict(self.limit) if self.limit else None,
        }


def replayed(
    states: StateSource, draft: Eagle3Draft, rows: Sequence[EvalRow], num_draft_tokens: int, talk: Talk
) -> Figures:
    """The figures of `draft` as it is."""
    return figures_of(replay_states(states, draft, rows, num_draft_tokens, talk), num_draft_tokens)


def predict(
    states: StateSource,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    ledger: Ledger,
    num_draft_tokens: int,
    talk: Talk,
    *,
    target: Mapping[str, Tensor] | None = None,
    trained: Figures | None = None,
) -> Prediction:
    """Replay `draft` as trained and as `ledger`'s engine runs it.

    Args:
        states: of the target over `rows`, at the draft's and the engine's aux boundaries.
        target: see `emulate`.
        trained: figures of the draft as trained, where they are known already.

    Raises:
        EmulationImpossible: the engine does not load it.
        ProbeLacksBoundary: the engine taps states that the pack does not hold.
    """
    trained = trained or replayed(states, draft, rows, num_draft_tokens, talk)
    first = emulate(draft, ledger, FILLS[0], target=target)
    limit = ledger.limit if ledger.limit and any(_length(row) > ledger.limit.tokens for row in rows) else None
    if limit is not None:
        states, rows = _within(states, rows, limit.tokens)
        if not rows:
            raise impossible(ledger, f"all texts begin beyond {limit.tokens} tokens, where {limit.beyond}")
    if not (first.lost or first.unscaled or limit) and first.draft.spec == draft.spec:  # nothing to compute again
        served = {"exact": trained}
    else:
        fills = FILLS if first.lost else FILLS[:1]
        drafts = {fill: emulate(draft, ledger, fill, target=target).draft for fill in fills}
        figures = {fill: replayed(states, one, rows, num_draft_tokens, talk) for fill, one in drafts.items()}
        served = {str(fill): found for fill, found in figures.items()} if first.lost else {"exact": figures["zeros"]}
    return Prediction(
        engine=ledger.engine.label,
        trained=trained,
        served=served,
        lost=first.lost,
        not_emulated=first.not_emulated,
        blocked=tuple(dict.fromkeys(r.code for r in ledger.reasons if r.verdict in ("refuses", "crash"))),
        limit=limit,
    )


def _length(row: EvalRow) -> int:
    return len(row.prompt_ids) + len(row.response_ids)


def _within(states: StateSource, rows: Sequence[EvalRow], tokens: int) -> tuple[StateSource, list[EvalRow]]:
    """The first tokens of each text; texts whose prompt leaves no room for a round are left out."""
    numbers = [number for number, row in enumerate(rows) if len(row.prompt_ids) + 2 <= tokens]
    kept = [replace(rows[n], response_ids=rows[n].response_ids[: tokens - len(rows[n].prompt_ids)]) for n in numbers]
    return SomeRows(states, numbers), kept


def as_trained(engine: str, trained: Figures) -> Prediction:
    """Of our own engine: it computes the draft as it was trained (tests/replay/test_equals_engine.py)."""
    return Prediction(engine=engine, trained=trained, served={"exact": trained}, lost=(), not_emulated=())


def predict_each(
    states: StateSource,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    ledgers: Mapping[str, Ledger],
    trained: Figures,
    talk: Talk,
    *,
    target: Mapping[str, Tensor],
) -> dict[str, Prediction | EyasError]:
    """Label -> `predict`, or why there is none; `trained` gives K."""
    found = dict[str, Prediction | EyasError]()
    for label, ledger in ledgers.items():
        try:
            found[label] = predict(
                states, draft, rows, ledger, trained.num_draft_tokens, talk, target=target, trained=trained
            )
        except (EmulationImpossible, ProbeLacksBoundary) as error:
            found[label] = error
    return found


def predictions_document(engines: Mapping[str, Prediction | EyasError]) -> dict[str, Any]:
    """The predictions as a JSON object, by label."""
    return {
        label: {"refused": found.code, "why": found.why} if isinstance(found, EyasError) else found.as_document()
        for label, found in engines.items()
    }
