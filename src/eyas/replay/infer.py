"""The stage behind `eyas infer`: replay each reading of a draft's undocumented switches and see which one accepts.

Only switches without tensors to show for them: residual, feedback, aux boundaries (one layer off, or reversed), RoPE
theta and pairing, width of a head, and a state normed twice (ModelOpt). A coordinate search: all single changes to the
best reading so far, again until none is better; while next to nothing is accepted, pairs of changes, too. The target
runs once, its neighbouring boundaries are kept, and every reading is replayed on them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import read_target
from eyas.models.draft import Eagle3Draft, required_boundaries
from eyas.models.draft_layer import DraftLayer
from eyas.models.states import StateSource
from eyas.models.target import Target
from eyas.records.eval_record import InferRecord, RowResult, Variant
from eyas.records.eval_rows import EvalRow, require_rounds
from eyas.replay.eval_config import ReplayConfig
from eyas.replay.evaluate import about_target, found_files, load_for, load_for_pack, prepare, rows_with_answers
from eyas.replay.figures import figures_of, is_clearly_better
from eyas.replay.probe_pack import PackStates, ProbePack, make_probe, read_probe
from eyas.replay.replay import replay_states
from eyas.talk import Silent, Talk

# A reading must beat the best by this share of its accepted drafts, and beyond the noise of few texts.
_MARGIN = 0.02
_MOST_PASSES = 6
_BATCH_TOKENS = 2048
_HOPELESS = 1.3  # a reading that accepts less is wrong in some way: pairs of changes are tried, too
_NARROWEST_HEAD, _WIDEST_HEAD = 32, 256  # that drafts in the wild have


def infer_switches(
    states: StateSource,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    num_draft_tokens: int,
    talk: Talk,
    *,
    boundaries_known: Sequence[int],
    thetas: Sequence[float],
) -> list[Variant]:
    """All readings tried, the one to believe first.

    Args:
        states: at all `boundaries_known`.
        draft: as its files state.
        rows: recorded continuations.
        num_draft_tokens: K ≥ 2, or the feedback switch shows nothing.
        boundaries_known: boundaries that `states` has.
        thetas: RoPE bases to try besides the stated one.

    Returns:
        Variants in falling accept length; what the files state stands first unless another beats it clearly.
    """
    assert num_draft_tokens >= 2, "with one draft per round the feedback switch shows nothing"
    tried: dict[_Reading, tuple[Variant, Sequence[RowResult]]] = {}
    best_reading = _Reading(spec=draft.spec, norms_twice=False)
    wanted = {best_reading}

    def measure(reading: _Reading) -> tuple[Variant, Sequence[RowResult]]:
        if reading not in tried:
            results = replay_states(
                states, _draft_of(draft, reading), rows, num_draft_tokens, Silent(), batch_tokens=_BATCH_TOKENS
            )
            figures, changes = figures_of(results, num_draft_tokens), _changes_of(draft.spec, reading)
            variant = Variant(changes=changes, accept_length=figures.accept_length, rounds=figures.rounds)
            tried[reading] = variant, results
            bar.advance()
            words = ", ".join(f"{name}={value}" for name, value in changes.items()) or "as stated"
            bar.say(f"reading {len(tried)} of {len(wanted)}, {words}: accept length {figures.accept_length:.3f}")
        return tried[reading]

    def better(readings: Sequence[_Reading]) -> tuple[_Reading, Variant, Sequence[RowResult]] | None:
        wanted.update(readings)
        around = [(*measure(reading), reading) for reading in readings]
        challenger, its_rounds, reading = max(around, key=lambda one: one[0].accept_length)
        is_more = challenger.accept_length - 1 > (best.accept_length - 1) * (1 + _MARGIN)
        return (reading, challenger, its_rounds) if is_more and is_clearly_better(its_rounds, rounds) else None

    with talk.progress("readings", None, "readings") as bar:
        best, rounds = measure(best_reading)
        for _ in range(_MOST_PASSES):
            around = list(_around(best_reading, boundaries_known, thetas))
            found = better(around)
            if found is None and best.accept_length < _HOPELESS:  # two wrong switches can hide each other
                pairs = (pair for reading in around for pair in _around(reading, boundaries_known, thetas))
                found = better([pair for pair in dict.fromkeys(pairs) if pair != best_reading])
            if found is None:
                break
            best_reading, best, rounds = found
    others = [
        replace(variant, is_tied=not is_clearly_better(rounds, its_rounds))
        for variant, its_rounds in tried.values()
        if variant is not best
    ]
    return [best, *sorted(others, key=lambda variant: -variant.accept_length)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Reading:
    """One function that the weights may have been trained as.

    Attributes:
        spec: its switches.
        norms_twice: `hidden_norm` sees the state after `input_layernorm`, as ModelOpt trained it from 2025-12 on; no
            engine computes that. Source: docs/log.md.
    """

    spec: DraftSpec
    norms_twice: bool

    @property
    def _key(self) -> str:
        spec = self.spec
        switches = spec.residual, spec.feedback, spec.aux_boundaries, spec.rope, spec.head_dim
        return repr((*switches, self.norms_twice))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reading) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _around(reading: _Reading, boundaries_known: Sequence[int], thetas: Sequence[float]) -> Iterator[_Reading]:
    """All readings that differ in one switch."""
    for spec in single_changes(reading.spec, boundaries_known, thetas):
        yield replace(reading, spec=spec)
    yield replace(reading, norms_twice=not reading.norms_twice)


def _draft_of(draft: Eagle3Draft, reading: _Reading) -> Eagle3Draft:
    other = as_read(draft, reading.spec)
    return normed_twice(other) if reading.norms_twice else other


def normed_twice(draft: Eagle3Draft) -> Eagle3Draft:
    """The same weights, the state normed by `input_layernorm` before `hidden_norm`."""
    other = as_read(draft, draft.spec)
    first = cast(DraftLayer, other.layers[0])
    assert first.hidden_norm is not None, "the first layer norms the state"
    first.hidden_norm = nn.Sequential(first.input_layernorm, first.hidden_norm)  # type: ignore[assignment]
    return other


def _changes_of(stated: DraftSpec, reading: _Reading) -> dict[str, Any]:
    twice = {"hidden_norm": "after input_layernorm"} if reading.norms_twice else {}
    return {**changes_of(stated, reading.spec), **twice}


def single_changes(spec: DraftSpec, boundaries_known: Sequence[int], thetas: Sequence[float]) -> Iterator[DraftSpec]:
    """`spec` with one switch changed, in every way that is tried."""
    yield replace(spec, residual="post-norm" if spec.residual == "pre-norm" else "pre-norm")
    yield replace(spec, feedback="post-norm" if spec.feedback == "pre-norm" else "pre-norm")
    boundaries = spec.aux_boundaries or ()
    shifted = [tuple(b + by for b in boundaries) for by in (-1, 1)]
    for other in (*shifted, tuple(reversed(boundaries))):
        if other != boundaries and set(other) <= set(boundaries_known):
            yield replace(spec, aux_boundaries=other)
    other_thetas = [theta for theta in thetas if theta != spec.rope.theta]
    for theta in other_thetas:
        yield replace(spec, rope=replace(spec.rope, theta=theta))
    for theta in (spec.rope.theta, *other_thetas):  # with wrong pairs, no theta is better than another
        yield replace(spec, rope=replace(spec.rope, theta=theta, interleaved=not spec.rope.interleaved))
    yield from _head_splits(spec)


def _head_splits(spec: DraftSpec) -> Iterator[DraftSpec]:
    """Heads half and twice as wide, of the same weights; none where a tensor shows the width."""
    has_factors = any(isinstance(value, list | tuple) for value in (spec.rope.scaling or {}).values())
    if spec.draft_class != "gqa" or spec.qk_norm or has_factors or spec.rope.partial_rotary_factor != 1:
        return
    if spec.head_dim % 4 == 0 and spec.head_dim // 2 >= _NARROWEST_HEAD:
        num, num_kv = 2 * spec.num_heads, 2 * spec.num_kv_heads
        yield replace(spec, num_heads=num, num_kv_heads=num_kv, head_dim=spec.head_dim // 2)
    is_even = spec.num_heads % 2 == spec.num_kv_heads % 2 == 0
    if is_even and _NARROWEST_HEAD <= spec.head_dim * 2 <= _WIDEST_HEAD:
        num, num_kv = spec.num_heads // 2, spec.num_kv_heads // 2
        yield replace(spec, num_heads=num, num_kv_heads=num_kv, head_dim=spec.head_dim * 2)


def as_read(draft: Eagle3Draft, spec: DraftSpec) -> Eagle3Draft:
    """The same weights (shared, not copied) under another reading."""
    required_boundaries(draft)
    with torch.device("meta"):
        other = Eagle3Draft(spec, target_embedding=draft.shared_embedding, target_head=draft.shared_head)
    other.load_state_dict(draft.state_dict(), assign=True)
    return other.eval()


def changes_of(stated: DraftSpec, spec: DraftSpec) -> dict[str, Any]:
    """Switch -> value where `spec` differs from what is stated."""
    found: dict[str, Any] = {}
    for name in ("residual", "feedback", "aux_boundaries", "head_dim"):
        if getattr(spec, name) != getattr(stated, name):
            found[name] = getattr(spec, name)
    for name in ("theta", "interleaved"):
        if getattr(spec.rope, name) != getattr(stated.rope, name):
            found[f"rope_{name}"] = getattr(spec.rope, name)
    return found


# Bases that drafts in the wild were trained with, tried besides the stated one and the target's.
THETAS = (10_000.0, 500_000.0, 1_000_000.0)


def infer_with_target(
    draft_path: Path, target_folder: Path, data: Sequence[Path], config: ReplayConfig, talk: Talk
) -> InferRecord:
    """The readings of a draft (`replay.infer`) on the target's own text; the target runs once."""
    placement, keeps = prepare(config), "`eyas eval DRAFT --save-rows FILE`"
    files = found_files(data, talk)
    rows, _ = rows_with_answers(draft_path, target_folder, files, placement, config, talk, keeps)
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
        thetas=sorted({*THETAS, *([target_theta] if target_theta else [])}),
    )
    return InferRecord(
        variants=variants, num_draft_tokens=config.num_draft_tokens, num_rows=len(rows), draft=str(draft_path)
    )
