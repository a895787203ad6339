"""The stage behind `eyas infer`: the target's states once, neighbouring boundaries too; then every reading on them."""

from collections.abc import Sequence
from pathlib import Path

from eyas.contract.reading.open_draft import open_draft
from eyas.contract.spec.target_spec import read_target
from eyas.models.aux_boundaries import required_boundaries
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.records.eval_rows import EvalRow, read_eval_rows, require_rounds
from eyas.records.infer_record import InferRecord
from eyas.replay.eval_config import ReplayConfig
from eyas.replay.eval_report import about_target
from eyas.replay.evaluate import answer_notes, answered, found_files, load_for, load_for_pack, prepare
from eyas.replay.infer import infer_switches
from eyas.replay.probe_pack import PackStates, ProbePack, make_probe, read_probe
from eyas.talk import Talk

# Bases that drafts in the wild were trained with, tried besides the stated one and the target's.
_THETAS = (10_000.0, 500_000.0, 1_000_000.0)


def infer_with_target(
    draft_path: Path, target_folder: Path, data: Sequence[Path], config: ReplayConfig, talk: Talk
) -> InferRecord:
    """The readings of a draft (`replay.infer`) on the target's own text; the target runs once."""
    placement, read = prepare(config), read_eval_rows(found_files(data, talk), config.max_rows)
    for note in answer_notes(read, "`eyas eval DRAFT --save-rows FILE`"):
        talk.note(note)
    open_draft(draft_path, read_target(target_folder))  # what is wrong with it is said before the target writes
    rows = answered(read, target_folder, placement, config, talk)
    target = Target.load(target_folder, placement)
    draft = load_for(draft_path, target_folder, target, placement, talk)
    identity, boundaries = about_target(target_folder), required_boundaries(draft)
    pack = make_probe(target, identity, rows, boundaries, talk, with_neighbours=True)
    return _infer(draft_path, draft, pack, rows, read_target(target_folder).rope.theta, config, talk)


def infer_on_probe(draft_path: Path, probe_path: Path, config: ReplayConfig, talk: Talk) -> InferRecord:
    """The readings of a draft (`replay.infer`) on a pack; without neighbours in it, boundaries are not varied."""
    placement, pack = prepare(config), read_probe(probe_path)
    draft = load_for_pack(draft_path, pack, probe_path, placement, talk)
    if len(pack.states) <= len(required_boundaries(draft)):
        lacks = "the pack holds no neighbouring boundaries: shifted ones are not tried"
        talk.note(f"{lacks} (`eyas eval DRAFT --target T --write-probe PACK --probe-neighbours` keeps them)")
    return _infer(draft_path, draft, pack, pack.rows[: config.max_rows], None, config, talk)


def _infer(
    draft_path: Path,
    draft: Eagle3Draft,
    pack: ProbePack,
    rows: Sequence[EvalRow],
    target_theta: float | None,
    config: ReplayConfig,
    talk: Talk,
) -> InferRecord:
    require_rounds(rows, "eyas infer")
    variants = infer_switches(
        PackStates(pack, draft.fc.weight.device),
        draft,
        rows,
        config.num_draft_tokens,
        talk,
        boundaries_known=sorted(pack.states),
        thetas=sorted({*_THETAS, *([target_theta] if target_theta else [])}),
    )
    return InferRecord(
        variants=variants, num_draft_tokens=config.num_draft_tokens, num_rows=len(rows), draft=str(draft_path)
    )
