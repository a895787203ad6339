"""What lies in the folder in which a guide's commands run."""

import json
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path

from cases_builder import write_case

TESTS = Path(__file__).resolve().parents[1]
LOGS = TESTS / "serve" / "logs"


def a_draft_from_elsewhere(folder: Path) -> None:
    """A published draft for a mixture of experts, sizes and names as ModelOpt exports them; weights are holes."""
    case = json.loads((TESTS / "guides" / "qwen3-235b-modelopt.json").read_text())
    draft, target = write_case(case, folder / "case")
    draft.rename(folder / "Qwen3-235B-A22B-Eagle3")
    target.rename(folder / "Qwen3-235B-A22B")
    (folder / "case").rmdir()
    shutil.copy(LOGS / "sglang-0.5.15.post1-h200-good.log", folder / "engine.log")


def your_own_draft(folder: Path) -> None:
    """The conversations that ship."""
    from eyas import shipped

    lines = shipped.conversations_path().read_text().splitlines(keepends=True)
    (folder / "conversations.jsonl").write_text("".join(lines[:40]))
    shutil.copy(shipped.eval_rows_path(), folder / "eval_rows.jsonl")
    shutil.copytree(shipped.draft_folder(), folder / "shipped-draft")
    _published_config(folder)


def accept_length_one(folder: Path) -> None:
    """The shipped draft without its head, with the log of the server that ran it, and a copy whose config lies."""
    from eyas import shipped

    headless, other = folder / "my-draft", folder / "another-draft"
    for copy in (headless, other):
        shutil.copytree(shipped.draft_folder(), copy)
        for name in ("eyas.json", "README.md", "metrics.jsonl"):
            (copy / name).unlink(missing_ok=True)
    _without_tensor(headless, "lm_head.weight")
    config = json.loads((other / "config.json").read_text())
    config["norm_before_residual"] = True
    (other / "config.json").write_text(json.dumps(config))
    shutil.copy(LOGS / "sglang-0.5.15.post1-h200-no-lm-head.log", folder / "server.log")
    _published_config(folder)


def _published_config(folder: Path) -> None:
    """The built-in target's config with the dtype in which the model is published; the built-in one is in fp32."""
    from eyas.cli.target_option import target_folder
    from eyas.talk import Silent

    config = json.loads((target_folder("smollm2-135m", Silent()) / "config.json").read_text())
    (folder / "SmolLM2-135M-Instruct").mkdir()
    (folder / "SmolLM2-135M-Instruct" / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))


# Kimi-K2.5's own sizes, where its published config differs from the tiny one of `published_targets`.
KIMI_TEXT = {
    "bos_token_id": 163584,
    "eos_token_id": 163586,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "vocab_size": 163840,
}


def kimi_on_8_gpus(folder: Path) -> None:
    """Kimi-K2.5 with the sizes of the published one, its weights holes, and rows for it of random ids."""
    from published_targets import kimi_config

    target = folder / "Kimi-K2.5"
    target.mkdir()
    config = kimi_config(packed=True, rope_factor=64.0, **KIMI_TEXT)
    (target / "config.json").write_text(json.dumps(config))
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": KIMI_TEXT["eos_token_id"]}))
    tokenizer = {"tokenizer_class": "TikTokenTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_kimi.T", None]}}
    (target / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (target / "tiktoken.model").write_text("AA== 0\n")
    (target / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    _write_holes(target / "model.safetensors", _kimi_tensors())
    (folder / "prompts.jsonl").write_text('{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}\n')
    _write_rows(folder / "rows", target, num=2000, length=4096)


def _kimi_tensors() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, dtypes and shapes; the experts of a layer as one tensor each: 211 thousand names say no more."""
    hidden, shapes = 7168, dict[str, tuple[str, tuple[int, ...]]]()
    for name in ("model.embed_tokens", "lm_head"):
        shapes[f"language_model.{name}.weight"] = "BF16", (163840, hidden)
    shapes["language_model.model.norm.weight"] = "BF16", (hidden,)
    for layer in range(61):
        stem = f"language_model.model.layers.{layer}"
        shapes |= {
            f"{stem}.{norm}.weight": ("BF16", (hidden,)) for norm in ("input_layernorm", "post_attention_layernorm")
        }
        attention = {"q_a_proj": (1536, hidden), "q_b_proj": (64 * 192, 1536), "kv_a_proj_with_mqa": (576, hidden)}
        attention |= {"kv_b_proj": (64 * 256, 512), "o_proj": (hidden, 64 * 128)}
        shapes |= {f"{stem}.self_attn.{name}.weight": ("BF16", shape) for name, shape in attention.items()}
        wide = ("mlp", 18432) if layer == 0 else ("mlp.shared_experts", 2048)
        for name in ("gate_proj", "up_proj", "down_proj"):
            shapes[f"{stem}.{wide[0]}.{name}.weight"] = "BF16", (wide[1], hidden)
        if layer:
            shapes[f"{stem}.mlp.gate.weight"] = "BF16", (384, hidden)
            shapes[f"{stem}.mlp.experts.weight_packed"] = "I32", (384, 3 * 2048, hidden // 8)
            shapes[f"{stem}.mlp.experts.weight_scale"] = "BF16", (384, 3 * 2048, hidden // 32)
    return shapes


def _write_holes(path: Path, shapes: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """A safetensors file that takes no room: its data are holes."""
    header, at = dict[str, object](), 0
    for name, (dtype, shape) in shapes.items():
        size = {"BF16": 2, "I32": 4}[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


def _write_rows(folder: Path, target: Path, *, num: int, length: int) -> None:
    """What `eyas prepare` writes: 200 tokens of prompt, then an answer."""
    import numpy as np

    from eyas.contract.spec.target_spec import read_target
    from eyas.data.rows.row_store import ROW_COUNTS, RowArrays
    from eyas.records.rows import RULES, RowsManifest, write_manifest

    starts = np.arange(num + 1, dtype=np.int64) * length
    rows = RowArrays(
        token_ids=np.random.default_rng(0).integers(0, 163584, num * length).astype(np.int32),
        is_supervised=np.tile(np.arange(length) >= 200, num),
        starts=starts,
        files=np.zeros(num, np.int32),
        lines=np.arange(1, num + 1, dtype=np.int64),
    )
    folder.mkdir()
    rows.write(folder)
    spec = read_target(target)
    manifest = RowsManifest(
        fingerprint="0123456789abcdef",
        tokenizer=spec.tokenizer_hash or "unknown",
        template=spec.template_hash or "unknown",
        template_options={},
        sources=(),
        options={},
        dropped={},
        num_as_written=num,
        rules=RULES,
        **{name: getattr(rows, name) for name in ROW_COUNTS},
    )
    write_manifest(manifest, folder)


def _without_tensor(folder: Path, name: str) -> None:
    """The tensor's name leaves the index and its header; so do its bytes."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    file = folder / index["weight_map"].pop(name)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata, (start, end) = header.pop("__metadata__", None), header.pop(name)["data_offsets"]
    for tensor in header.values():
        tensor["data_offsets"] = [at - (end - start if at >= end else 0) for at in tensor["data_offsets"]]
    text = json.dumps({**({"__metadata__": metadata} if metadata else {}), **header}).encode()
    text += b" " * (-len(text) % 8)
    weights = data[8 + length :]
    file.write_bytes(len(text).to_bytes(8, "little") + text + weights[:start] + weights[end:])


FOLDERS: dict[str, Callable[[Path], None]] = {
    "draft-from-elsewhere": a_draft_from_elsewhere,
    "your-own-draft": your_own_draft,
    "accept-length-one": accept_length_one,
    "kimi-on-8-gpus": kimi_on_8_gpus,
}
