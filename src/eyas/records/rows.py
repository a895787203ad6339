"""The folder that `eyas prepare` writes and `eyas train` reads: tokenised rows and where they came from.

    ROWS/manifest.json      this schema
    ROWS/rows.safetensors   token_ids U16 (I32 where ids do not fit) [N], is_supervised BOOL [N], row_starts I64 [R + 1]
                            (row r is token_ids[row_starts[r] : row_starts[r + 1]]), source_file I32 [R] (index into
                            `sources`), source_line I64 [R] (1-based line or record number in that file)
    ROWS/held_out.jsonl     rows set aside (`num_held_out` > 0), as `records.eval_rows` describes; no row of
                            rows.safetensors has the prompt of one of them

A token is supervised when the target wrote it: all after the prompt, up to and with the token that closes the turn;
none of an answer that its data switches off (`weight: 0`, `train: false`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from eyas.errors import EyasError
from eyas.records.json_lines import read_regular

SCHEMA = "eyas.rows/1"
# Raise when the rows made of the same input change.
RULES = 7
MANIFEST = "manifest.json"
TENSORS = "rows.safetensors"
HELD_OUT = "held_out.jsonl"
_MOST = 1 << 53  # beyond it a count is damage


class RowsUnreadable(EyasError):
    """The folder was not written by `eyas prepare`, or it is damaged."""

    code = "rows-unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One data file.

    Attributes:
        fingerprint: of its bytes.
        num_records: in it.
        weight: how often each of its rows was taken.
        num_rows: rows of it that stand in the folder, repeats counted.
    """

    name: str
    fingerprint: str
    num_records: int
    weight: float = 1.0
    num_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsManifest:
    """What a folder of rows is.

    Attributes:
        fingerprint: of everything that decides the rows: data, tokenizer, template, options. Same fingerprint, same
            rows.
        tokenizer, template: fingerprints; a draft may only be trained on rows of its target's own.
        template_options: extra variables given to the chat template.
        sources: the data files in order.
        options: the options of `eyas prepare` that shape rows.
        num_rows, num_tokens, num_supervised, longest: counts over the rows kept; the last is in tokens.
        dropped: reason -> number of records left out.
        notes: what was defaulted or masked on the way, for a person.
        num_held_out: rows in held_out.jsonl.
        num_as_written: records whose rows are the very ids that the target wrote, not their text tokenised again.
        rules: by which the rows were made; 0 = before this was recorded.
        lost: kind -> number of parts of kept records that their rows do not hold, or hold in another form.
        content: fingerprint of token ids, mask and row starts; empty = before this was recorded.
    """

    fingerprint: str
    tokenizer: str
    template: str
    template_options: Mapping[str, Any]
    sources: tuple[Source, ...]
    options: Mapping[str, Any]
    num_rows: int
    num_tokens: int
    num_supervised: int
    longest: int
    dropped: Mapping[str, int]
    notes: tuple[str, ...] = ()
    num_held_out: int = 0
    num_as_written: int = 0
    rules: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    content: str = ""

    def as_document(self) -> dict[str, Any]:
        """The manifest as a JSON object."""
        return {"schema": SCHEMA, **asdict(self)}


def write_manifest(manifest: RowsManifest, folder: Path) -> None:
    """Write `manifest.json` into a folder that is not renamed into place yet."""
    (folder / MANIFEST).write_text(
        json.dumps(manifest.as_document(), indent=2, ensure_ascii=False) + "\n",
        encoding="utf-8",
        errors="backslashreplace",  # of a data file's name that is not text
    )


def read_manifest(folder: Path) -> RowsManifest:
    """The manifest of a folder of rows.

    Raises:
        RowsUnreadable: there is none, it is of another schema, or fields are missing or of another kind.
    """
    try:
        document = json.loads(read_regular(folder / MANIFEST))
        schema = document.pop("schema", None)
        if schema != SCHEMA:
            raise ValueError(f"schema is {schema!r}, wanted {SCHEMA!r}")
        objects = {"options", "template_options", "dropped", "lost"} - ({"lost"} - document.keys())
        if wrong := [name for name in sorted(objects) if not isinstance(document[name], dict)]:
            raise ValueError(f"`{wrong[0]}` is not an object")
        sources = tuple(Source(**source) for source in document.pop("sources"))
        manifest = RowsManifest(sources=sources, notes=tuple(document.pop("notes")), **document)
        _require_kinds(manifest, *sources)
        return manifest
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RowsUnreadable(
            f"{folder} is not a folder of tokenised rows",
            str(folder / MANIFEST),
            f"{type(error).__name__}: {error}",
            "make one with `eyas prepare --target T --data F --out ROWS`",
        ) from error


def _require_kinds(*parts: RowsManifest | Source) -> None:
    for part in parts:
        for known in fields(part):
            value, kinds = getattr(part, known.name), {str: (str,), int: (int,), float: (float, int)}
            is_right = known.type not in kinds or type(value) in kinds[known.type]
            if not is_right or (known.type in (int, float) and not 0 <= value < _MOST):
                raise ValueError(f"`{known.name}` is {value!r}")
        counts = (*part.dropped.values(), *part.lost.values()) if isinstance(part, RowsManifest) else ()
        if not all(type(count) is int and 0 <= count < _MOST for count in counts):
            raise ValueError("`dropped` or `lost` holds something other than counts")
