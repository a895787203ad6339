"""A tiny target and rows for it on disk, for tests of whole runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from byte_tokenizer import save_target_with
from eyas.data.prepare import PrepareConfig, prepare
from eyas.talk import Silent

ANSWERS = ["A hawk flies.", "Two and two is four.", "Yes, it does.", "No rain today.", "Read the page again."]


def make_run_folder(folder: Path, answers: Sequence[str] = ANSWERS, **changes: Any) -> tuple[Path, Path]:
    """Folders of the target (with `changes` of its config) and of the rows."""
    target = save_target_with(folder / "target", **changes)
    # As published targets are: SGLang would serve one in float32 in float16, beside a draft in bfloat16.
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    data = folder / "data.jsonl"
    records = [
        {"messages": [{"role": "user", "content": f"Question {i}?"}, {"role": "assistant", "content": answer}]}
        for i, answer in enumerate([*answers] * 4)
    ]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    prepare(target, [data], folder / "rows", PrepareConfig(), Silent())
    return target, folder / "rows"
