"""What a run of `eyas extract` will do, from rows, config and headers: which rows, which states, how much disk."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.spec.layer_ids import default_aux_boundaries, require_within
from eyas.contract.spec.target_parts import name_parts
from eyas.contract.spec.target_spec import TargetSpec, read_target
from eyas.data.rows.row_store import Rows
from eyas.data.rows.same_text import require_same_text
from eyas.data.text.tokenise import TokenRow
from eyas.extract.config import ExtractConfig
from eyas.extract.forecast import Forecast, RowSizes, forecast
from eyas.extract.source import AskedRow, ExtractSource
from eyas.models.target_folder.resolve import TargetIncomplete, fingerprint_weights
from eyas.records.rows import RowsUnreadable
from eyas.store import StoreAbout, StoreReader, row_key
from eyas.store.about import MANIFEST, StateDtype


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractRequest:
    """Inputs, output and device. Paths may be given as text.

    Attributes:
        target: folder of the target; of its weights only head, norm and embedding are read where a server computes.
        rows: folder of `eyas prepare`.
        out: folder of the store; resumed if it is one.
        source: "transformers", or the URL of servers: "sglang://HOST:PORT", "vllm://HOST:PORT".
        device, dtype: of a target in this process; see `models.placement.place`.
    """

    target: Path
    rows: Path
    out: Path
    source: str = "transformers"
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        for name in ("target", "rows", "out"):
            object.__setattr__(self, name, Path(getattr(self, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """One row to extract; its tokens stay in the folder's arrays.

    Attributes:
        key: see `row_key`.
        number: in the folder of rows.
        num_tokens: of the row.
        supervised_from: index of its first supervised token, `num_tokens` where there is none.
        first: position that its states begin at.
    """

    key: str
    number: int
    num_tokens: int
    supervised_from: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """The rows of a folder as a store keeps them.

    Attributes:
        rows: each once; a row that `prepare` took several times has its states once.
        folder: that they are of.
        spec: of the target.
        boundaries: ascending.
    """

    rows: Sequence[PlannedRow]
    folder: Rows
    spec: TargetSpec
    boundaries: tuple[int, ...]

    @property
    def num_repeated(self) -> int:
        """Rows of the folder that are another one's repeat."""
        return len(self.folder) - len(self.rows)

    def tokens(self, row: PlannedRow) -> TokenRow:
        """Its tokens and flags."""
        return self.folder[row.number]

    def asked(self, row: PlannedRow) -> AskedRow:
        """What a source is asked for."""
        return AskedRow(token_ids=self.tokens(row).token_ids, first=row.first)


def plan_rows(request: ExtractRequest, config: ExtractConfig) -> RowPlan:
    """Read and check rows and target.

    Raises:
        RowsUnreadable, RowsOfAnotherTarget: the rows are not for this target.
        AuxBoundaryBeyondTarget: a boundary is deeper than it.
        CheckpointNotFound, TargetConfigIncomplete: it is not a target.
    """
    spec, rows = read_target(request.target), Rows(request.rows)
    require_same_text(spec, rows)
    if spec.vocab_size is not None:
        rows.require_within(spec.vocab_size)
    if not len(rows):
        raise RowsUnreadable(
            "there are no rows",
            str(request.rows),
            "the folder holds none",
            "run `eyas prepare --target T --data F.jsonl --out ROWS`",
        )
    planned = dict[str, PlannedRow]()
    for number, row in enumerate(rows):
        begin = next((i for i, is_on in enumerate(row.is_supervised) if is_on), len(row.token_ids))
        first = 0 if config.keep_prompt is None else min(max(begin - config.keep_prompt, 0), len(row.token_ids) - 1)
        key = row_key(row.token_ids)
        if (there := planned.get(key)) is None or first < there.first:
            planned[key] = PlannedRow(
                key=key, number=number, num_tokens=len(row.token_ids), supervised_from=begin, first=first
            )
    return RowPlan(rows=list(planned.values()), folder=rows, spec=spec, boundaries=boundaries_of(spec, config))


def boundaries_of(spec: TargetSpec, config: ExtractConfig) -> tuple[int, ...]:
    """Those asked for, or the usual ones, ascending. Raises `AuxBoundaryBeyondTarget`."""
    boundaries = tuple(sorted(config.boundaries or default_aux_boundaries(spec.num_layers)))
    require_within(boundaries, spec.num_layers, "--boundaries")
    return boundaries


def about_of(plan: RowPlan, config: ExtractConfig, source: ExtractSource, folder: Path) -> StoreAbout:
    """The store that `source` fills."""
    dtype: StateDtype = source.dtype if config.store_dtype == "auto" else config.store_dtype
    about = about_of_target(
        plan.spec, folder, boundaries=plan.boundaries, last=source.last, dtype=dtype, source=source.name
    )
    return replace(about, rows=plan.folder.manifest.fingerprint, keep_prompt=config.keep_prompt)


def about_of_target(
    spec: TargetSpec,
    folder: Path,
    *,
    boundaries: tuple[int, ...],
    last: Literal["post-norm", "pre-norm"],
    dtype: StateDtype,
    source: str,
) -> StoreAbout:
    """A store of the states of the target in `folder`, of no particular rows."""
    return StoreAbout(
        target=identity_of(spec, folder),
        hidden_size=spec.hidden_size,
        num_layers=spec.num_layers,
        vocab_size=spec.vocab_size or _embedding_rows(spec, folder),
        tokenizer=spec.tokenizer_hash,
        template=spec.template_hash,
        boundaries=boundaries,
        last=last,
        dtype=dtype,
        source=source,
    )


def identity_of(spec: TargetSpec, folder: Path) -> dict[str, Any]:
    """What names the target, with a fingerprint of its weights where they are there."""
    named = {**spec.as_document(), "text_model_type": spec.text_model_type}
    try:
        return {**named, "weights": fingerprint_weights(folder)}
    except TargetIncomplete:
        return named


def _embedding_rows(spec: TargetSpec, folder: Path) -> int:
    """Where the config leaves the vocabulary to its class: rows of the embedding in the files."""
    tensors = read_checkpoint(folder).tensors
    return tensors[name_parts(spec, tensors).embedding].shape[0]


def missing_rows(plan: RowPlan, about: StoreAbout, out: Path) -> list[PlannedRow]:
    """Those that the store does not hold yet.

    Raises:
        StoreMismatch: `out` is a store of other states.
        StoreUnreadable, StoreDamaged: it is damaged.
    """
    if not os.path.exists(out / MANIFEST):
        return list(plan.rows)
    reader = StoreReader.open(out)
    reader.about.require_same(about, out, "give the options that the store was made with, or another --out")
    return [row for row in plan.rows if reader.find(row.key) is None]


def forecast_of(rows: Sequence[PlannedRow], about: StoreAbout, out: Path) -> Forecast:
    """What writing `rows` takes."""
    lengths = np.array([row.num_tokens for row in rows], np.int64)
    begins = np.array([row.supervised_from for row in rows], np.int64)
    return forecast(RowSizes(lengths=lengths, supervised_from=begins), about, about.keep_prompt, out)
