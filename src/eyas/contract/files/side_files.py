"""The small files beside the weights that decide something: quantisation, generation, tokenizer, chat template."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.contract.files.json_file import parse_json, read_json_object
from eyas.contract.files.weight_files import PathEscape, safe_path
from eyas.records.fingerprint import of_bytes, of_file

_JSON_FILES = ("hf_quant_config.json", "generation_config.json", "eyas.json")
_HASHED = (
    "tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "merges.txt", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
# of tokenizer_config.json: it can be a megabyte of added tokens
_TOKENIZER_KEYS = (
    "tokenizer_class", "model_max_length", "bos_token", "eos_token", "pad_token", "add_bos_token", "add_eos_token",
)  # fmt: skip
_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFiles:
    """`extra` and `hashes` of a `Checkpoint`."""

    extra: Mapping[str, Any]
    hashes: Mapping[str, str]


def read_side_files(root: Path) -> SideFiles:
    """What lies beside the weights in `root`. A link that leads out of the folder is passed over.

    Raises:
        JsonInvalid, JsonDuplicateKey, JsonTooLarge, FileUnreadable: one of the files is damaged.
    """
    extra = {name: read_json_object(root / name) for name in _JSON_FILES if _is_there(root, name)}
    hashes = {name: of_file(root / name) for name in _HASHED if _is_there(root, name)}
    template = None
    if _is_there(root, "tokenizer_config.json"):
        tokenizer = read_json_object(root / "tokenizer_config.json")
        extra["tokenizer_config.json"] = {key: tokenizer[key] for key in _TOKENIZER_KEYS if key in tokenizer}
        template = tokenizer.get("chat_template")
    if _is_there(root, "chat_template.json"):
        template = parse_json((root / "chat_template.json").read_bytes(), str(root / "chat_template.json"))
        template = template.get("chat_template") if isinstance(template, dict) else template
    if _is_there(root, "chat_template.jinja"):
        template = (root / "chat_template.jinja").read_bytes()
    if template:
        hashes["chat_template"] = of_bytes(template if isinstance(template, bytes) else str(template).encode())
    return SideFiles(extra=extra, hashes=hashes)


def _is_there(root: Path, name: str) -> bool:
    path = root / name
    try:
        return path.is_file() and path.stat().st_size <= _LIMIT_BYTES and bool(safe_path(root, name, str(root)))
    except PathEscape:
        return False
