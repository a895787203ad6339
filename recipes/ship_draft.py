"""Makes the draft that ships with eyas out of a trained one: `python recipes/ship_draft.py DRAFT OUT`.

The weights as they are, in shards under 16 MiB with an index; of the metrics every 25th step and all replays. The model
card is written by hand.
"""

import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

SHARD_BYTES = 12 << 20
EVERY = 25


def main(trained: Path, out: Path) -> None:
    """Write everything but README.md."""
    tensors = load_file(trained / "model.safetensors")
    shards: list[dict] = [{}]
    for name in sorted(tensors):
        held = sum(t.numel() * t.element_size() for t in shards[-1].values())
        if shards[-1] and held + tensors[name].numel() * tensors[name].element_size() > SHARD_BYTES:
            shards.append({})
        shards[-1][name] = tensors[name]
    weight_map = {}
    out.mkdir(parents=True, exist_ok=True)
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, out / file, metadata={"format": "pt"})
        (out / file).chmod(0o644)
        weight_map |= dict.fromkeys(shard, file)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    for name in ("config.json", "eyas.json"):
        shutil.copyfile(trained / name, out / name)
    lines = (trained / "metrics.jsonl").read_text().splitlines(keepends=True)
    records = [(json.loads(line), line) for line in lines]
    kept = [line for r, line in records if r["schema"] != "eyas.metrics/1" or r["step"] % EVERY == 0 or r["step"] == 1]
    (out / "metrics.jsonl").write_text("".join(kept))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
