"""The stress pair that ships with the tests, and its draft spoiled as each row of the damage matrix says.

Both are trained (benchmarks/train_stress_pair.py), and every part of the draft matters: what an engine loses shows.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import damage_matrix
from damage_matrix import Sizes
from eyas.records.eval_rows import EvalRow

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "stress_pair"
TARGET, DRAFT, SHARED = FOLDER / "target", FOLDER / "draft", FOLDER / "draft-shared"


def prompts() -> list[EvalRow]:
    """The held-out prompts, with the target's own answers."""
    lines = (FOLDER / "rows.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [
        EvalRow(id=r["id"], set="stress", prompt_ids=tuple(r["prompt_ids"]), response_ids=tuple(r["response_ids"]))
        for r in found
    ]


def sizes(base: Path, id_base: int) -> Sizes:
    """Of the pair, for the damage matrix; `id_base`: see `Sizes`."""
    config = json.loads((TARGET / "config.json").read_text())
    draft = json.loads((base / "eyas.json").read_text())
    tensors = load_file(base / "model.safetensors")
    d2t = tensors["d2t"]
    return Sizes(
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        inner=config["intermediate_size"],
        vocab=config["vocab_size"],
        layers=config["num_hidden_layers"],
        aux=tuple(draft["contract"]["aux_boundaries"]),
        offered=tuple((torch.arange(len(d2t)) + d2t).tolist()),
        theta=100000.0,
        positions=config["max_position_embeddings"],
        tied=False,
        id_base=id_base,
        own_embedding="embed_tokens.weight" in tensors,
    )


def write_row(row: str, folder: Path, *, base: Path = DRAFT, id_base: int = 0) -> Path:
    """The trained draft `base`, spoiled as `row` of the damage matrix says, as a checkpoint folder."""
    trained = {_plain(name): tensor for name, tensor in load_file(base / "model.safetensors").items()}
    draft = damage_matrix.build(row, sizes(base, id_base))
    draw = torch.Generator().manual_seed(13)
    tensors = {}
    for name, (dtype, shape) in draft.tensors.items():
        if name in draft.maps:
            values = torch.tensor(draft.maps[name])
        elif row == "embed-random" and "embed_tokens" in name:
            values = torch.randn(shape, generator=draw)
        else:
            values = _values(name, shape, trained, draw)
        tensors[name] = values.to(_DTYPES[dtype]).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(draft.config, indent=1))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


_DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "I64": torch.int64,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
}


def _values(name: str, shape: Sequence[int], trained: dict[str, Tensor], draw: torch.Generator) -> Tensor:
    """The trained values, cut or extended to the row's shape; of tensors that were never trained, values that show."""
    name = _plain(name)
    noise = torch.randn(tuple(shape), generator=draw)
    if name == "fc.weight_scale":
        return torch.ones(1)
    if name not in trained:
        return 0.3 * noise if name.endswith("bias") else 0.3 + 1.7 * noise.sigmoid()
    source = trained[name].float()
    cut = tuple(slice(0, min(a, b)) for a, b in zip(shape, source.shape, strict=True))
    values = source.std() * noise
    values[cut] = source[cut]
    return values


def _plain(name: str) -> str:
    for prefix in ("model.", "midlayer.", "layers.0.", "layers.1."):
        name = name.removeprefix(prefix)
    return name
