"""A tiny target on disk and sources of its states, true ones and planted faults."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.contract.spec.target_spec import read_target
from eyas.extract.source import AskedRow, ExtractedRow, Wanted
from eyas.extract.tensors import as_stored, as_tensor
from eyas.extract.transformers_source import TransformersSource
from eyas.models.placement import Placement
from eyas.models.target.loading import find_target_parts
from eyas.store.about import StateDtype
from tiny_target import tiny_target

BOUNDARIES = (1, 2, 4)


def saved_target(folder: Path, kind: str = "llama", num_layers: int = 6, **changes: Any) -> Path:
    """A random target of 6 layers; a final norm with weights, so that what lies before it is another thing."""
    model = tiny_target(kind, num_hidden_layers=num_layers, **changes)
    with torch.no_grad():
        find_target_parts(model).final_norm.weight.uniform_(0.2, 2.0)
    model.save_pretrained(folder)
    return folder


def true_source(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    stored: StateDtype | None = None,
    boundaries: tuple[int, ...] = BOUNDARIES,
    most_tokens: int = 64,
) -> TransformersSource:
    name: Any = str(dtype).removeprefix("torch.")
    wanted = Wanted(folder=folder, target=read_target(folder), boundaries=boundaries, dtype=stored or name)
    source = TransformersSource(wanted, Placement(dtype, torch.device("cpu")), most_tokens)
    source.probe()
    return source


def rows_of(num: int, length: int = 20, seed: int = 0) -> list[AskedRow]:
    draw = torch.Generator().manual_seed(seed)
    return [
        AskedRow(token_ids=tuple(torch.randint(3, 64, (length + i % 5,), generator=draw).tolist())) for i in range(num)
    ]


@dataclass
class FaultySource:
    """`inner`, whose states pass through `change(values [n, A + 1, Ht], how many rows were asked with it)`."""

    inner: TransformersSource
    change: Callable[[Tensor, int], Tensor]
    last: Any = "post-norm"
    is_reference: bool = False
    name: str = "engine==1.0"
    after: int = 0  # rows that are right

    @property
    def dtype(self) -> StateDtype:
        return self.inner.dtype

    def probe(self) -> tuple[str, ...]:
        return ()

    def states(self, rows: Sequence[AskedRow]) -> Iterator[ExtractedRow]:
        whole = [AskedRow(token_ids=row.token_ids) for row in rows]
        for row in self.inner.states(whole):
            values = as_tensor(row.states, self.dtype)
            shape = (len(values), len(self.inner.wanted.boundaries) + 1, -1)
            self.after -= 1
            if self.after < 0:
                values = self.change(values.reshape(shape), len(rows)).reshape(len(values), -1).to(values.dtype)
            first = rows[row.number].first
            yield ExtractedRow(number=row.number, states=as_stored(values[first:].contiguous()), first=first)

    def greedy(self, rows: Sequence[AskedRow]) -> Sequence[int]:
        return self.inner.greedy(rows)

    def close(self) -> None:
        pass
