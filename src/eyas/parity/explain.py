"""`eyas explain`: which known fault gives what a server accepted, ranked, and what would tell those alike apart.

Each hypothesis is replayed on the same texts: the draft as it was trained, with each known fault planted, and as an
engine's ledger has it. Two more are left open: the texts or the target are others, and a fault that is not known. An
answer is certain only if one class of hypotheses takes nearly all of the probability and fits by itself.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from eyas.decode.accept_length import Acceptance
from eyas.parity.likelihood import (
    AS_HARD,
    HARDER,
    ServedFigures,
    apart,
    deviation,
    log_likelihood,
    log_likelihood_of_anything,
    mean_log,
    posteriors,
)
from eyas.parity.signatures import Signature
from eyas.records.eval_record import Figures
from eyas.replay.predict import Prediction

SCHEMA = "eyas.explain/1"
Kind = Literal["as-trained", "fault", "engine", "elsewhere", "unknown"]
Certainty = Literal["certain", "likely", "open"]

# Prior weights: a fault that the ledger of the engine names is likelier than any other; a healthy draft is common.
_WEIGHTS: Mapping[Kind, float] = {
    "as-trained": 5.0,
    "fault": 1.0,
    "engine": 20.0,
    "elsewhere": 3.0,
    "unknown": 3.0,
}
_ALIKE = 2.0  # standard deviations between two mixes of texts: what no number of rounds on other texts tells apart
_CERTAIN, _LIKELY = 0.99, 0.5
_ROUNDS = 200  # with fewer nothing is certain
_FITS = 3.0  # standard deviations
_SHOWN = 0.01  # probability below which a class is not listed
_ELSEWHERE = (
    "texts harder than those replayed: the chat template is missing, another task or language, longer than in training",
    "a target unlike the one replayed: fine-tuned or quantised",
)


# What gives next to nothing on any text, and is not planted: it concerns no tensor and no switch.
_DEAD_SHARE = 0.05
_DEAD = (
    "the launch says EAGLE in place of EAGLE3: the draft gets the target's last state",
    "the engine drafts with a head or states of noise",
    "any other fault that leaves nothing of the draft: a wrong vocabulary map, a random embedding",
)
_SMALL = "or with a fault too small to show on other texts"
_OPEN: tuple[Kind, ...] = ("elsewhere", "unknown")
_UNKNOWN = ("a fault that eyas does not know, or several at once",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """What may be the case, and what it gives on the replayed texts.

    Attributes:
        members: what it says, for a person; counts on other texts do not tell them apart.
        replayed: counts over the replayed texts: of each part that differs a little.
        weight: prior, of all parts together.
    """

    kind: Kind
    members: tuple[str, ...]
    replayed: tuple[Acceptance, ...]
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A class of hypotheses, judged.

    Attributes:
        probability: of the class, by priors and likelihood.
        deviation: largest deviation of a served share from the class, in standard deviations.
    """

    hypothesis: Hypothesis
    probability: float
    deviation: float

    @property
    def fits(self) -> bool:
        """What was served may well come from it."""
        return self.deviation <= _FITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What was found.

    Attributes:
        served: what is to be explained.
        trained: the draft as it was trained, on the replayed texts.
        ranked: classes, the likeliest first.
        certainty: certain = the first takes 99 % over 200 rounds or more, and fits; likely = half; open = neither.
        commands: what to type next, the most telling first.
        notes: what was assumed.
    """

    served: ServedFigures
    trained: Acceptance
    ranked: tuple[Explained, ...]
    certainty: Certainty
    commands: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    def as_document(self) -> dict[str, Any]:
        """The object of schema eyas.explain/1."""
        return {
            "schema": SCHEMA,
            "certainty": self.certainty,
            "served": asdict(self.served),
            "trained": _figures(self.trained),
            "ranked": [
                {
                    "kind": one.hypothesis.kind,
                    "members": list(one.hypothesis.members),
                    "probability": one.probability,
                    "deviation": one.deviation,
                    "fits": one.fits,
                    **_figures(one.hypothesis.replayed[0]),
                }
                for one in self.ranked
            ],
            "commands": list(self.commands),
            "notes": list(self.notes),
        }


def hypotheses(
    trained: Acceptance, known: Sequence[Signature], engines: Mapping[str, Prediction]
) -> tuple[Hypothesis, ...]:
    """Everything that may be the case; what is alike on the replayed texts is one hypothesis.

    Args:
        known: of planted faults.
        engines: label -> what its ledger makes of the draft.
    """
    found = [_hypothesis("as-trained", ("the draft is served as it was trained",), trained)]
    for label, prediction in engines.items():
        for memory, figures in prediction.served.items():
            counts = _counts(figures)
            if counts.accepted_at == trained.accepted_at and counts.rounds == trained.rounds:
                continue
            lost = f"loses {', '.join(prediction.lost)}" if prediction.lost else "reads a switch otherwise"
            held = f" (memory holds {memory})" if memory != "exact" else ""
            found.append(_hypothesis("engine", (f"{label} {lost}{held}",), counts))
    found += [_hypothesis("fault", one.faults, one.acceptance) for one in known]
    return tuple(map(_completed, _merged(found)))


def _completed(one: Hypothesis) -> Hypothesis:
    """With what is not planted and gives the same: nothing on any text, or no difference that texts show."""
    if one.kind == "as-trained":
        return replace(one, members=(*one.members, _SMALL))
    is_dead = one.replayed[0].per_position[0] < _DEAD_SHARE
    return replace(one, members=(*one.members, *_DEAD)) if is_dead else one


def _hypothesis(kind: Kind, members: tuple[str, ...], counts: Acceptance) -> Hypothesis:
    return Hypothesis(kind=kind, members=members, replayed=(counts,), weight=_WEIGHTS[kind])


def explain(served: ServedFigures, candidates: Sequence[Hypothesis], commands: "Commands") -> Explanation:
    """Rank the hypotheses by what was served.

    Args:
        candidates: from `hypotheses`; the first is the draft as it was trained.
        commands: paths and names to put into what can be typed.
    """
    trained = candidates[0].replayed[0]
    others = (_hypothesis("elsewhere", _ELSEWHERE, trained), _hypothesis("unknown", _UNKNOWN, trained))
    everything = (*candidates, *others)
    likelihoods = [
        mean_log([log_likelihood(served, part, shift) for part in one.replayed for shift in _shifts(one)])
        for one in everything[:-1]
    ]
    likelihoods.append(log_likelihood_of_anything(served))
    chances = posteriors([one.weight for one in everything], likelihoods)
    judged = [
        Explained(hypothesis=one, probability=chance, deviation=_deviation(served, one))
        for one, chance in zip(everything, chances, strict=True)
    ]
    ranked = sorted(judged, key=lambda one: -one.probability)
    first = ranked[0]
    certainty: Certainty = "open"
    if first.fits and first.probability >= _LIKELY:
        is_sure = first.probability >= _CERTAIN and (served.rounds or 0) >= _ROUNDS
        certainty = "certain" if is_sure and first.hypothesis.kind not in _OPEN else "likely"
        certainty = "open" if first.hypothesis.kind == "unknown" else certainty
    shown = tuple(one for number, one in enumerate(ranked) if number == 0 or one.probability >= _SHOWN)
    return Explanation(
        served=served,
        trained=trained,
        ranked=shown,
        certainty=certainty,
        commands=commands.of(served, shown, certainty),
        notes=_notes(served),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What can be typed, with the paths of this very case.

    Attributes:
        states: `--probe PACK` or `--target T`, as given.
        engine: ENGINE==VERSION, or the words for it.
        url: of the server; None = not known.
    """

    draft: Path
    states: str
    engine: str = "ENGINE==VERSION"
    url: str | None = None

    def of(self, served: ServedFigures, ranked: Sequence[Explained], certainty: Certainty) -> tuple[str, ...]:
        """Commands that separate what is ranked, the most telling first."""
        draft, url = shlex.quote(str(self.draft)), self.url or "URL"
        target = self.states if self.states.startswith("--target") else "--target TARGET"
        check = f"eyas check {draft} {target} --for {self.engine} --ledger"
        parity = f"eyas parity {url} --draft {draft} {self.states} -k {served.num_draft_tokens}"
        kinds = {one.hypothesis.kind for one in ranked}
        members = [member for one in ranked for member in one.hypothesis.members]
        found = []
        if certainty != "certain" and not (served.per_position and (served.rounds or 0) >= 500):
            found.append(f"eyas accept {url} --ask   (counts per position: what tells most faults apart)")
        if ranked[0].hypothesis.kind == "as-trained":
            found.append(f"eyas eval {draft} {self.states}   (what this draft gives at its best)")
        if any("not loaded" in member or "loses" in member for member in members):
            found.append(f"{check}   (which tensors the engine gets)")
        if any("served as if" in member for member in members):
            found.append(f"eyas infer {draft} {self.states}   (what the draft was trained with)")
        if any("vocabulary map" in member for member in members):
            found.append(f"eyas check {draft} --deep   (d2t against the head's rows)")
        if kinds & {*_OPEN} or certainty == "open":
            found.append(f"{parity}   (the same on the server's own texts: exact)")
        return tuple(found)


def _merged(found: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Hypotheses that differ by less than texts do are one, of the kind of its first."""
    merged: list[Hypothesis] = []
    for one in found:
        alike = (n for n, other in enumerate(merged) if apart(one.replayed[0], other.replayed[0]) <= _ALIKE)
        number = next(alike, None)
        if number is None:
            merged.append(one)
        else:
            other = merged[number]
            merged[number] = Hypothesis(
                kind=other.kind,
                members=tuple(dict.fromkeys((*other.members, *one.members))),
                replayed=(*other.replayed, *one.replayed),
                weight=other.weight + one.weight,
            )
    return merged


def _deviation(served: ServedFigures, one: Hypothesis) -> float:
    if one.kind == "unknown":
        return 0.0
    return min(deviation(served, part, shift) for part in one.replayed for shift in _shifts(one))


def _shifts(one: Hypothesis) -> Sequence[float]:
    """What may move all shares at once."""
    return HARDER if one.kind == "elsewhere" else AS_HARD if one.kind == "as-trained" else (0.0,)


def _counts(figures: Figures) -> Acceptance:
    return Acceptance(figures.rounds, figures.accepted_at, (figures.rounds,) * len(figures.accepted_at))


def _figures(counts: Acceptance) -> dict[str, Any]:
    return {
        "accept_length": counts.accept_length,
        "per_position": list(counts.per_position),
        "rounds": counts.rounds,
    }


def _notes(served: ServedFigures) -> tuple[str, ...]:
    notes = []
    if served.rounds is None:
        notes.append(f"the number of verify passes is unknown: {served.known_rounds} are assumed")
    if not served.per_position:
        notes.append("acceptance per position is unknown: faults of equal accept length cannot be told apart")
    return tuple(notes)
