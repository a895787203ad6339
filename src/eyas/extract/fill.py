"""Rows through a source into a store: in portions, checked again now and then, shared with other writers."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from eyas.extract.config import ExtractConfig, ExtractConfigInvalid
from eyas.extract.plan import PlannedRow, RowPlan
from eyas.extract.proof import Prover
from eyas.extract.source import AskedRow, ExtractedRow, ExtractSource
from eyas.extract.tensors import as_stored, as_tensor, to_fp8
from eyas.store import StoreAbout, StoreRow, StoreWriter
from eyas.talk import Progress, Talk

_CHUNK_TOKENS = 1 << 22  # between two looks at what other writers have done
_FLUSH_S = 30.0
_GOLDEN = 0.6180339887498949
_CHECKED_POSITIONS = 256


class Filling:
    """Fills a store.

    Attributes:
        num_rows, num_tokens: written.
        num_rechecked: rows of them that were compared again.
    """

    def __init__(
        self,
        source: ExtractSource,
        plan: RowPlan,
        about: StoreAbout,
        prover: Prover,
        config: ExtractConfig,
        talk: Talk,
    ) -> None:
        self._source, self._plan, self._about, self._prover = source, plan, about, prover
        self._config, self._talk = config, talk
        self._flushed = time.monotonic()
        self.num_rows = self.num_tokens = self.num_rechecked = 0

    def fill(self, out: Path, rows: Sequence[PlannedRow]) -> None:
        """Put the states of `rows` into the store in `out`.

        Raises:
            StatesMismatch: a row that was compared again differs.
            What `StoreWriter` and the source raise; what was written stays.
        """
        with (
            StoreWriter.open(out, self._about, shard_bytes=int(self._config.shard_gb * 1e9)) as writer,
            self._talk.progress("extract", _num_tokens(rows), "tokens") as bar,
        ):
            for repaired in writer.repaired:
                self._talk.note(f"left by a run that was stopped: {repaired}")
            for chunk in _chunks(rows, writer.number):
                missing = [row for row in chunk if not writer.has(row.key)]
                bar.advance(_num_tokens(chunk) - _num_tokens(missing))
                self._fill_chunk(writer, missing, bar)
                writer.flush()

    def _fill_chunk(self, writer: StoreWriter, rows: Sequence[PlannedRow], bar: Progress) -> None:
        due = list[tuple[AskedRow, ExtractedRow]]()
        asked = [self._plan.asked(row) for row in rows]
        for found in self._source.states(asked):
            row = rows[found.number]
            self.num_rows += writer.append(self._stored(row, found))
            self.num_tokens += row.num_tokens
            bar.advance(row.num_tokens)
            if _is_due(row.key, self._config.recheck) or self.num_rechecked + len(due) == 0 < self._config.recheck:
                due.append(_to_check(asked[found.number], found))
            if time.monotonic() - self._flushed > _FLUSH_S:
                writer.flush()
                self._flushed = time.monotonic()
        for checked, found in due:  # after the chunk: between two batches they would wait for the device
            self._prover.recheck(checked, found)
        self.num_rechecked += len(due)

    def _stored(self, row: PlannedRow, found: ExtractedRow) -> StoreRow:
        """A row as the store keeps it: cut, and in its dtype."""
        about, cut = self._about, row.first - found.first
        states, scales = found.states[cut:], None if found.scales is None else found.scales[cut:]
        if scales is None and self._source.dtype != about.dtype:
            values = as_tensor(states, self._source.dtype)
            if about.dtype == "float8_e4m3":
                small, factors = to_fp8(values, about.num_states)
                states, scales = as_stored(small), factors.numpy()
            else:
                narrow = values.to(getattr(torch, about.dtype))
                if not bool(narrow.isfinite().all()):
                    raise _beyond(about.dtype, float(values.abs().max()))
                states = as_stored(narrow)
        tokens = self._plan.tokens(row)
        return StoreRow(
            token_ids=np.array(tokens.token_ids, np.int32),
            is_supervised=np.array(tokens.is_supervised, bool),
            first=row.first,
            states=states,
            scales=scales,
        )


def _beyond(dtype: str, largest: float) -> ExtractConfigInvalid:
    most = torch.finfo(getattr(torch, dtype)).max
    return ExtractConfigInvalid(
        f"the states do not fit {dtype}",
        f"--store-dtype {dtype}",
        f"one of the target's states holds {largest:.0f}, and {dtype} ends at {most:.0f}",
        "give --store-dtype bfloat16, or float8_e4m3, which has scales",
    )


def _chunks(rows: Sequence[PlannedRow], writer: int) -> list[list[PlannedRow]]:
    """Rows in portions; writers of one store begin at different ones, so that they seldom do the same."""
    chunks, chunk, held = list[list[PlannedRow]](), list[PlannedRow](), 0
    for row in rows:
        chunk.append(row)
        held += row.num_tokens
        if held >= _CHUNK_TOKENS:
            chunks.append(chunk)
            chunk, held = [], 0
    chunks += [chunk] if chunk else []
    start = int(writer * _GOLDEN % 1 * len(chunks))
    return chunks[start:] + chunks[:start]


def _is_due(key: str, share: float) -> bool:
    return int(key[:8], 16) < share * (1 << 32)


def _to_check(asked: AskedRow, found: ExtractedRow) -> tuple[AskedRow, ExtractedRow]:
    """The beginning of a row, in memory of its own."""
    num = _CHECKED_POSITIONS
    scales = None if found.scales is None else found.scales[:num].copy()
    ids = asked.token_ids[: found.first + num]
    kept = ExtractedRow(number=0, states=found.states[:num].copy(), first=found.first, scales=scales)
    return AskedRow(token_ids=ids, first=found.first), kept


def _num_tokens(rows: Sequence[PlannedRow]) -> int:
    return sum(row.num_tokens for row in rows)
