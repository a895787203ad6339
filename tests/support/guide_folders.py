"""What lies in the folder in which a guide's commands run."""

import json
import shutil
from collections.abc import Callable
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
}
