"""Setting up the proof of a source: what it is compared with, and on which rows."""

from collections.abc import Sequence

import psutil
import torch

from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.spec.target_parts import TargetPartMissing
from eyas.errors import EyasError
from eyas.extract.config import ExtractConfig
from eyas.extract.proof import Proof, Prover, mismatch, num_asked
from eyas.extract.source import AskedRow, ExtractSource, Wanted
from eyas.extract.transformers_source import TransformersSource
from eyas.models.placement import Placement
from eyas.models.target import FrozenParts, Target
from eyas.talk import Talk, counted, gigabytes

_MOST_TOKENS = {"cpu": 512, "cuda": 8192}  # of a row: chunks and caches show in long ones
_MEMORY_SPARE = 1.25


def prover_of(source: ExtractSource, wanted: Wanted, placement: Placement, config: ExtractConfig, talk: Talk) -> Prover:
    """What the source is compared with: the target itself where it fits, and its head where that can be read."""
    try:
        parts = FrozenParts.load(wanted.folder, place_of_parts(source, placement))
    except TargetPartMissing as error:
        talk.note(f"the source's own tokens are not checked: {error.what} ({error.why})")
        parts = None
    own = source.target if isinstance(source, TransformersSource) else None
    return Prover(source, wanted, parts, own or _reference(wanted, placement, config, talk))


def place_of_parts(source: ExtractSource, placement: Placement) -> Placement:
    """Where head and norm are put: beside a target in this process; on the CPU where a server may fill the GPU."""
    return placement if source.is_reference else Placement(getattr(torch, source.dtype), torch.device("cpu"))


def _reference(wanted: Wanted, placement: Placement, config: ExtractConfig, talk: Talk) -> Target | None:
    """The target through transformers, on the device or else the CPU; None where it fits neither."""
    if config.reference == "off":
        talk.note("--reference off: boundaries are not compared with transformers")
        return None
    needed = sum(info.num_bytes for info in read_checkpoint(wanted.folder).tensors.values()) * _MEMORY_SPARE
    places = [(placement, torch.cuda.mem_get_info(placement.device)[0])] if placement.device.type == "cuda" else []
    places.append((Placement(torch.bfloat16, torch.device("cpu")), psutil.virtual_memory().available))
    for at, free in places:
        if needed <= free:
            try:
                talk.line(f"loading the target on {at.device} to compare with")
                return Target.load(wanted.folder, at)
            except EyasError as error:
                talk.note(f"boundaries are not compared with transformers: {error.what} ({error.why})")
                return None
    talk.note(
        f"boundaries are not compared with transformers: the target needs {gigabytes(needed)}, and"
        f" {' and '.join(gigabytes(free) for _, free in places)} are free"
    )
    return None


def spread_by_length(lengths: Sequence[int], num: int) -> list[int]:
    """Numbers of `num` rows of all lengths, the longest among them."""
    by_length = sorted(range(len(lengths)), key=lambda at: lengths[at])
    num = min(num, len(by_length))
    return [by_length[(i + 1) * len(by_length) // num - 1] for i in range(num)]


def prove(prover: Prover, source: ExtractSource, rows: Sequence[AskedRow], placement: Placement, talk: Talk) -> Proof:
    """Prove `source` on these rows, and say what was found.

    Raises:
        StatesMismatch: it gives other states.
    """
    most = _MOST_TOKENS[placement.device.type]
    cut = [AskedRow(token_ids=row.token_ids[:most]) for row in rows]
    told = f"{source.name} on {counted(len(rows), 'row')}"
    with talk.progress(f"proving {told}", num_asked([len(row.token_ids) for row in cut]), "tokens") as bar:
        proof = prover.prove(cut, bar.advance)
    talk.line(proof.text())
    if proof.faults:
        raise mismatch(source.name, proof.faults, f"{counted(len(rows), 'row')} before the run; nothing was written")
    return proof
