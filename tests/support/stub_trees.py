"""The stub target and draft of `stub_models`, reading trees."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.engine.sequence_protocols import TargetOutput
from stub_models import StubDraft, StubTarget


class StubTreeTarget(StubTarget):
    """Insists on being told what to keep after each tree."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.tree_ids: list[int] = []
        self.num_rows = 0

    def forward(self, ids: Sequence[int]) -> TargetOutput:
        assert not self.tree_ids, "keep was not called"
        return super().forward(ids)

    def forward_tree(self, ids: Sequence[int], parents: Sequence[int]) -> TargetOutput:
        assert not self.tree_ids, "keep was not called"
        assert len(self.ids) + len(ids) <= self.capacity, "more positions than were asked for"
        self.num_passes += 1
        self.num_rows = max(self.num_rows, len(ids))
        rows, aux, paths = [], [], []
        for token, parent in zip(ids, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), token])
            seen = [*self.ids, *paths[-1]]
            rows.append(self._logits(seen[-2] if len(seen) > 1 else 0, token))
            aux.append([float(len(seen) - 1), float(token)])
        self.tree_ids, self.tree_parents = list(ids), list(parents)
        return TargetOutput(logits=torch.stack(rows), aux_states=torch.tensor(aux)[:, : 2 * self._aux])

    def keep(self, rows: Sequence[int], num_rows: int) -> None:
        assert num_rows == len(self.tree_ids), "rows of another tree"
        for row, before in zip(rows, (-1, *rows), strict=False):
            assert self.tree_parents[row] == before, "what is kept is a path from the root"
        self.ids += [self.tree_ids[row] for row in rows]
        self.tree_ids = []


class StubTreeDraft(StubDraft):
    """The same offers, several nodes at a time."""

    def start(self, capacity: int) -> None:
        super().start(capacity)
        self._paths: list[list[int]] = []

    def read(self, next_ids: Sequence[int], aux_states: Tensor) -> Tensor:
        self._paths = []
        return super().read(next_ids, aux_states)

    def expand(self, ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        first = len(self._paths)
        for token, parent in zip(ids, parents, strict=True):
            self._paths.append([*(self._paths[parent] if parent >= 0 else []), token])
        rows = []
        for path in self._paths[first:]:
            self._drafted = path
            rows.append(self._offer())
        self._drafted = []
        return torch.stack(rows)
