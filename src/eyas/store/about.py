"""What a store is: the manifest of its folder, which every writer must agree with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.records.atomic import write_text
from eyas.records.changes import what_changed
from eyas.records.json_lines import json_of, open_regular

SCHEMA = "eyas.store/1"
MANIFEST = "manifest.json"
_MOST_BYTES = 1 << 20
StateDtype = Literal["bfloat16", "float16", "float32", "float8_e4m3"]
# As numpy holds them: numpy has neither bf16 nor fp8, whose bits travel as whole numbers.
NUMPY_DTYPES: Mapping[str, "np.dtype[Any]"] = {
    "bfloat16": np.dtype("<u2"),
    "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"),
    "float8_e4m3": np.dtype("u1"),
}
_LAST = ("post-norm", "pre-norm")
# Shards of stores that differ in these may stand in one folder.
_FREE = ("rows", "source")


class StoreUnreadable(EyasError):
    """The folder is not a store of states, or its manifest is damaged."""

    code = "store-unreadable"


class StoreMismatch(EyasError):
    """The store holds other states than those that are to be written or read: of another target, of other boundaries
    or in another dtype."""

    code = "store-mismatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAbout:
    """What a store holds. Shapes: A boundaries, Ht `hidden_size`.

    Attributes:
        target: its identity, as written into a draft; where known with `weights`, a fingerprint of samples of them.
        hidden_size, num_layers, vocab_size: of the target's language model.
        tokenizer, template: fingerprints; None where the source did not know them.
        rows: fingerprint of the folder of rows that was asked for; None where there was none.
        boundaries: A numbers of decoder layers applied, ascending.
        last: whether the last state is after the final norm (what the head reads) or before it.
        dtype: of the states; float8_e4m3 has a float32 scale per position and state.
        source: what computed them, "transformers==5.17.0".
        keep_prompt: rows begin this many tokens before the first supervised one; None where they are whole.
    """

    target: Mapping[str, Any]
    hidden_size: int
    num_layers: int
    vocab_size: int
    boundaries: tuple[int, ...]
    source: str
    last: Literal["post-norm", "pre-norm"] = "post-norm"
    dtype: StateDtype = "bfloat16"
    tokenizer: str | None = None
    template: str | None = None
    rows: str | None = None
    keep_prompt: int | None = None

    @property
    def num_states(self) -> int:
        """States per position: A + 1, the last one included."""
        return len(self.boundaries) + 1

    @property
    def width(self) -> int:
        """Values per position: (A + 1) · Ht."""
        return self.num_states * self.hidden_size

    @property
    def numpy_dtype(self) -> "np.dtype[Any]":
        """How numpy holds a value (bf16 as uint16, fp8 as uint8)."""
        return NUMPY_DTYPES[self.dtype]

    @property
    def has_scales(self) -> bool:
        """Whether a scale belongs to each state."""
        return self.dtype == "float8_e4m3"

    @property
    def position_bytes(self) -> int:
        """Bytes that the states of one position take, scales included."""
        return self.width * self.numpy_dtype.itemsize + self.num_states * 4 * self.has_scales

    @property
    def fits(self) -> str:
        """Fingerprint of all that shards of one store have in common; each shard names it."""
        return fingerprint.of_json(self._identity(_FREE))

    def as_document(self) -> dict[str, Any]:
        """The manifest as a JSON object."""
        return {"schema": SCHEMA, **asdict(self), "boundaries": list(self.boundaries)}

    def require_same(self, wanted: "StoreAbout", where: Path, do: str, free: Sequence[str] = ("rows",)) -> None:
        """Raise `StoreMismatch` where `wanted` differs in more than the fields `free` and the target's name."""
        then, now = self._identity(free), wanted._identity(free)
        if then != now:
            what = f"{where} holds other states than those asked for"
            raise StoreMismatch(what, str(where / MANIFEST), what_changed(then, now), do)

    def _identity(self, free: Sequence[str]) -> dict[str, Any]:
        named = {name: value for name, value in self.as_document().items() if name not in free}
        return named | {"target": {name: value for name, value in self.target.items() if name != "name_or_path"}}


def write_about(about: StoreAbout, folder: Path) -> None:
    """Write the manifest, atomically."""
    write_text(folder / MANIFEST, json.dumps(about.as_document(), indent=2, ensure_ascii=False) + "\n")


def read_about(folder: Path) -> StoreAbout:
    """The manifest of the store in `folder`.

    Raises:
        StoreUnreadable: there is none, it is of another schema, or a field is missing or impossible.
    """
    try:
        with open_regular(folder / MANIFEST) as file:
            if len(data := file.read(_MOST_BYTES + 1)) > _MOST_BYTES:
                raise ValueError(f"it is longer than {_MOST_BYTES >> 10} KiB")
        document = json_of(data.decode())
        if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        if unknown := sorted(document.keys() - {known.name for known in fields(StoreAbout)}):
            raise ValueError(f"`{unknown[0][:80]}` is not known")
        if wrong := _wrong_field(document):
            raise ValueError(f"`{wrong}` is missing, or of another type or size")
        return StoreAbout(**{**document, "boundaries": tuple(document["boundaries"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreUnreadable(
            f"{folder} is not a store of states",
            str(folder / MANIFEST),
            f"{type(error).__name__}: {error}",
            "make one with `eyas extract --target T --data ROWS --out STORE`",
        ) from error


def _wrong_field(found: Mapping[str, Any]) -> str | None:
    boundaries: Any = found.get("boundaries")
    layers: Any = found.get("num_layers")
    right = {
        "target": isinstance(found.get("target"), dict),
        "hidden_size": _is_count(found.get("hidden_size"), 1 << 20),
        "num_layers": _is_count(layers, 1 << 16),
        "vocab_size": _is_count(found.get("vocab_size"), 1 << 24),
        "boundaries": isinstance(boundaries, list)
        and all(type(b) is int for b in boundaries)
        and boundaries == sorted(set(boundaries))
        and all(0 <= boundary <= (layers if _is_count(layers, 1 << 16) else 0) for boundary in boundaries),
        "source": isinstance(found.get("source"), str),
        "last": found.get("last") in _LAST,
        "dtype": isinstance(found.get("dtype"), str) and found["dtype"] in NUMPY_DTYPES,
        "keep_prompt": found.get("keep_prompt") is None or _is_count(found["keep_prompt"], 1 << 30, least=0),
        **{name: isinstance(found.get(name), str | None) for name in ("tokenizer", "template", "rows")},
    }
    return next((name for name, is_right in right.items() if not is_right), None)


def _is_count(value: Any, most: int, least: int = 1) -> bool:
    return type(value) is int and least <= value <= most
