"""Rows of made-up states for tests of the store."""

from dataclasses import replace

import numpy as np

from eyas.store import StoreAbout, StoreRow, StoreWriter
from eyas.store.about import StateDtype

ABOUT = StoreAbout(
    target={"name_or_path": "tiny", "architectures": ["LlamaForCausalLM"], "fingerprint": "0123456789abcdef"},
    hidden_size=8,
    num_layers=6,
    vocab_size=100,
    boundaries=(1, 3, 5),
    source="transformers==5.17.0",
    tokenizer="aaaa",
    template="bbbb",
)


def about(dtype: StateDtype = "bfloat16", **changes: object) -> StoreAbout:
    return replace(ABOUT, dtype=dtype, **changes)


def stored_row(seed: int, about: StoreAbout = ABOUT, length: int | None = None, first: int = 0) -> StoreRow:
    """A row whose tokens and states follow from `seed`."""
    draw = np.random.default_rng(seed)
    length = length or int(draw.integers(first + 5, first + 20))
    positions = length - first
    return StoreRow(
        token_ids=draw.integers(0, about.vocab_size, length).astype(np.int32),
        is_supervised=draw.integers(0, 2, length).astype(bool),
        first=first,
        states=draw.integers(0, 200, (positions, about.width)).astype(about.numpy_dtype),
        scales=draw.random((positions, about.num_states), np.float32) if about.has_scales else None,
    )


def assert_same_row(found: StoreRow, wanted: StoreRow) -> None:
    assert (found.key, found.first) == (wanted.key, wanted.first)
    for name in ("token_ids", "is_supervised", "states", "scales"):
        a, b = getattr(found, name), getattr(wanted, name)
        assert (a is None) == (b is None), name
        assert a is None or (a.dtype == b.dtype and np.array_equal(a, b)), name


def fill(writer: StoreWriter, seeds: range) -> None:
    for seed in seeds:
        writer.append(stored_row(seed, writer.about))
