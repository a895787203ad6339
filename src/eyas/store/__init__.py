"""The store: a target's states over rows of tokens, on disk. Imports numpy and no torch.

- `about`: what a store is; its manifest;
- `row`: one row with its states, and its key;
- `layout`: where things stand in a shard's file; `journal`: the index of a shard that still grows;
- `writer`, `reader`: several writers and any number of readers of one folder, at once;
- `verify`, `upkeep`: what is done to whole stores.
"""

from eyas.store.about import StoreAbout as StoreAbout
from eyas.store.reader import StoreReader as StoreReader
from eyas.store.row import StoreRow as StoreRow
from eyas.store.row import row_key as row_key
from eyas.store.writer import StoreWriter as StoreWriter
