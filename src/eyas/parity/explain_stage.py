"""`eyas explain` from paths: draft and target or pack loaded, every known fault replayed, what was served explained."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from eyas.contract.engines.loading.ledger import Ledger
from eyas.decode.accept_length import Acceptance
from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft
from eyas.models.states import StateSource
from eyas.models.target import LiveStates, Target
from eyas.parity.explain import Commands, Explanation, explain, hypotheses
from eyas.parity.likelihood import ServedFigures
from eyas.parity.signatures import signatures
from eyas.records.eval_rows import EvalRow, require_rounds
from eyas.replay.emulate import FILLS
from eyas.replay.eval_config import ReplayConfig
from eyas.replay.evaluate import found_files, load_for, load_for_pack, prepare, rows_with_answers
from eyas.replay.infer import THETAS
from eyas.replay.predict import Prediction, predict_each, replayed
from eyas.replay.probe_pack import PackStates, read_probe
from eyas.replay.states import KeptStates
from eyas.talk import Talk


def explain_on_probe(
    draft_path: Path,
    probe_path: Path,
    served: ServedFigures,
    ledgers: Mapping[str, Ledger],
    commands: Commands,
    config: ReplayConfig,
    talk: Talk,
) -> Explanation:
    """What explains `served`, by replay on a pack's texts.

    Args:
        ledgers: engine -> what it does with the draft; {} = no engine is suspected more than another.

    Raises:
        ProbeUnreadable, ProbeLacksBoundary: the pack. What reading the draft raises (docs/errors.md).
    """
    placement, pack = prepare(config), read_probe(probe_path)
    draft = load_for_pack(draft_path, pack, probe_path, placement, talk)
    given = {"embedding": pack.embedding(placement.dtype).to(placement.device)}
    states, rows = PackStates(pack, placement.device), pack.rows[: config.max_rows]
    return _explained(
        states, draft, rows, served, ledgers, commands, sorted(pack.states), pack.about.num_layers, given, talk
    )


def explain_with_target(
    draft_path: Path,
    target_folder: Path,
    data: Sequence[Path],
    served: ServedFigures,
    ledgers: Mapping[str, Ledger],
    commands: Commands,
    config: ReplayConfig,
    talk: Talk,
) -> Explanation:
    """What explains `served`, by replay on texts of the target.

    Raises:
        what reading draft, target and rows raises (docs/errors.md).
    """
    placement, files = prepare(config), found_files(data, talk)
    rows, _ = rows_with_answers(draft_path, target_folder, files, placement, config, talk, None)
    target = Target.load(target_folder, placement)
    draft = load_for(draft_path, target_folder, target, placement, talk)
    given = {"embedding": target.parts.embedding, "head": target.parts.head}
    boundaries = range(target.num_layers + 1)
    return _explained(
        LiveStates(target), draft, rows, served, ledgers, commands, boundaries, target.num_layers, given, talk
    )


def _explained(
    source: StateSource,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    served: ServedFigures,
    ledgers: Mapping[str, Ledger],
    commands: Commands,
    boundaries: Sequence[int],
    num_layers: int,
    given: Mapping[str, Tensor],
    talk: Talk,
) -> Explanation:
    require_rounds(rows, "eyas explain")
    states, k = KeptStates(source), served.num_draft_tokens
    trained = replayed(states, draft, rows, k, talk)
    known = signatures(
        states, draft, rows, k, talk, boundaries_known=boundaries, thetas=THETAS, num_layers=num_layers,
        target_embedding=given.get("embedding"), fills=FILLS,
    )  # fmt: skip
    engines = predict_each(states, draft, rows, ledgers, trained, talk, target=given)
    for label, found in engines.items():
        if isinstance(found, EyasError):
            talk.note(f"{label}: no prediction: {found.why}")
    counts = Acceptance(trained.rounds, trained.accepted_at, (trained.rounds,) * k)
    predicted = {label: found for label, found in engines.items() if isinstance(found, Prediction)}
    return explain(served, hypotheses(counts, known, predicted), commands)
