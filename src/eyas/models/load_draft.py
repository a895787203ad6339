"""`load_draft`: a draft's folder as an `Eagle3Draft`, every tensor accounted for in both directions."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from eyas.contract.reading.open_draft import open_draft
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.errors import EyasError
from eyas.models.dequantise import dequantise
from eyas.models.draft import Eagle3Draft
from eyas.models.placement import Placement
from eyas.models.stored_tensors import stored_tensors
from eyas.talk import Silent, Talk, counted


class DraftTensorMissing(EyasError):
    """The function needs a tensor that the checkpoint does not have."""

    code = "draft-tensor-missing"


class DraftTensorUnknown(EyasError):
    """The checkpoint has a tensor that the function does not use: dropping it would hide a wrong switch."""

    code = "draft-tensor-unknown"


class DraftTensorShape(EyasError):
    """A tensor's shape is not the one that the config promises."""

    code = "draft-tensor-shape"


class DraftValuesNotFinite(EyasError):
    """A weight is NaN or infinite."""

    code = "draft-values-not-finite"


class VocabMapInvalid(EyasError):
    """`d2t` does not map the draft vocabulary to distinct target ids, or `t2d` says otherwise."""

    code = "vocab-map-invalid"


class DraftTargetMismatch(EyasError):
    """The draft shares a tensor of the target, and this target's does not fit it."""

    code = "draft-target-mismatch"


def load_draft(
    path: Path,
    placement: Placement,
    *,
    target_spec: TargetSpec | None = None,
    target_embedding: Tensor | None = None,
    target_head: Tensor | None = None,
    talk: Talk | None = None,
) -> Eagle3Draft:
    """The draft under `path`, in eval mode on the placement's device.

    Args:
        path: folder or weight file, in any format that `open_draft` reads.
        placement: dtype and device it computes in.
        target_spec: completes what the config leaves open (depth for default aux boundaries, widths).
        target_embedding: [V, H], used when the draft has none of its own.
        target_head: [V, H], likewise.
        talk: told of every tensor that is derived or set aside.

    Raises:
        DraftDamaged and what reading a checkpoint raises: see `contract.open_draft`.
        DraftTensorMissing, DraftTensorUnknown, DraftTensorShape: the two-way account does not close.
        DraftValuesNotFinite: a weight is NaN or infinite, as stored or in the placement's dtype.
        DraftPackingUnknown: quantised weights of a kind that eyas cannot compute with.
        VocabMapInvalid: the vocabulary map gives ids that do not exist, or one id twice.
        DraftTargetMismatch: the target's embedding or head does not fit, or is needed and not given.
    """
    path = Path(path)
    spec = open_draft(path, target_spec)
    _check_shared(spec, "embedding", spec.embedding == "target" or spec.head == "tied", target_embedding, path)
    _check_shared(spec, "head", spec.head == "target", target_head, path)
    talk = talk or Silent()
    tensors, unscaled = dequantise(dict(read_tensors(spec, path)), spec.quantization, str(path))
    if unscaled:
        spec = replace(spec, quantization=None)
        talk.note(
            f"{path}: {counted(len(unscaled), 'quantised weight')} computed as plain ones; activations are not rounded"
        )
    with torch.device("meta"):
        draft = Eagle3Draft(spec, target_embedding=target_embedding, target_head=target_head)
    draft = draft.to(placement.dtype).to_empty(device=placement.device)
    fill(draft, tensors, where=str(path), talk=talk)
    draft.unscaled = unscaled
    return draft.eval()


def read_tensors(spec: DraftSpec, path: Path) -> Iterator[tuple[str, Tensor]]:
    """Canonical name and contents (on the CPU, as stored) of every tensor of `spec`, from safetensors or .bin files."""
    # `mask_hidden` is of parallel drafting: eyas drafts one token a step.
    wanted = {spec.source_names[name]: info for name, info in spec.tensors.items() if name != "mask_hidden"}
    canonical = {stored: name for name, stored in spec.source_names.items()}
    for stored, tensor in stored_tensors(path if path.is_dir() else path.parent, wanted):
        yield canonical[stored], tensor


@torch.no_grad()
def fill(draft: Eagle3Draft, tensors: Mapping[str, Tensor], *, where: str, talk: Talk) -> None:
    """Copy `tensors` (canonical names) into `draft`; nothing may be left over or left unfilled.

    Raises: as `load_draft`.
    """
    wanted, given = draft.state_dict(), dict(tensors)
    _set_aside(draft.spec, given, where, talk)
    if draft.spec.has_vocab_map and "d2t" in given:
        given["t2d"] = _checked_map(draft.spec, given["d2t"], given.get("t2d"), where)
    if missing := sorted(wanted.keys() - given.keys()):
        raise DraftTensorMissing(
            f"the draft lacks {', '.join(missing[:6])}",
            where,
            f"its config describes {len(wanted)} tensors, {len(missing)} of them are not in the checkpoint",
            f"see where they went: eyas check {shlex.quote(where)}",
        )
    if unknown := sorted(given.keys() - wanted.keys()):
        raise DraftTensorUnknown(
            f"the draft has tensors that its function does not use: {', '.join(unknown[:6])}",
            where,
            "its config describes a function other than the one that was trained",
            f"see what they are: eyas check {shlex.quote(where)}",
        )
    for name, parameter in wanted.items():
        if parameter.shape != given[name].shape:
            raise DraftTensorShape(
                f"{name} is {list(given[name].shape)}, wanted {list(parameter.shape)}",
                where,
                "the config's sizes and the weights disagree",
                f"correct config.json; see eyas check {shlex.quote(where)}",
            )
        parameter.copy_(given[name])
        _require_finite(name, parameter, where)


def _require_finite(name: str, weight: Tensor, where: str) -> None:
    """Raise `DraftValuesNotFinite` at a NaN or an infinity: with it a draft proposes the same after every text."""
    if weight.numel() and weight.is_floating_point() and not torch.stack(weight.aminmax()).isfinite().all():
        raise DraftValuesNotFinite(
            f"{name} holds values that are NaN or infinite in {str(weight.dtype).removeprefix('torch.')}",
            where,
            f"{int((~weight.isfinite()).sum())} of {weight.numel()} values: its drafts are meaningless",
            f"export an earlier checkpoint; see how they are stored: eyas check --deep {shlex.quote(where)}",
        )


def _set_aside(spec: DraftSpec, given: dict[str, Tensor], where: str, talk: Talk) -> None:
    """Remove from `given` the tensors that change nothing, and say so."""
    for name in [name for name in given if ".unused_" in name]:
        del given[name]
        talk.note(f"{where}: {name} is left out: engines that read this format never use it")
    if spec.has_vocab_map or "d2t" not in given:
        return
    if bool(given["d2t"].any()):
        raise VocabMapInvalid(
            "d2t shifts ids although draft and target vocabulary are equally large",
            f"{where}: d2t",
            f"draft_vocab_size is {spec.draft_vocab_size} = vocab_size, so every offset must be 0",
            "correct draft_vocab_size",
        )
    del given["d2t"]
    given.pop("t2d", None)
    talk.note(f"{where}: d2t is the identity (the draft has the whole vocabulary) and is not used")


def _checked_map(spec: DraftSpec, d2t: Tensor, t2d: Tensor | None, where: str) -> Tensor:
    """The [V] mask of offered target ids."""
    if d2t.is_floating_point() or d2t.dim() != 1:
        raise VocabMapInvalid(
            "the vocabulary map is invalid",
            f"{where}: d2t",
            f"it is {list(d2t.shape)} of {str(d2t.dtype).removeprefix('torch.')}; wanted: a list of integers",
            "store d2t as int64 of one dimension",
        )
    ids = torch.arange(len(d2t)) + d2t.long()
    problem = ""
    if int(ids.min()) < 0 or int(ids.max()) >= spec.vocab_size:
        problem = f"i + d2t[i] goes from {int(ids.min())} to {int(ids.max())}, the target has {spec.vocab_size} ids"
    elif (num_distinct := len(set(ids.tolist()))) != len(ids):
        problem = f"i + d2t[i] gives {num_distinct} distinct ids for {len(ids)} draft ids"
    mask = torch.zeros(spec.vocab_size, dtype=torch.bool)
    if not problem:
        mask[ids] = True
        if t2d is not None and not torch.equal(mask, t2d.bool()):
            problem = f"t2d and d2t disagree at {int((mask != t2d.bool()).sum())} target ids"
    if problem:
        raise VocabMapInvalid(
            "the vocabulary map is invalid", f"{where}: d2t", problem, "write offsets into d2t (target = i + d2t[i])"
        )
    return mask


def _check_shared(spec: DraftSpec, part: str, is_needed: bool, weight: Tensor | None, path: Path) -> None:
    if not is_needed or (part == "embedding" and spec.embedding == "own"):
        return
    if weight is None:
        raise DraftTargetMismatch(
            f"the draft has no {part} of its own",
            str(path),
            f"it computes with the target's {part}, and no target was given",
            "name the target: --target T",
        )
    if weight.shape[1] != spec.hidden_size or weight.shape[0] < spec.vocab_size:
        raise DraftTargetMismatch(
            f"the target's {part} does not fit the draft",
            str(path),
            f"it is {list(weight.shape)}, the draft wants [{spec.vocab_size}, {spec.hidden_size}]",
            "give the target that the draft was trained for",
        )
