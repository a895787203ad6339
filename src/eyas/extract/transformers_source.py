"""The target in this process, through transformers: any architecture that it knows.

Rows of about the same length go side by side. While the device computes one batch, the host takes in the one before,
which was copied into pinned memory meanwhile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from torch import Tensor

from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.spec.target_size import size_of_tensors
from eyas.errors import EnvironmentMissing
from eyas.extract.source import AskedRow, ExtractedRow, SourceFailed, Wanted
from eyas.extract.tensors import as_stored, to_fp8
from eyas.models.placement import Placement
from eyas.models.target import Target
from eyas.models.target.spread import load_spread
from eyas.store.about import StateDtype
from eyas.talk import counted

_WEIGHTS_SHARE = 0.75  # of a GPU's free memory; the rest is for what a batch needs
_MOST_TOKENS = {"cuda": 32768, "cpu": 2048}


@dataclass(slots=True)
class TransformersSource:
    """`ExtractSource` of a target in memory, loaded by `probe`.

    Attributes:
        wanted: what to give.
        placement: dtype and device of the target.
        most_tokens: positions of a batch, padding counted; None for 32768 on a GPU, 2048 on a CPU.
        gpus: that hold its layers.
        target: None until it is loaded.
    """

    wanted: Wanted
    placement: Placement
    most_tokens: int | None = None
    gpus: int = 1
    target: Target | None = None
    is_reference: bool = True
    last: Literal["post-norm"] = "post-norm"

    @property
    def name(self) -> str:
        """With its version."""
        return f"transformers=={transformers.__version__}"

    @property
    def dtype(self) -> StateDtype:
        """In which the target computes; fp8 where that is wanted, made on the device."""
        computed: Any = str(self.placement.dtype).removeprefix("torch.")
        return self.wanted.dtype if self.wanted.dtype == "float8_e4m3" else computed

    def probe(self) -> tuple[str, ...]:
        """Load the target. Raises what `Target.load` raises, and `EnvironmentMissing` for GPUs that are not there."""
        dtype = str(self.placement.dtype).removeprefix("torch.")
        told = f"{self.name} on {self.placement.device} in {dtype}, batches of {self._batch_tokens} positions"
        if self.target is not None:
            return (told,)
        devices = _devices(self.placement, self.gpus)
        free = [torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0 for device in devices]
        needed = _weight_bytes(self.wanted, self.placement.dtype)
        if self.placement.device.type == "cpu" or (self.gpus == 1 and needed <= _WEIGHTS_SHARE * free[0]):
            self.target = Target.load(self.wanted.folder, self.placement)
            return (told,)
        rooms = [int(_WEIGHTS_SHARE * bytes_) for bytes_ in free]
        self.target, places = load_spread(self.wanted.folder, self.placement.dtype, devices, rooms)
        offloaded = sum(place.is_offloaded for place in places)
        return (
            told,
            f"{len(places)} layers over {counted(len(devices), 'GPU')}"
            + (f", {offloaded} of them in the host's memory, copied for each batch" if offloaded else ""),
        )

    def states(self, rows: Sequence[AskedRow]) -> Iterator[ExtractedRow]:
        """See `ExtractSource.states`; longest rows first."""
        under_way = None
        for numbers in _batches(rows, self._batch_tokens):
            begun = self._begin([(number, rows[number]) for number in numbers])
            if under_way is not None:
                yield from self._end(*under_way)
            under_way = begun
        if under_way is not None:
            yield from self._end(*under_way)

    @torch.no_grad()
    def greedy(self, rows: Sequence[AskedRow]) -> Sequence[int]:
        """By the model's own head."""
        assert self.target is not None, "probed"
        model, device = self.target.model, self.target.device
        ids = [torch.tensor([row.token_ids], device=device) for row in rows]
        return [int(model(input_ids=row, use_cache=False).logits[0, -1].argmax()) for row in ids]

    def close(self) -> None:
        """Let go of the target."""
        self.target = None

    @property
    def _batch_tokens(self) -> int:
        return self.most_tokens or _MOST_TOKENS["cuda" if self.placement.device.type == "cuda" else "cpu"]

    @torch.no_grad()
    def _begin(self, rows: Sequence[tuple[int, AskedRow]]) -> "tuple[Sequence[tuple[int, AskedRow]], _Copied]":
        """Let the device compute a batch and copy it; nothing here waits for it."""
        assert self.target is not None, "probed"
        longest = max(len(row.token_ids) for _, row in rows)
        padded = [[*row.token_ids, *[0] * (longest - len(row.token_ids))] for _, row in rows]
        ids = torch.tensor(padded).to(self.target.device, non_blocking=True)
        found = self.target.forward(ids, self.wanted.boundaries)
        both = torch.cat([found.aux, found.last], -1)
        kept = torch.cat([both[i, row.first : len(row.token_ids)] for i, (_, row) in enumerate(rows)])
        scales = None
        is_finite = kept.isfinite().all()
        if self.wanted.dtype == "float8_e4m3":
            kept, scales = to_fp8(kept, len(self.wanted.boundaries) + 1)
        return rows, _Copied(kept, scales, is_finite)

    def _end(self, rows: Sequence[tuple[int, AskedRow]], copied: "_Copied") -> Iterator[ExtractedRow]:
        """The rows of a batch, as soon as they are on the host."""
        copied.wait()
        if not bool(copied.is_finite):
            raise SourceFailed(
                "the target's states are not finite",
                str(self.wanted.folder),
                f"NaN or infinities in {self.placement.dtype} in one of {len(rows)} rows of"
                f" {max(len(row.token_ids) for _, row in rows)} tokens or fewer",
                "compute in bfloat16 or float32 (--dtype); if that does not help, export the weights again",
            )
        at = 0
        states = as_stored(copied.states)
        for number, row in rows:
            part = slice(at, at := at + len(row.token_ids) - row.first)
            scales = None if copied.scales is None else copied.scales[part].numpy()
            yield ExtractedRow(number=number, states=states[part], first=row.first, scales=scales)


class _Copied:
    """Tensors on their way to the host; memory that torch's own cache of pinned blocks gives and takes back."""

    def __init__(self, states: Tensor, scales: Tensor | None, is_finite: Tensor) -> None:
        self.states = _to_host(states)
        self.scales = None if scales is None else _to_host(scales)
        self.is_finite = _to_host(is_finite)
        self._event: Any = torch.cuda.Event() if states.is_cuda else None  # type: ignore[no-untyped-call]
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


def _to_host(values: Tensor) -> Tensor:
    if not values.is_cuda:
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)


def _devices(placement: Placement, gpus: int) -> list[torch.device]:
    if gpus == 1 or placement.device.type == "cpu":
        return [placement.device]
    first = placement.device.index or 0
    if first + gpus > (there := torch.cuda.device_count()):
        raise EnvironmentMissing(
            f"there are not {gpus} GPUs from {placement.device} on",
            f"--gpus {gpus}",
            f"torch {torch.__version__} sees {counted(there, 'GPU')}",
            f"give --gpus of at most {max(1, there - first)}",
        )
    return [torch.device("cuda", first + i) for i in range(gpus)]


def _weight_bytes(wanted: Wanted, dtype: torch.dtype) -> int:
    """Of the weights in memory: as stored where they are quantised, else in `dtype`."""
    size = size_of_tensors(wanted.target, read_checkpoint(wanted.folder).tensors)
    return size.num_bytes if wanted.target.quantization else size.num_params * dtype.itemsize


def _batches(rows: Sequence[AskedRow], most_tokens: int) -> Iterator[list[int]]:
    """Numbers of rows by length, longest first, in runs of at most `most_tokens` positions or of one row."""
    batch = list[int]()
    for number in sorted(range(len(rows)), key=lambda n: -len(rows[n].token_ids)):
        if batch and (len(batch) + 1) * len(rows[batch[0]].token_ids) > most_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
