"""Rows of a tree in a pass over a cache: where they stand and what they see.

A cache holds the text in its first `base` slots, one per position. Nodes of a tree lie in the slots after it, in the
order in which they were read: a node's slot is not its position. Shapes: R rows, C slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRows:
    """New rows of a tree.

    Attributes:
        base: slots of the text, which every row sees.
        paths: per row, the slots of the nodes from the root of the tree down to the row itself.
    """

    base: int
    paths: tuple[tuple[int, ...], ...]

    @property
    def positions(self) -> list[int]:
        """Position of each row in the text that its path continues."""
        return [self.base + len(path) - 1 for path in self.paths]

    def mask(self, window: int | None, device: torch.device) -> Tensor:
        """What each row sees: [R, C] bool, C = the slots up to the last row's. A window counts positions, not slots."""
        num_slots = self.paths[-1][-1] + 1
        tail = torch.zeros(len(self.paths), num_slots - self.base, dtype=torch.bool)
        for row, path in enumerate(self.paths):
            nearest = path if window is None else path[-window:]
            tail[row, [slot - self.base for slot in nearest]] = True
        text = torch.ones(len(self.paths), self.base, dtype=torch.bool)
        if window is not None:
            first = torch.tensor(self.positions)[:, None] - window + 1
            text = torch.arange(self.base) >= first
        return torch.cat((text, tail), 1).to(device)


def paths_of(parents: Sequence[int], first_slot: int, before: Sequence[tuple[int, ...]] = ()) -> list[tuple[int, ...]]:
    """Paths of all rows of a tree after new ones were added to it.

    Args:
        parents: index of each new row's parent among all rows, old and new; -1 for none.
        first_slot: of the first new row; the others follow it.
        before: paths of the old rows.
    """
    paths = list(before)
    for i, parent in enumerate(parents):
        assert -1 <= parent < len(paths), "a parent stands before its children"
        paths.append((*(paths[parent] if parent >= 0 else ()), first_slot + i))
    return paths
