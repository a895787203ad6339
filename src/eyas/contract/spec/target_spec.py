"""`TargetSpec`: what a target's config says, found through wrappers and both spellings. Its weights are not opened."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.files.read_checkpoint import read_target_checkpoint
from eyas.contract.files.tokenizer_print import TokenizerPrint, tokenizer_print
from eyas.contract.spec.draft_spec import Rope
from eyas.contract.spec.rope import read_rope
from eyas.errors import EyasError
from eyas.records.fingerprint import of_json

# where wrappers keep the language model, most specific first
_TEXT_KEYS = ("text_config", "language_config", "llm_config", "thinker_config", "language_model_config", "decoder")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
# model types whose config class ties the head when the key is absent
_TIED_BY_DEFAULT = ("gemma", "cohere", "gpt2", "smollm3")
_NOT_IDENTITY = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "auto_map"}


def config_dtype(config: Mapping[str, Any]) -> str | None:
    """The dtype that a config names, in either spelling; None if it names none."""
    named = config.get("dtype") or config.get("torch_dtype")
    return named.removeprefix("torch.") if isinstance(named, str) else None


class TargetConfigIncomplete(EyasError):
    """The target's config does not say how wide or deep the model is."""

    code = "target-config-incomplete"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """What drafts and engines need to know of a target.

    Attributes:
        where: as the user gave it.
        name: public name (hub id), None when it was given as a folder.
        architectures: class names of the (outer) model.
        model_type: of the outer config; `text_model_type` of the language model in it (equal without a wrapper).
        text_path: keys that lead to the language model's config, such as ("text_config",); () without a wrapper.
        hidden_size, num_layers: of the language model.
        vocab_size: rows of embedding and head, padding included; None when the config leaves it to its class.
        num_heads, num_kv_heads, head_dim: None where not said.
        max_position_embeddings: tokens; None where not said.
        rope: effective.
        tie_word_embeddings: the head is the embedding.
        quantization: method name ("fp8", "compressed-tensors" ...), None for plain weights.
        is_head_quantized: None when the config does not say.
        tokenizer: its fingerprints, the parsed one made when first asked for; None without a tokenizer file.
        template_hash: fingerprint of the chat template; None when there is none.
        fingerprint: of the config, without keys that do not change the function.
        config: as it stands.
        text_config: the language model's part of it.
    """

    where: str
    name: str | None = None
    architectures: tuple[str, ...]
    model_type: str
    text_model_type: str
    text_path: tuple[str, ...] = ()
    hidden_size: int
    num_layers: int
    vocab_size: int | None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    rms_norm_eps: float | None = None
    max_position_embeddings: int | None = None
    rope: Rope = field(default_factory=Rope)
    tie_word_embeddings: bool = False
    quantization: str | None = None
    is_head_quantized: bool | None = False
    tokenizer: TokenizerPrint | None = None
    template_hash: str | None = None
    fingerprint: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    text_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> str | None:
        """Dtype that its config names, of the language model first; None if it names none."""
        return config_dtype(self.text_config) or config_dtype(self.config)

    @property
    def tokenizer_hash(self) -> str | None:
        """Fingerprint of what the tokenizer's ids mean (`TokenizerPrint.hash`, which parses the file)."""
        return self.tokenizer.hash if self.tokenizer else None

    def as_document(self) -> dict[str, Any]:
        """The identity that is written into a draft: names, sizes, fingerprints; no paths. Parses the tokenizer."""
        return {
            **self.as_known_unparsed(),
            "tokenizer_hash": self.tokenizer_hash,
            "tokenizer_file_hash": self.tokenizer.file_hash if self.tokenizer else None,
            "template_hash": self.template_hash,
        }

    def as_known_unparsed(self) -> dict[str, Any]:
        """The part of `as_document` that config.json alone gives."""
        return {
            "name_or_path": self.name,
            "architectures": list(self.architectures),
            "model_type": self.model_type,
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "vocab_size": self.vocab_size,
            "fingerprint": self.fingerprint,
        }


def read_target(path: Path) -> TargetSpec:
    """The target under `path`: a folder with config.json, a config.json, or a header dump. No weight file is opened.

    Raises:
        CheckpointNotFound, FileUnreadable, JsonInvalid, JsonDuplicateKey: no readable config.
        TargetConfigIncomplete: no hidden size or layer count in it.
    """
    return target_spec(read_target_checkpoint(path))


def target_spec(checkpoint: Checkpoint) -> TargetSpec:
    """The target that `checkpoint` (of a target) describes.

    Raises:
        TargetConfigIncomplete: no hidden size or layer count in its config.
    """
    config = checkpoint.config
    text_path, text = _text_config(config, checkpoint.where)
    model_type = _text(config.get("model_type"))
    text_model_type = _text(text.get("model_type")) or model_type
    method, head_quantized = _quantization(config, text, checkpoint.extra)
    hidden, layers = _first_int(text, _HIDDEN), _first_int(text, _LAYERS)
    assert hidden is not None, "_text_config found it"
    assert layers is not None, "_text_config found it"
    architectures = config.get("architectures")
    heads = _first_int(text, ("num_attention_heads", "n_head"))
    return TargetSpec(
        where=checkpoint.where,
        architectures=tuple(map(str, architectures)) if isinstance(architectures, list) else (),
        model_type=model_type,
        text_model_type=text_model_type,
        text_path=text_path,
        hidden_size=hidden,
        num_layers=layers,
        vocab_size=_first_int(text, ("vocab_size", "padded_vocab_size")) or _first_int(config, ("vocab_size",)),
        num_heads=heads,
        num_kv_heads=_first_int(text, ("num_key_value_heads",)) or heads,
        head_dim=_first_int(text, ("head_dim",)) or (hidden // heads if heads else None),
        intermediate_size=_first_int(text, ("intermediate_size", "n_inner")),
        rms_norm_eps=_float(text.get("rms_norm_eps")),
        max_position_embeddings=_first_int(text, ("max_position_embeddings", "n_positions", "max_sequence_length")),
        rope=read_rope(text).rope,
        tie_word_embeddings=_is_tied(config, text, text_model_type),
        quantization=method,
        is_head_quantized=head_quantized,
        tokenizer=tokenizer_print(checkpoint),
        template_hash=checkpoint.hashes.get("chat_template"),
        fingerprint=of_json({key: value for key, value in config.items() if key not in _NOT_IDENTITY}),
        config=config,
        text_config=text,
    )


def _text_config(config: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    found = _search(config, (), depth=3)
    if found is None:
        raise TargetConfigIncomplete(
            "the target's config says neither hidden size nor layer count",
            where,
            f"looked for {' / '.join(_HIDDEN)} and {' / '.join(_LAYERS)}, also inside {', '.join(_TEXT_KEYS)}",
            "give the config.json of the target model, not of its tokenizer or a part",
        )
    return found


def _search(
    config: Mapping[str, Any], path: tuple[str, ...], depth: int
) -> tuple[tuple[str, ...], Mapping[str, Any]] | None:
    # a wrapper may keep stale sizes at its top: what is nested under a text key wins
    if depth:
        for key in _TEXT_KEYS:
            inner = config.get(key)
            if isinstance(inner, Mapping) and (found := _search(inner, (*path, key), depth - 1)):
                return found
    if _first_int(config, _HIDDEN) and _first_int(config, _LAYERS):
        return path, config
    return None


def _is_tied(config: Mapping[str, Any], text: Mapping[str, Any], model_type: str) -> bool:
    for level in (config, text):
        if isinstance(level.get("tie_word_embeddings"), bool):
            return bool(level["tie_word_embeddings"])
    return model_type.startswith(_TIED_BY_DEFAULT)


def _quantization(
    config: Mapping[str, Any], text: Mapping[str, Any], extra: Mapping[str, Any]
) -> tuple[str | None, bool | None]:
    quant = config.get("quantization_config", text.get("quantization_config"))
    if not isinstance(quant, Mapping):
        file = extra.get("hf_quant_config.json")
        quant = file.get("quantization") if isinstance(file, Mapping) else None
    if not isinstance(quant, Mapping):
        return None, False
    method = _text(quant.get("quant_method") or quant.get("quant_algo") or quant.get("quant_type")) or "unknown"
    if quant.get("lm_head") is True:
        return method, True
    for key in ("ignore", "modules_to_not_convert", "exclude_modules", "llm_int8_skip_modules", "ignored_layers"):
        skipped = quant.get(key)
        if isinstance(skipped, list) and any("lm_head" in str(item) for item in skipped):
            return method, False
    # GPTQ, AWQ and fp8 leave the head alone unless told otherwise; for others only the tensors can tell
    return method, False if method in ("gptq", "awq", "fp8") else None


def _first_int(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31:
            return value
    return None


def _float(value: Any) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30 else None
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
