"""Everything about a run that is known before a model is loaded: rows, vocabulary, steps."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.contract.files.checkpoint import TensorInfo
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.reading.open_draft import open_draft
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_parts import name_parts
from eyas.contract.spec.target_size import TargetSize, size_of_tensors
from eyas.contract.spec.target_spec import TargetSpec, read_target
from eyas.data.rows.row_store import Rows
from eyas.data.rows.same_text import require_same_text
from eyas.errors import EyasError
from eyas.models.save_draft import choose_dialect
from eyas.records.rows import RULES, RowsUnreadable
from eyas.train.config import NUM_BOUNDARIES, DraftShape, Resolved, TrainConfig, TrainConfigInvalid, resolve
from eyas.train.preflight.costs import Costs, estimate_costs
from eyas.train.preflight.draft_spec import draft_spec_for, freeze_notes
from eyas.train.preflight.given_states import StoredRows, open_stored
from eyas.train.preflight.hardware import resident_bytes
from eyas.train.request import TrainRequest
from eyas.train.rows.batch_plan import Batch, plan_batches
from eyas.train.rows.held_out_rows import (
    HeldOutRows,
    HeldOutUnusable,
    find_held_out,
    read_held_out,
    read_held_out_pack,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class DraftVocabTooLarge(EyasError):
    """The draft vocabulary asked for is larger than the target's."""

    code = "draft-vocab-too-large"


@dataclass(frozen=True, slots=True)
class ChosenVocabulary:
    """The chosen draft vocabulary.

    Attributes:
        ids: D target ids, ascending and distinct.
        coverage: share of the supervised tokens that are among them; any other token can never be drafted.
        num_seen: how many of `ids` are supervised at least once; the others are the lowest remaining ids.
    """

    ids: tuple[int, ...]
    coverage: float
    num_seen: int


def choose_vocabulary(counts: "NDArray[np.int64]", size: int) -> ChosenVocabulary:
    """The `size` most frequent tokens; ties go to the lower id (in a BPE vocabulary the commoner one).

    Args:
        counts: [V] how often each target id is supervised.
        size: D; 0 = all V.

    Raises:
        DraftVocabTooLarge: size > V.
    """
    import numpy as np

    vocab_size = len(counts)
    if size > vocab_size:
        raise DraftVocabTooLarge(
            f"a draft vocabulary of {size} is larger than the target's",
            f"--draft-vocab-size {size}",
            f"the target has {vocab_size} tokens",
            "give a smaller one, or `full`",
        )
    size = size or vocab_size
    chosen = np.sort(np.argsort(-counts, kind="stable")[:size])
    total = int(counts.sum())
    return ChosenVocabulary(
        ids=tuple(chosen.tolist()),
        coverage=float(counts[chosen].sum() / total) if total else 0.0,
        num_seen=int((counts[chosen] > 0).sum()),
    )


_REPLAYS_WANTED = 10
_DECIDE_NOTHING = {"checkpoint_every_s", "log_every", "micro_batch_tokens", "unroll"}
_FEW_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """A run as planned.

    Attributes:
        spec: of the draft, a new one's or that of `--init-from`.
        vocabulary: of a new draft; None with `--init-from`, whose draft keeps its own.
        batches: of all optimiser steps in order.
        num_tokens: in all batches together.
        costs: estimated from shapes.
        held_out: rows for the replays while training, or None.
        eval_every: steps between replays; 0 without held-out rows.
        stored: the rows' states, where they are in a store.
        states: fingerprint of what the states are, where they come from elsewhere; None with the target here.
    """

    rows: Rows
    target: TargetSpec = field(repr=False)
    spec: DraftSpec = field(repr=False)
    vocabulary: ChosenVocabulary | None = field(repr=False)
    resolved: Resolved
    batches: list[Batch] = field(repr=False)
    num_tokens: int
    costs: Costs
    held_out: HeldOutRows | None = field(default=None, repr=False)
    eval_every: int = 0
    stored: StoredRows | None = field(default=None, repr=False)
    states: str | None = None

    def as_document(self) -> dict[str, Any]:
        """Sizes and counts as a JSON object."""
        manifest = self.rows.manifest
        return {
            "rows": {
                "fingerprint": manifest.fingerprint,
                "num_rows": manifest.num_rows,
                "num_tokens": manifest.num_tokens,
                "num_supervised": manifest.num_supervised,
            },
            "steps": len(self.batches),
            "tokens": self.num_tokens,
            "batch_tokens": self.resolved.batch_tokens,
            "lr": self.resolved.lr,
            "draft_vocab_size": self.spec.draft_vocab_size,
            "vocabulary_coverage": self.vocabulary.coverage if self.vocabulary else None,
            "held_out": None
            if self.held_out is None
            else {
                "path": str(self.held_out.path),
                "fingerprint": self.held_out.fingerprint,
                "num_rows": len(self.held_out.rows),
                "num_tokens": self.held_out.num_tokens,
                "eval_every": self.eval_every,
            },
            "costs": {
                "trained_parameters": self.costs.num_trained,
                "gflop_per_token": self.costs.flop_per_token / 1e9,
                "peak_bytes": self.costs.peak_bytes,
                "memory_bytes": self.costs.memory_bytes,
                "checkpoint_bytes": self.costs.checkpoint_bytes,
                "draft_bytes": self.costs.draft_bytes,
            },
        }


def make_plan(request: TrainRequest, config: TrainConfig, device_type: str = "cpu") -> TrainPlan:
    """Read rows and target config, choose the vocabulary and the draft's shape, lay out the steps.

    Args:
        device_type: "cpu" or "cuda", for the estimate of memory.

    Raises:
        RowsUnreadable: no rows in the folder, none with a supervised token, or token ids that the target does not have.
        RowsOfAnotherTarget: tokenizer or template differ.
        DraftVocabTooLarge: larger than the target's.
        TargetShapeUnknown, AuxBoundaryBeyondTarget: see `initialise.draft_spec_for`.
        DraftUnwritable: no format can hold the new draft.
        TrainConfigInvalid: the options describe another draft than `init_from`, freeze what cannot be frozen alone, or
            name held-out rows without a replay.
        HeldOutUnusable: no held-out row can be replayed.
        StatesOfAnotherTarget, StoreLacksRows, StoreLacksBoundary: the store does not fit target, rows or draft.
    """
    target, stored, init_from = read_target(request.target), None, request.init_from
    if request.hidden_states is not None:
        stored = open_stored(request.hidden_states, request.rows, request.target, target)
        config, noted = _with_boundaries(config, stored, init_from)
    assert stored is not None or request.rows is not None, "`require_startable` asks for rows"
    rows = Rows(request.rows) if stored is None and request.rows is not None else stored.rows  # type: ignore[union-attr]
    require_same_text(target, rows)
    _require_lesson(rows)
    manifest = rows.manifest
    tensors = read_checkpoint(request.target).tensors
    vocab_size = target.vocab_size or 0
    if vocab_size:
        rows.require_within(vocab_size)
    vocabulary, notes = None, [*_age_notes(rows), *(() if stored is None else (*stored.notes, *noted))]
    if init_from is not None:
        spec = open_draft(init_from, target)
        _require_same_shape(config, init_from, spec)
    else:
        counts = rows.supervised_counts(vocab_size)
        offered, said = config.offered_of(len(counts))
        notes += said
        vocabulary = choose_vocabulary(counts, offered)
        size = len(vocabulary.ids)
        _require_layers(config, target)
        spec = draft_spec_for(
            target,
            vocab_size=vocab_size,
            draft_vocab_size=size,
            trained_length=manifest.longest,
            aux_boundaries=config.aux_boundaries,
            shape=config.shape,
        )
    notes += freeze_notes(spec, config, f"--init-from {init_from}" if init_from else "the new draft")
    notes += _format_notes(spec, target)
    if stored is not None:
        stored.reader.columns(spec.aux_boundaries or ())
    held_out_rows, held_out_notes = _held_out(request, config, target, stored)
    notes += held_out_notes
    resolved = resolve(
        config,
        hidden_size=spec.hidden_size,
        num_tokens=manifest.num_tokens,
        longest=manifest.longest,
        is_new=init_from is None,
    )
    batches = plan_batches([rows.length(i) for i in range(len(rows))], config, resolved.batch_tokens)
    notes += _length_notes(batches, config)
    return TrainPlan(
        rows=rows,
        target=target,
        spec=spec,
        vocabulary=vocabulary,
        resolved=replace(resolved, notes=(*resolved.notes, *notes)),
        batches=batches,
        num_tokens=sum(batch.num_tokens for batch in batches),
        costs=estimate_costs(
            spec,
            config,
            target=_size(request, target, tensors),
            longest=manifest.longest,
            batch_tokens=resolved.batch_tokens,
            supervised=manifest.num_supervised / manifest.num_tokens,
            device_type=device_type,
            process_bytes=resident_bytes(),
            ahead_bytes=request.ahead_bytes(device_type) if request.is_given else None,
        ),
        held_out=held_out_rows,
        eval_every=0 if held_out_rows is None else config.eval_every or max(1, len(batches) // _REPLAYS_WANTED),
        stored=stored,
        states=stored.identity if stored is not None else "streamed" if request.streams else None,
    )


def run_identity(
    plan: TrainPlan, config: TrainConfig, *, weights: str, dtype: str, init_from: str | None
) -> dict[str, Any]:
    """What decides a run's result; a checkpoint is resumed only where all of it is equal.

    Args:
        weights: fingerprint of the target's weights.
        dtype: that the target computes in.
        init_from: fingerprint of the draft it starts from.
    """
    # Where feedback is dropped depends on how a step is divided.
    idle = _DECIDE_NOTHING - {"micro_batch_tokens"} if config.feedback_dropout else _DECIDE_NOTHING
    options = {name: value for name, value in asdict(config).items() if name not in idle}
    options |= options.pop("shape")
    return {
        "rows": plan.rows.manifest.fingerprint,
        "target config": plan.target.fingerprint,
        "target weights": weights,
        "target dtype": dtype,
        "init from": init_from,
        "states": plan.states,
        "held-out rows": plan.held_out and plan.held_out.fingerprint,
        **{f"--{name.replace('_', '-')}": value for name, value in options.items()},
    }


def _with_boundaries(
    config: TrainConfig, stored: StoredRows, init_from: Path | None
) -> tuple[TrainConfig, Sequence[str]]:
    """A new draft reads what the store holds, where the store holds as many states as a draft reads."""
    held = stored.reader.about.boundaries
    if config.aux_boundaries is not None or init_from is not None or len(held) != NUM_BOUNDARIES:
        return config, ()
    shown = " ".join(map(str, held))
    return replace(config, aux_boundaries=held), (f"aux boundaries {shown}: those of the store",)


def _held_out(
    request: TrainRequest, config: TrainConfig, target: TargetSpec, stored: StoredRows | None
) -> tuple[HeldOutRows | None, list[str]]:
    given = request.held_out
    if given is not None and config.eval_every == 0:
        raise TrainConfigInvalid(
            "--held-out conflicts with --eval-every 0",
            f"--held-out {given} --eval-every 0",
            "with --eval-every 0 the held-out rows are never replayed",
            "leave one of the two options out",
        )
    found = None if config.eval_every == 0 else find_held_out(given, request.rows)
    if found is None:
        return None, []
    if found.suffix == ".safetensors":
        return read_held_out_pack(found, config.held_out_rows, target.fingerprint), []
    held_out = read_held_out(found, config.held_out_rows, target.vocab_size)
    return (held_out, []) if stored is None else _stored_held_out(held_out, stored, is_wanted=given is not None)


def _stored_held_out(
    held_out: HeldOutRows, stored: StoredRows, *, is_wanted: bool
) -> tuple[HeldOutRows | None, list[str]]:
    """Those of the held-out rows whose states are in the store."""
    places = stored.places_of(held_out.rows)
    kept = tuple(row for row, place in zip(held_out.rows, places, strict=True) if place is not None)
    missing = len(places) - len(kept)
    if kept:
        return replace(held_out, rows=kept, num_skipped=held_out.num_skipped + missing), []
    do = "give --held-out PACK, a probe pack of the target (`eyas eval DRAFT --target T --data F --write-probe PACK`)"
    if is_wanted:
        raise HeldOutUnusable(
            "no held-out row has its states in the store", str(held_out.path), f"{missing} rows are not in it", do
        )
    return None, [f"the rows of {held_out.path} are not in the store, so no accept length is measured; {do}"]


def _size(request: TrainRequest, target: TargetSpec, tensors: Mapping[str, TensorInfo]) -> TargetSize:
    """Of the target, or of what is loaded of it."""
    if request.is_given:
        names = name_parts(target, tensors)
        parts = [tensors[name] for name in {names.embedding, names.head, names.norm}]
        num = sum(prod(part.shape) for part in parts)
        return TargetSize(num_params=num, num_active=0, num_bytes=sum(part.num_bytes for part in parts))
    if tensors:
        return size_of_tensors(target, tensors)
    from eyas.models.target.loading import size_of_config

    return size_of_config(target)


def _length_notes(batches: Sequence[Batch], config: TrainConfig) -> tuple[str, ...]:
    if config.steps is not None or len(batches) >= _FEW_STEPS:
        return ()
    steps = f"{len(batches)} optimiser step{'s' if len(batches) > 1 else ''}"
    return (
        f"the whole run is {steps}, too few for a draft to learn: prepare more data, or give more --epochs or smaller"
        " --batch-tokens",
    )


def _age_notes(rows: Rows) -> tuple[str, ...]:
    made = rows.manifest.rules
    if made == RULES:
        return ()
    which = f"rules {made}" if made else "rules that are not recorded"
    return (f"the rows were made by {which}, this eyas has {RULES}: run `eyas prepare --replace` to make them again",)


def _require_same_shape(config: TrainConfig, init_from: Path, spec: DraftSpec) -> None:
    plain = asdict(DraftShape())
    asked = {name: value for name, value in asdict(config.shape).items() if value != plain[name]}
    if config.aux_boundaries is not None:
        asked["aux_boundaries"] = config.aux_boundaries
    if config.draft_vocab_size is not None:
        asked["draft_vocab_size"] = config.offered or spec.vocab_size
    own = {name: getattr(spec, "draft_class" if name == "attention" else name) for name in asked}
    if config.init_layer is not None:
        asked["init_layer"], own["init_layer"] = config.init_layer, "trained weights"
    changed = [name for name in asked if asked[name] != own[name]]
    if changed:
        raise TrainConfigInvalid(
            "--init-from keeps the draft's shape and vocabulary",
            f"--init-from {init_from}",
            "; ".join(
                f"--{name.replace('_', '-')} {_typed(asked[name])}, it has {_typed(own[name])}" for name in changed
            ),
            "leave these options out, or leave --init-from out to train a new draft",
        )


def _require_layers(config: TrainConfig, target: TargetSpec) -> None:
    first, last = config.init_layer, (config.init_layer or 0) + config.shape.num_layers - 1
    if first is not None and target.num_layers is not None and last >= target.num_layers:
        raise TrainConfigInvalid(
            "the target has fewer layers than --init-layer asks for",
            f"--init-layer {first}",
            f"the draft would start from layer {last} of {target.num_layers}, counted from 0",
            f"give --init-layer {max(0, target.num_layers - config.shape.num_layers)} or less",
        )


def _typed(value: Any) -> str:
    """As on a command line."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _require_lesson(rows: Rows) -> None:
    manifest = rows.manifest
    if manifest.num_supervised == 0:
        raise RowsUnreadable(
            "no token of the rows is supervised",
            str(rows.folder),
            f"none of the {manifest.num_tokens} tokens in {manifest.num_rows} rows is part of an answer to learn from",
            "run `eyas prepare` again on conversations with answers",
        )


def _format_notes(spec: DraftSpec, target: TargetSpec) -> tuple[str, ...]:
    """Notes on the format that `save_draft` will choose; raises now what it would raise after training."""
    choice = choose_dialect(spec, target, where="the new draft")
    notes = []
    if choice.passed_over:
        notes.append(f"the draft will be in {choice.dialect.name}'s format: {'; '.join(choice.passed_over)}")
    elif spec.embedding == "own" and choice.dialect.name != "sglang":
        name = choice.dialect.name
        notes.append(f"the draft will be in {name}'s format: SGLang would replace its own embedding by the target's")
    return tuple(notes)
