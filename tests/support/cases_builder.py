"""Public drafts described as JSON (config, tensor names, shapes, dtypes) as real checkpoint folders: weights are holes.

The same format as the cases of the shared folder, whose `make.py` it follows. Standard library only.
"""

import fnmatch
import json
import random
import struct
from pathlib import Path
from typing import Any

_SIZE_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8}


def chosen_ids(draft_vocab: int, vocab: int) -> list[int]:
    """Sorted target ids of the draft vocabulary: the same for every recipe and run."""
    if draft_vocab == vocab:
        return list(range(vocab))
    rng = random.Random(draft_vocab * 1000003 + vocab)
    dense = list(range(draft_vocab // 4))
    rest = rng.sample(range(len(dense), vocab - 1), draft_vocab - len(dense) - 1)
    return [*dense, *sorted(rest), vocab - 1]


def write_case(case: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """(draft folder, target folder) of a case."""
    draft, target = folder / "draft", folder / "target"
    draft.mkdir(parents=True)
    target.mkdir()
    (draft / "config.json").write_text(json.dumps(case["config"]))
    (target / "config.json").write_text(json.dumps(_target_config(case["target_config"])))
    _write_weights(case, draft / "model.safetensors")
    return draft, target


def matches(expected: list[str], found: tuple[str, ...]) -> bool:
    """Both lists name the same things; expected ones may be patterns."""
    return all(any(fnmatch.fnmatch(f, e) for e in expected) for f in found) and all(
        any(fnmatch.fnmatch(f, e) for f in found) for e in expected
    )


def _write_weights(case: dict[str, Any], path: Path) -> None:
    tensors, header, at = case["tensors"], {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors, key=lambda n: (-_SIZE_BYTES[tensors[n]["dtype"]], n)):
        info, size = tensors[name], _SIZE_BYTES[tensors[name]["dtype"]]
        for dimension in info["shape"]:
            size *= dimension
        header[name] = {"dtype": info["dtype"], "shape": info["shape"], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    sizes = case["config"].get("transformer_layer_config") or case["config"]
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        start = file.tell()
        for name, recipe in (case.get("int_tensors") or {}).items():
            draft_vocab = tensors["d2t"]["shape"][0] if "d2t" in tensors else sizes["vocab_size"]
            file.seek(start + header[name]["data_offsets"][0])
            file.write(_integers(recipe, draft_vocab, sizes["vocab_size"]))
        file.truncate(start + at)


def _integers(recipe: str, draft_vocab: int, vocab: int) -> bytes:
    ids = chosen_ids(draft_vocab, vocab)
    if recipe == "mask_matching":
        mask = bytearray(vocab)
        for i in ids:
            mask[i] = 1
        return bytes(mask)
    values = {
        "offsets_sorted": [t - i for i, t in enumerate(ids)],
        "absolute": ids,
        "arange": list(range(draft_vocab)),
        "zeros": [0] * draft_vocab,
    }[recipe]
    return struct.pack(f"<{len(values)}q", *values)


def _target_config(described: dict[str, Any]) -> dict[str, Any]:
    keys = {k: v for k, v in described.items() if v is not None and k not in ("nested", "text_model_type", "unknown")}
    nested = described.get("nested")
    if not nested:
        return keys
    outer = {"architectures": keys.pop("architectures"), "model_type": keys.pop("model_type")}
    inner = {"model_type": described["text_model_type"], **keys}
    return {**outer, "tie_word_embeddings": keys.get("tie_word_embeddings", False), nested: inner}
