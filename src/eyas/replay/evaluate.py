"""The stage behind `eyas eval`: load, answer what has no answer yet, replay, record. With a target, or a probe pack."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from eyas import __version__
from eyas.contract.engines.loading.ledger import Ledger
from eyas.contract.reading.open_draft import open_draft
from eyas.contract.spec.target_spec import TargetSpec, read_target
from eyas.decode.repetition import REPETITIVE, repetition_share
from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft, required_boundaries
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement, place
from eyas.models.states import StateSource
from eyas.models.target import LiveStates, Target
from eyas.models.target_folder import fingerprint_weights
from eyas.records import fingerprint
from eyas.records.eval_record import EvalRecord, NotRepetitive, RowResult
from eyas.records.eval_rows import EvalPrompt, EvalRow, files_of, read_eval_rows, require_rounds, write_eval_rows
from eyas.records.probe_pack import ProbeAbout
from eyas.replay.answers import answer_prompts
from eyas.replay.eval_config import EvalConfig, ReplayConfig
from eyas.replay.figures import (
    figures_by_prompt_length,
    figures_by_set,
    figures_of,
    is_nothing_accepted,
    nothing_accepted,
)
from eyas.replay.predict import predict_each, predictions_document
from eyas.replay.probe_pack import PackStates, ProbePack, make_probe, read_probe, write_probe
from eyas.replay.replay import batch_tokens_on, check_vocabulary, replay_states
from eyas.replay.states import KeptStates
from eyas.replay.tree_replay import replay_trees
from eyas.talk import Talk

_CAUSES = (
    "too few training tokens; rows that another model wrote; a draft of another target; or one read otherwise than it"
    " was trained (`eyas infer DRAFT --target T` tries that)"
)


class TreeNeedsTarget(EyasError):
    """A probe pack lacks what a tree's branches read."""

    code = "tree-needs-target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What an evaluation writes besides its record, so that the next one is cheaper.

    Attributes:
        rows: JSONL of the rows with the target's answers; None for none.
        probe: probe pack of the target's states over them; None for none.
    """

    rows: Path | None = None
    probe: Path | None = None


def evaluate(
    draft_path: Path,
    target_folder: Path,
    data: Sequence[Path],
    config: EvalConfig,
    talk: Talk,
    keep: Keep | None = None,
    ledgers: Mapping[str, Ledger] | None = None,
) -> EvalRecord:
    """The draft's accept length on the target's own greedy text, by replay.

    Args:
        draft_path: folder or file of the draft.
        target_folder: Hugging Face folder of the target.
        data: JSONL files (`records.eval_rows`), at least one.
        config: options.
        talk: progress, and what was defaulted or generated.
        keep: what to write besides.
        ledgers: engine -> what it does with this draft: predict what each will serve.

    Raises:
        what reading the draft, the target and the rows raises (docs/errors.md).
    """
    started, placement, keep = time.monotonic(), prepare(config), keep or Keep()
    files, keeps = found_files(data, talk), None if keep.rows else "--save-rows FILE"
    rows, notes = rows_with_answers(draft_path, target_folder, files, placement, config, talk, keeps)
    spec = read_target(target_folder)
    if keep.rows is not None:
        write_eval_rows(rows, keep.rows)
    target = Target.load(target_folder, placement)
    draft = load_for(draft_path, target_folder, target, placement, talk)
    identity = about_target(target_folder)
    states: StateSource = LiveStates(target)
    if keep.probe is not None:
        boundaries = required_boundaries(draft)
        for row in rows:
            check_vocabulary(row, target.vocab_size)
        pack = make_probe(target, identity, rows, boundaries, talk, with_neighbours=config.probe_neighbours)
        write_probe(pack, keep.probe)
        kept = ", ".join(map(str, pack.states))
        talk.line(f"{keep.probe}: {len(rows)} rows, states at boundaries {kept}, {pack.num_bytes / 2**20:.0f} MiB")
        states = PackStates(pack, target.device)
    identity = {"path": str(target_folder), **identity}
    given = {"embedding": target.parts.embedding, "head": target.parts.head}
    context = spec.max_position_embeddings
    about = _About(draft_path, identity, files, notes, started, context, ledgers or {}, given)
    return _replayed(states, draft, rows, config, talk, about)


def evaluate_on_probe(
    draft_path: Path,
    probe_path: Path,
    config: EvalConfig,
    talk: Talk,
    ledgers: Mapping[str, Ledger] | None = None,
) -> EvalRecord:
    """The draft's accept length on a probe pack's texts: no target is needed.

    Args:
        draft_path: folder or file of the draft.
        probe_path: the pack.
        config: options; `max_rows` takes the first rows of the pack.
        talk: progress, and what was defaulted.
        ledgers: see `evaluate`.

    Raises:
        ProbeUnreadable, ProbeLacksBoundary: the pack.
        TreeNeedsTarget: a tree of a draft that reads the target's embedding.
        DraftTargetMismatch: the draft computes with the target's whole head, which no pack holds.
        what reading the draft raises (docs/errors.md).
    """
    started, placement = time.monotonic(), prepare(config)
    pack = read_probe(probe_path)
    draft = load_for_pack(draft_path, pack, probe_path, placement, talk)
    if config.tree is not None and draft.spec.embedding != "own":
        raise TreeNeedsTarget(
            "a tree cannot be replayed on this pack",
            str(probe_path),
            "the draft reads the target's embedding of every token it drafts, and a pack holds recorded tokens only",
            "evaluate with --target, or a chain with -k",
        )
    rows = pack.rows[: config.max_rows]
    notes = [f"the pack's states were computed in {pack.about.dtype}", *_dtype_notes(config)]
    identity = {"path": None, **pack.about.target}
    given = {"embedding": pack.embedding(placement.dtype).to(placement.device)} if ledgers else {}
    about = _About(draft_path, identity, [probe_path], notes, started, ledgers=ledgers or {}, given=given)
    return _replayed(PackStates(pack, placement.device), draft, rows, config, talk, about)


@dataclass(frozen=True, slots=True)
class _About:
    """What identifies an evaluation, notes so far, when it began, the target's context in tokens, and its parts."""

    draft_path: Path
    target: Mapping[str, Any]
    data: Sequence[Path]
    notes: Sequence[str]
    started: float
    context: int | None = None
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    given: Mapping[str, Tensor] = field(default_factory=dict)


def _replayed(
    states: StateSource, draft: Eagle3Draft, rows: Sequence[EvalRow], config: EvalConfig, talk: Talk, about: _About
) -> EvalRecord:
    """Replay, make the record, and report its notes."""
    states = KeptStates(states) if about.ledgers else states
    results = _replay(states, draft, rows, config, talk)
    figures, depth = figures_of(results, config.depth), config.depth
    plain = [
        result for row, result in zip(rows, results, strict=True) if repetition_share([row.response_ids]) <= REPETITIVE
    ]
    notes = [*about.notes, *_length_notes(rows, about.context)]
    if single := sum(not result.accepted for result in results):
        notes.append(f"{single} rows are left out: one recorded token makes no round")
    if is_nothing_accepted(figures):
        notes.append(nothing_accepted(figures, _CAUSES))
    for note in notes:
        talk.note(note)
    engines = predict_each(states, draft, rows, about.ledgers, figures, talk, target=about.given)
    return EvalRecord(
        predicted=predictions_document(engines),
        figures=figures,
        sets=figures_by_set(results, depth),
        prompt_lengths=figures_by_prompt_length(results, [len(row.prompt_ids) for row in rows], depth),
        rows=results,
        not_repetitive=NotRepetitive(
            limit=REPETITIVE, figures=figures_of(plain, depth), sets=figures_by_set(plain, depth)
        ),
        tree=None if config.tree_shape is None else asdict(config.tree_shape),
        draft=_about_draft(about.draft_path, draft),
        target=about.target,
        data=_about_data(about.data, rows),
        settings={
            **asdict(config),
            "device": str(draft.fc.weight.device),
            "threads": torch.get_num_threads(),
            "seconds": round(time.monotonic() - about.started, 2),
            "versions": {"eyas": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        },
        notes=notes,
    )


def _length_notes(rows: Sequence[EvalRow], context: int | None) -> list[str]:
    longest = max(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    if context is None or longest <= context:
        return []
    num = sum(len(row.prompt_ids) + len(row.response_ids) > context for row in rows)
    return [f"{num} rows are longer than the target's context of {context} tokens (longest: {longest}): it was not"
            " trained for that, and a server would refuse them"]  # fmt: skip


def about_target(folder: Path) -> dict[str, Any]:
    """A target's identity: sizes and fingerprints of config, tokenizer, template and weights; no path."""
    spec = read_target(folder)
    return {**spec.as_document(), "text_model_type": spec.text_model_type, "weights": fingerprint_weights(folder)}


def _about_draft(path: Path, draft: Eagle3Draft) -> dict[str, Any]:
    spec = draft.spec
    files = sorted(path.glob("*.safetensors")) + sorted(path.glob("*.bin")) if path.is_dir() else [path]
    return {
        "path": str(path),
        "fingerprint": fingerprint.of_files(files),
        "dialect": spec.dialect,
        "aux_boundaries": list(spec.aux_boundaries or ()),
        "residual": spec.residual,
        "aux_norm": spec.aux_norm,
        "feedback": spec.feedback,
        "draft_vocab_size": spec.draft_vocab_size,
        "trained_length": spec.trained_length,
    }


def _about_data(paths: Sequence[Path], rows: Sequence[EvalRow]) -> dict[str, Any]:
    return {
        "paths": [str(path) for path in paths],
        "fingerprint": fingerprint.of_json([row.as_document() for row in rows]),
        "num_rows": len(rows),
        "num_prompt_tokens": sum(len(row.prompt_ids) for row in rows),
        "num_response_tokens": sum(len(row.response_ids) for row in rows),
    }


def load_for(draft_path: Path, folder: Path, target: Target, placement: Placement, talk: Talk) -> Eagle3Draft:
    """The draft, with the target's embedding and head where it has none of its own."""
    return load_draft(
        draft_path,
        placement,
        target_spec=read_target(folder),
        target_embedding=target.parts.embedding,
        target_head=target.parts.head,
        talk=talk,
    )


def load_for_pack(draft_path: Path, pack: ProbePack, probe_path: Path, placement: Placement, talk: Talk) -> Eagle3Draft:
    """The draft, with the pack's rows of the target's embedding."""
    return load_draft(
        draft_path,
        placement,
        target_spec=_target_spec(pack.about, str(probe_path)),
        target_embedding=pack.embedding(placement.dtype).to(placement.device),
        talk=talk,
    )


def prepare(config: ReplayConfig) -> Placement:
    """Set the threads; the placement that the options name."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    return place(config.dtype, config.device)


def found_files(data: Sequence[Path], talk: Talk) -> list[Path]:
    """The files to read; a folder of rows gives its held-out rows, with a note."""
    files = files_of(data)
    for given, file in zip(data, files, strict=True):
        if file != given:
            talk.line(f"{given} is a folder of rows: taking those that were held out, {file}")
    return files


def _dtype_notes(config: ReplayConfig) -> list[str]:
    if config.dtype == "float32":
        return []
    return [f"computed in {config.dtype}: near-ties between tokens may fall otherwise than in float32"]


def rows_with_answers(
    draft_path: Path,
    folder: Path,
    files: Sequence[Path],
    placement: Placement,
    config: ReplayConfig,
    talk: Talk,
    keeps: str | None,
) -> tuple[list[EvalRow], list[str]]:
    """The rows of the files, prompts replaced by rows with the answers of the target in `folder`; and what was noted.

    Args:
        keeps: what would keep the answers; None where they are kept.
    """
    read = read_eval_rows(files, config.max_rows, talk=talk)
    notes = [*_dtype_notes(config), *_answer_notes(read, keeps)]
    for note in notes:
        talk.note(note)
    open_draft(draft_path, read_target(folder))  # what is wrong with it is said before the target writes
    prompts = [row for row in read if isinstance(row, EvalPrompt)]
    if not prompts:
        return [row for row in read if isinstance(row, EvalRow)], notes
    talk.line(f"the target answers {len(prompts)} prompts, at most {config.max_new_tokens} tokens each")
    answers = iter(answer_prompts(folder, placement, prompts, config.max_new_tokens, talk))
    rows = [next(answers) if isinstance(row, EvalPrompt) else row for row in read]
    return [row for row in rows if row is not None], notes


def _answer_notes(read: Sequence[EvalRow | EvalPrompt], keeps: str | None) -> list[str]:
    """What to say of rows that the target has to answer."""
    prompts = [row for row in read if isinstance(row, EvalPrompt)]
    if not prompts:
        return []
    num_answered = sum(prompt.had_answer for prompt in prompts)
    parts = []
    if bare := len(prompts) - num_answered:
        parts.append(f"{bare} of {len(read)} rows are prompts without an answer")
    if num_answered:
        parts.append(
            f"{num_answered} of {len(read)} rows are conversations whose last answer is not used (accept length is"
            " measured on what the target itself writes, which only `prompt_ids` with `response_ids` are taken to be)"
        )
    kept = "" if keeps is None else f"; {keeps} keeps its answers, and --data FILE uses them the next time"
    return [f"{'; '.join(parts)}: the target answers them greedily{kept}"]


def _replay(
    states: StateSource, draft: Eagle3Draft, rows: Sequence[EvalRow], config: EvalConfig, talk: Talk
) -> list[RowResult]:
    require_rounds(rows, "eyas eval")
    if config.tree_shape is not None:
        return replay_trees(states, draft, rows, config.tree_shape, talk)
    batch_tokens = config.batch_tokens or batch_tokens_on(states.device)
    return replay_states(states, draft, rows, config.num_draft_tokens, talk, batch_tokens=batch_tokens)


def _target_spec(about: ProbeAbout, where: str) -> TargetSpec:
    """The part of the target that a draft's config may leave open."""
    return TargetSpec(
        where=where,
        architectures=tuple(about.target["architectures"]),
        model_type=about.target["model_type"],
        text_model_type=about.target["text_model_type"],
        hidden_size=about.target["hidden_size"],
        num_layers=about.num_layers,
        vocab_size=about.vocab_size,
    )
