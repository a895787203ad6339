"""The draft's config as an engine's own code sees it: defaults of the config class filled in."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_SAME_AS = {"deepseek_v3": "kimi_k2", "deepseek_v2": "kimi_k2", "deepseek_v32": "kimi_k2"}
# set in the seen config of a P-EAGLE draft, which is launched with parallel_drafting
PARALLEL = "eyas:parallel_drafting"
# transformers' classes that tie the head unless told otherwise
_TIED = ("gemma", "gpt2")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenConfig:
    """A config with the lookups that loaders use.

    Attributes:
        values: keys and values after translation, without defaults.
        model_type: whose class defaults apply.
    """

    values: Mapping[str, Any]
    model_type: str

    def get(self, path: str, default: Any = None) -> Any:
        """Value under a dotted path; `default` when the config (and its class) has none. An explicit null is None."""
        if "." in path:
            outer, inner = path.split(".", 1)
            level = self.values.get(outer)
            return level.get(inner, default) if isinstance(level, Mapping) else default
        if path in self.values:
            return self.values[path]
        return self._defaults().get(path, default)

    def has(self, path: str) -> bool:
        """The config itself says something under this path, null included."""
        if "." in path:
            outer, inner = path.split(".", 1)
            level = self.values.get(outer)
            return isinstance(level, Mapping) and inner in level
        return path in self.values

    def size(self, key: str) -> int:
        """A positive size; 0 if it is missing or not a number (shapes are then unknown)."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40 else 0

    @property
    def head_dim(self) -> int:
        """As LlamaAttention takes it: `head_dim`, else hidden over heads."""
        heads = self.size("num_attention_heads")
        return self.size("head_dim") or (self.size("hidden_size") // heads if heads else 0)

    @property
    def num_kv_heads(self) -> int:
        """As LlamaConfig takes it: as many as heads when absent."""
        return self.size("num_key_value_heads") or self.size("num_attention_heads")

    @property
    def draft_vocab(self) -> int:
        """Rows of the draft's head: `draft_vocab_size`, else the vocabulary."""
        return self.size("draft_vocab_size") or self.size("vocab_size")

    @property
    def target_hidden(self) -> int:
        """Width of one aux state as the fc is built for."""
        return self.size("target_hidden_size") or self.size("hidden_size")

    @property
    def ties_head(self) -> bool:
        """`tie_word_embeddings`, with the class's default."""
        value = self.get("tie_word_embeddings")
        return bool(value) if value is not None else self.model_type.startswith(_TIED)

    def _defaults(self) -> Mapping[str, Any]:
        found = _all_defaults()
        return {**found["llama"], **found.get(_SAME_AS.get(self.model_type, self.model_type), {})}


@cache
def _all_defaults() -> Mapping[str, Mapping[str, Any]]:
    """Defaults of transformers' config classes (4.57 and 5.19), for keys that a draft's config leaves out.

    Those of another model type than llama are what differs from llama's.
    """
    file = Path(__file__).parent / "config_defaults.json"
    found: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found
