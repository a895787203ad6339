"""Rows laid end to end: a micro-batch as one sequence whose rows do not see each other, with all its index lists.

Made on the CPU and uploaded in one copy; the host never reads any of it back from the device.
Shapes: R rows, T positions (padding at the end included), K unrolled steps, N teacher rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from eyas.data.text.tokenise import TokenRow

# On a GPU, T is a multiple of this, so that memory freed by one micro-batch fits the next.
GPU_MULTIPLE = 256
# One more micro-batch costs about 1/16 of a full one: launches, and matrices read again.
_RUN_SHARE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A micro-batch; a `RowLayout`.

    Attributes:
        ids: [T + K] token ids; the K after T are 0, so that shifted reads stay inside.
        positions: [T] int32, from 0 in each row.
        starts: [R + 2] int32, where rows begin and the last ends; the padding at the end is a row of its own.
        lengths: of the R rows and the padding, on the host.
        teachers: [N] positions u whose target distribution is learnt from: token u + 1 is supervised and at least the
            third of its row.
        picks: [K, N] the position that learns from teacher row n at step j: u - 1 - j, or T - 1 (padding) where the row
            does not reach that far back.
        is_target: [K, N] whether it does.
        num_tokens: of the rows, without padding.
        numbers: of the R rows in the data; () where the lengths of single rows are not known.
    """

    ids: Tensor
    positions: Tensor
    starts: Tensor
    lengths: tuple[int, ...]
    teachers: Tensor
    picks: Tensor
    is_target: Tensor
    num_tokens: int
    numbers: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """T."""
        return len(self.positions)

    @property
    def longest(self) -> int:
        """Positions of the longest row."""
        return max(self.lengths)

    @property
    def num_padded(self) -> int:
        """Positions of the R rows side by side, padded to the longest."""
        return (len(self.lengths) - 1) * max(self.lengths[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedShape:
    """Sizes of a `Packed`, which padding may enlarge.

    Attributes:
        length: T.
        num_starts: R + 2; further starts are rows of no length.
        num_teachers: N; further teachers have no targets.
    """

    length: int
    num_starts: int
    num_teachers: int

    def part_sizes(self, num_steps: int) -> list[int]:
        """Sizes of ids, positions, starts, teachers, picks and is_target in `index_lists`."""
        length, num_targets = self.length, num_steps * self.num_teachers
        return [length + num_steps, length, self.num_starts, self.num_teachers, num_targets, num_targets]


def pack(rows: Sequence[TokenRow], num_steps: int, device: torch.device, multiple: int | None = None) -> Packed:
    """`rows` as one sequence.

    Args:
        num_steps: K.
        multiple: T becomes a multiple of it, with at least one position of padding; None for the device's default.
    """
    least = least_shape(rows, multiple or (GPU_MULTIPLE if device.type == "cuda" else 1))
    uploaded = upload(index_lists(rows, num_steps, least), device)
    lengths = [len(row.token_ids) for row in rows]
    num_tokens = sum(lengths)
    packed = unpack(uploaded, num_steps, least, (*lengths, least.length - num_tokens), num_tokens)
    return replace(packed, numbers=tuple(row.number for row in rows))


def least_shape(rows: Sequence[TokenRow], multiple: int) -> PackedShape:
    """The smallest shape that holds `rows`, with T a multiple of `multiple` and at least one position of padding."""
    num_tokens = sum(len(row.token_ids) for row in rows)
    num_teachers = sum(int(np.asarray(row.is_supervised, bool)[2:].sum()) for row in rows)
    return PackedShape(
        length=-(-(num_tokens + 1) // multiple) * multiple, num_starts=len(rows) + 2, num_teachers=num_teachers
    )


def index_lists(rows: Sequence[TokenRow], num_steps: int, shape: PackedShape) -> np.ndarray:
    """All int32 lists of a `Packed` of this shape in one, for `unpack`."""
    lengths = [len(row.token_ids) for row in rows]
    num_tokens, total = sum(lengths), shape.length
    lengths.append(total - num_tokens)
    begins = np.concatenate(([0], np.cumsum(lengths)))
    starts = np.pad(begins, (0, shape.num_starts - len(begins)), mode="edge")
    ids = np.zeros(total + num_steps, np.int32)
    ids[:num_tokens] = np.concatenate([np.asarray(row.token_ids, np.int32) for row in rows])
    flags = np.concatenate([np.asarray(row.is_supervised, bool) for row in rows])
    positions = np.arange(total) - np.repeat(begins[:-1], lengths)
    learnt = np.flatnonzero(flags & (positions[:num_tokens] >= 2)) - 1
    teachers = np.pad(learnt, (0, shape.num_teachers - len(learnt)), constant_values=total - 1)
    back = np.arange(1, num_steps + 1)[:, None]
    is_target = (positions[teachers][None, :] >= back) & (np.arange(len(teachers)) < len(learnt))
    picks = np.where(is_target, teachers[None, :] - back, total - 1)
    parts = [ids, positions, starts, teachers, picks.ravel(), is_target.ravel()]
    return np.concatenate([part.astype(np.int32) for part in parts])


def unpack(lists: Tensor, num_steps: int, shape: PackedShape, lengths: tuple[int, ...], num_tokens: int) -> Packed:
    """The `Packed` of uploaded `index_lists`; `lengths` and `num_tokens` as there."""
    on_device = torch.split(lists, shape.part_sizes(num_steps))
    return Packed(
        ids=on_device[0].long(),
        positions=on_device[1].clone(),  # its own allocation: aligned, as kernels like it
        starts=on_device[2].clone(),
        lengths=lengths,
        teachers=on_device[3].long(),
        picks=on_device[4].long().view(num_steps, -1),
        is_target=on_device[5].bool().view(num_steps, -1),
        num_tokens=num_tokens,
    )


def count_targets(rows: Sequence[TokenRow], num_steps: int) -> list[int]:
    """Targets of each step: supervised tokens at indices ≥ 2 + j of their row."""
    counts = np.zeros(num_steps, np.int64)
    for row in rows:
        flags = np.asarray(row.is_supervised, bool)
        for j in range(num_steps):
            counts[j] += int(flags[2 + j :].sum())
    found: list[int] = counts.tolist()
    return found


def micro_batches(rows: Sequence[TokenRow], most_tokens: int) -> list[list[TokenRow]]:
    """`rows` in runs of at most `most_tokens` tokens; a longer row is a run of its own."""
    parts: list[list[TokenRow]] = []
    held = 0
    for row in rows:
        if parts and held + len(row.token_ids) <= most_tokens:
            parts[-1].append(row)
            held += len(row.token_ids)
        else:
            parts.append([row])
            held = len(row.token_ids)
    return parts


def even_micro_batches(rows: Sequence[TokenRow], most_tokens: int) -> list[list[TokenRow]]:
    """`rows` by length, in the runs that cost least when each row is padded to the longest of its run.

    A run costs its positions, padding counted, and a share of `most_tokens` for being one more. It has at most
    `most_tokens` positions, or one row. Rows of equal length keep their order.
    """
    ordered = sorted(rows, key=lambda row: len(row.token_ids))
    lengths = [len(row.token_ids) for row in ordered]
    one_more = most_tokens / _RUN_SHARE
    # costs[i] is the least for the first i rows, the last run of which begins at begins[i].
    costs, begins = np.zeros(len(ordered) + 1), [0]
    for end in range(1, len(ordered) + 1):
        longest = lengths[end - 1]
        first = max(0, min(end - 1, end - most_tokens // longest))
        choices = costs[first:end] + np.arange(end - first, 0, -1) * longest
        begins.append(first + int(choices.argmin()))
        costs[end] = choices.min() + one_more
    parts, end = list[list[TokenRow]](), len(ordered)
    while end:
        parts.append(ordered[begins[end] : end])
        end = begins[end]
    return parts[::-1]


def upload(values: np.ndarray, device: torch.device) -> Tensor:
    """`values` on the device; the host does not wait for the copy."""
    host = torch.from_numpy(values)
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
