"""The stage behind `eyas eval`: load, answer what has no answer yet, replay, record. With a target, or a probe pack."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.contract.reading.open_draft import open_draft
from eyas.contract.spec.target_spec import TargetSpec, read_target
from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft, required_boundaries
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement, place
from eyas.models.target import Target
from eyas.records.eval_record import EvalRecord, RowResult
from eyas.records.eval_rows import EvalPrompt, EvalRow, files_of, read_eval_rows, require_rounds, write_eval_rows
from eyas.records.probe_pack import ProbeAbout
from eyas.replay.answers import answer_prompts
from eyas.replay.eval_config import EvalConfig, ReplayConfig
from eyas.replay.eval_report import Replayed, about_target, record_of
from eyas.replay.probe_pack import PackStates, ProbePack, make_probe, read_probe, write_probe
from eyas.replay.replay import replay_states
from eyas.replay.states import LiveStates, States
from eyas.replay.tree_replay import replay_trees
from eyas.talk import Talk

_GPU_BATCH_TOKENS = 16384


class TreeNeedsTarget(EyasError):
    """A probe pack lacks what a tree's branches read."""

    code = "tree-needs-target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What an evaluation leaves behind besides its record, so that the next one is cheaper.

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
) -> EvalRecord:
    """The draft's accept length on the target's own greedy text, by replay.

    Args:
        draft_path: folder or file of the draft.
        target_folder: Hugging Face folder of the target.
        data: JSONL files (`records.eval_rows`), at least one.
        config: options.
        talk: progress, and what was defaulted or generated.
        keep: what to write besides.

    Raises:
        what reading the draft, the target and the rows raises (docs/errors.md).
    """
    started, placement, keep = time.monotonic(), prepare(config), keep or Keep()
    data = found_files(data, talk)
    read = read_eval_rows(data, config.max_rows, talk=talk)
    notes = [*_dtype_notes(config), *answer_notes(read, None if keep.rows else "--save-rows FILE")]
    for note in notes:
        talk.note(note)
    open_draft(draft_path, read_target(target_folder))  # what is wrong with it is said before the target writes
    rows = answered(read, target_folder, placement, config, talk)
    if keep.rows is not None:
        write_eval_rows(rows, keep.rows)
    target = Target.load(target_folder, placement)
    draft = load_for(draft_path, target_folder, target, placement, talk)
    identity = about_target(target_folder)
    states: States = LiveStates(target)
    if keep.probe is not None:
        boundaries = required_boundaries(draft)
        pack = make_probe(target, identity, rows, boundaries, talk, with_neighbours=config.probe_neighbours)
        write_probe(pack, keep.probe)
        kept = ", ".join(map(str, pack.states))
        talk.line(f"{keep.probe}: {len(rows)} rows, states at boundaries {kept}, {pack.num_bytes / 2**20:.0f} MiB")
        states = PackStates(pack, target.device)
    done = Replayed(
        draft_path=draft_path,
        draft=draft,
        target={"path": str(target_folder), **identity},
        data=data,
        rows=rows,
        results=_replay(states, draft, rows, config, talk),
        notes=notes,
        seconds=time.monotonic() - started,
    )
    return _told(record_of(done, config), talk)


def evaluate_on_probe(draft_path: Path, probe_path: Path, config: EvalConfig, talk: Talk) -> EvalRecord:
    """The draft's accept length on a probe pack's texts: no target is needed.

    Args:
        draft_path: folder or file of the draft.
        probe_path: the pack.
        config: options; `max_rows` takes the first rows of the pack.
        talk: progress, and what was defaulted.

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
            "the draft reads the target's embedding of every token it guesses, and a pack holds the recorded ones only",
            "evaluate with --target, or a chain with -k",
        )
    rows = pack.rows[: config.max_rows]
    done = Replayed(
        draft_path=draft_path,
        draft=draft,
        target={"path": None, **pack.about.target},
        data=[probe_path],
        rows=rows,
        results=_replay(PackStates(pack, placement.device), draft, rows, config, talk),
        notes=[f"the pack's states were computed in {pack.about.dtype}", *_dtype_notes(config)],
        seconds=time.monotonic() - started,
    )
    return _told(record_of(done, config), talk)


def load_for(draft_path: Path, folder: Path, target: Target, placement: Placement, talk: Talk) -> Eagle3Draft:
    """The draft, sharing what it has to with the target."""
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
    """Threads set, and the placement that the options mean."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    return place(config.dtype, config.device)


def found_files(data: Sequence[Path], talk: Talk) -> list[Path]:
    """The files that are meant; says so where a folder stood for one."""
    files = files_of(data)
    for given, file in zip(data, files, strict=True):
        if file != given:
            talk.line(f"{given} is a folder of rows: taking those that were held out, {file}")
    return files


def _dtype_notes(config: EvalConfig) -> list[str]:
    if config.dtype == "float32":
        return []
    return [f"computed in {config.dtype}: near-ties between tokens may fall otherwise than in float32"]


def answer_notes(read: Sequence[EvalRow | EvalPrompt], keeps: str | None) -> list[str]:
    """What to say of rows that the target has to answer.

    Args:
        keeps: what would keep the answers; None where they are kept.
    """
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


def answered(
    read: Sequence[EvalRow | EvalPrompt], folder: Path, placement: Placement, config: ReplayConfig, talk: Talk
) -> list[EvalRow]:
    """The rows as read, prompts replaced by rows with the answers of the target in `folder`; without those refused."""
    prompts = [row for row in read if isinstance(row, EvalPrompt)]
    if not prompts:
        return [row for row in read if isinstance(row, EvalRow)]
    talk.line(f"the target answers {len(prompts)} prompts, at most {config.max_new_tokens} tokens each")
    answers = iter(answer_prompts(folder, placement, prompts, config.max_new_tokens, talk))
    rows = [next(answers) if isinstance(row, EvalPrompt) else row for row in read]
    return [row for row in rows if row is not None]


def _replay(
    states: States, draft: Eagle3Draft, rows: Sequence[EvalRow], config: EvalConfig, talk: Talk
) -> list[RowResult]:
    require_rounds(rows, "eyas eval")
    if config.tree_shape is not None:
        return replay_trees(states, draft, rows, config.tree_shape, talk)
    batch_tokens = config.batch_tokens or (1 if states.device.type == "cpu" else _GPU_BATCH_TOKENS)
    return replay_states(states, draft, rows, config.num_draft_tokens, talk, batch_tokens=batch_tokens)


def _target_spec(about: ProbeAbout, where: str) -> TargetSpec:
    """As much of the target as a draft's config may leave to it."""
    return TargetSpec(
        where=where,
        architectures=tuple(about.target["architectures"]),
        model_type=about.target["model_type"],
        text_model_type=about.target["text_model_type"],
        hidden_size=about.target["hidden_size"],
        num_layers=about.num_layers,
        vocab_size=about.vocab_size,
    )


def _told(record: EvalRecord, talk: Talk) -> EvalRecord:
    for note in record.notes:
        talk.note(note)
    return record
