"""States that a run is given: a store, or servers that compute them meanwhile. The target itself is never loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from eyas.contract.spec.target_spec import TargetSpec
from eyas.data.rows.row_store import RowArrays, Rows
from eyas.errors import EyasError
from eyas.models.target_folder import fingerprint_weights
from eyas.records import fingerprint
from eyas.records.eval_rows import EvalRow
from eyas.records.rows import RULES, RowsManifest
from eyas.store import StoreReader, row_key
from eyas.talk import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class StatesOfAnotherTarget(EyasError):
    """The store was filled by another target, or for rows of another tokenizer."""

    code = "states-of-another-target"


class StoreLacksRows(EyasError):
    """The store does not hold the states of rows that are to be learned from."""

    code = "store-lacks-rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """The rows of a run whose states are in a store.

    Attributes:
        reader: of the store.
        rows: those that are learned from, each cut to the positions that have states.
        places: number of each in the store.
        notes: what was left out, or is assumed.
    """

    reader: StoreReader
    rows: Rows
    places: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Fingerprint of what the states are."""
        return self.reader.about.fits

    def places_of(self, rows: Sequence[EvalRow]) -> list[int | None]:
        """Number in the store of each held-out row; None where it does not hold the row whole."""
        found = [self.reader.find(row_key((*row.prompt_ids, *row.response_ids))) for row in rows]
        return [None if place is None or self.reader.row(place).first else place for place in found]


def open_stored(store: Path, rows_folder: Path | None, target_folder: Path, target: TargetSpec) -> StoredRows:
    """The rows of `rows_folder` with their states in `store`; without a folder all rows of the store that have a mask.

    Raises:
        StoreUnreadable, StoreDamaged: the store.
        StatesOfAnotherTarget: it does not belong to the target.
        StoreLacksRows: rows of the folder have no states, or no row of the store can be learned from.
        RowsUnreadable: the folder.
    """
    reader = StoreReader.open(store)
    _require_target(reader, target_folder, target)
    if rows_folder is None:
        return _rows_of_store(reader, target)
    rows = Rows(rows_folder)
    found = [reader.find(row_key(row.token_ids)) for row in rows]
    if missing := [number for number, place in enumerate(found) if place is None]:
        raise StoreLacksRows(
            f"{counted(len(missing), 'row')} of {len(rows)} are not in the store",
            f"{store}, row {missing[0]} of {rows_folder}",
            "their states were not extracted, or the rows were prepared again since",
            f"run `eyas extract --data {rows_folder} --out {store}` again: it computes only the rows that are missing",
        )
    places = tuple(place for place in found if place is not None)
    firsts = [reader.row(place).first for place in places]
    if not any(firsts):
        return StoredRows(reader=reader, rows=rows, places=places, notes=())
    return StoredRows(
        reader=reader, rows=_cut(rows, firsts), places=places, notes=(_cut_note(sum(map(bool, firsts)), len(rows)),)
    )


def _rows_of_store(reader: StoreReader, target: TargetSpec) -> StoredRows:
    places, ids, flags, num_cut = list[int](), list["NDArray[np.int32]"](), list["NDArray[np.bool_]"](), 0
    for place in range(len(reader)):
        row = reader.row(place)
        if row.is_supervised is not None:
            places.append(place)
            ids.append(row.token_ids[row.first :])
            flags.append(row.is_supervised[row.first :])
            num_cut += bool(row.first)
    if not places:
        raise StoreLacksRows(
            "no row of the store can be learned from",
            str(reader.folder),
            f"of its {len(reader)} rows the store does not know which tokens the target wrote",
            "name the rows with --data ROWS",
        )
    about, notes = reader.about, list[str]()
    if without := len(reader) - len(places):
        notes.append(f"{counted(without, 'row')} of the store without a mask are not learned from; --data names rows")
    if num_cut:
        notes.append(_cut_note(num_cut, len(places)))
    if about.tokenizer is None or about.template is None:
        notes.append("the store does not say which tokenizer and template made its rows: assumed to be the target's")
    arrays = _arrays(ids, flags)
    manifest = RowsManifest(
        fingerprint=arrays.content,
        tokenizer=about.tokenizer or target.tokenizer_hash or "unknown",
        template=about.template or target.template_hash or "unknown",
        template_options={},
        sources=(),
        options={},
        num_rows=arrays.num_rows,
        num_tokens=arrays.num_tokens,
        num_supervised=arrays.num_supervised,
        longest=arrays.longest,
        dropped={},
        rules=RULES,
    )
    rows = Rows.of(reader.folder, manifest, arrays)
    return StoredRows(reader=reader, rows=rows, places=tuple(places), notes=tuple(notes))


def _cut(rows: Rows, firsts: Sequence[int]) -> Rows:
    """The rows without their positions before `firsts`, which have no states."""
    import numpy as np

    kept = [(row.token_ids[first:], row.is_supervised[first:]) for row, first in zip(rows, firsts, strict=True)]
    arrays = _arrays([np.asarray(ids, np.int32) for ids, _ in kept], [np.asarray(flags, np.bool_) for _, flags in kept])
    manifest = replace(
        rows.manifest,
        fingerprint=fingerprint.of_json([rows.manifest.fingerprint, arrays.content]),
        num_tokens=arrays.num_tokens,
        num_supervised=arrays.num_supervised,
        longest=arrays.longest,
        content=arrays.content,
    )
    return Rows.of(rows.folder, manifest, arrays)


def _arrays(ids: "Sequence[NDArray[np.int32]]", flags: "Sequence[NDArray[np.bool_]]") -> RowArrays:
    import numpy as np

    return RowArrays(
        token_ids=np.concatenate(ids),
        is_supervised=np.concatenate(flags),
        starts=np.cumsum([0, *map(len, ids)], dtype=np.int64),
        files=np.zeros(len(ids), np.int32),
        lines=np.zeros(len(ids), np.int64),
    )


def _cut_note(num_cut: int, num_rows: int) -> str:
    return (
        f"{num_cut} of {num_rows} rows have states of their last positions only: the draft does not see what stands"
        " before them"
    )


def _require_target(reader: StoreReader, folder: Path, target: TargetSpec) -> None:
    about, theirs = reader.about, reader.about.target
    pairs = [
        ("hidden size", about.hidden_size, target.hidden_size),
        ("number of layers", about.num_layers, target.num_layers),
        ("vocabulary", about.vocab_size, target.vocab_size or about.vocab_size),
        ("config", theirs.get("fingerprint"), target.fingerprint),
        ("tokenizer", about.tokenizer, target.tokenizer_hash),
        ("chat template", about.template, target.template_hash),
        ("weights", theirs.get("weights"), fingerprint_weights(folder) if theirs.get("weights") else None),
    ]
    if wrong := [f"{name}: store {stored}, target {own}" for name, stored, own in pairs if stored not in (None, own)]:
        raise StatesOfAnotherTarget(
            f"the states are not this target's: {' and '.join(text.split(':')[0] for text in wrong)} differ",
            str(reader.folder),
            "; ".join(wrong),
            "give the target that the states were extracted from, or extract this one's",
        )
