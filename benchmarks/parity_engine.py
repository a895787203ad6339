"""Rounds of eyas' own engine beside the replay of the ids that it wrote: every round of every prompt must be the same.

    python benchmarks/parity_engine.py --data mt_bench.jsonl gsm8k.jsonl … --max-prompts 20 --out parity_engine.json

The shipped draft on SmolLM2-135M, greedy, chains, K = 3 and 5; one row of the table per set and K.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from eyas import shipped
from eyas.bench.bench_engine import TargetTokenizer, workload
from eyas.decode.accept_length import Acceptance, pooled
from eyas.engine.engine import Limits
from eyas.engine.open_engine import open_engine
from eyas.models.chat_prompt import stop_ids_of
from eyas.models.placement import place
from eyas.models.target import Target
from eyas.models.target_folder import resolve_target
from eyas.records.eval_rows import EvalRow, read_eval_rows
from eyas.replay.evaluate import load_for
from eyas.replay.replay import replay
from eyas.talk import Silent


def main() -> int:
    """0 if all counts are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--max-prompts", type=int, default=20, help="of each set")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("-k", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    cache, placement, began = Path.home() / ".cache" / "eyas", place("float32", "cpu"), time.monotonic()
    folder, draft_folder = (
        resolve_target("smollm2-135m", cache=cache, talk=Silent(), wheel=None),
        shipped.draft_folder(),
    )
    prompts = workload(read_eval_rows(args.data), TargetTokenizer(folder).prompt_ids, args.max_prompts)
    opened = open_engine(folder, draft_folder, placement, cache=cache, num_threads=1, talk=Silent(), rounds="auto")
    target = Target.load(folder, placement)
    draft = load_for(draft_folder, folder, target, placement, Silent())
    limits = Limits(max_new_tokens=args.max_new_tokens, stop_ids=stop_ids_of(folder))
    found: list[dict[str, Any]] = []
    for k in args.k:
        texts = [opened.engine.generate(p.prompt_ids, limits, num_draft_tokens=k) for p in prompts]
        rows = [
            EvalRow(id=p.id, set=p.set, prompt_ids=p.prompt_ids, response_ids=tuple(text.ids))
            for p, text in zip(prompts, texts, strict=True)
        ]
        replayed = replay(target, draft, rows, k, Silent())
        for name in dict.fromkeys(row.set for row in rows):
            pairs = [(t, r) for t, r in zip(texts, replayed, strict=True) if r.set == name]
            ours = pooled((Acceptance.of_rounds(t.accepted, k) for t, _ in pairs), k)
            theirs = pooled((Acceptance.of_rounds(r.accepted, k) for _, r in pairs), k)
            same = sum(tuple(t.accepted) == tuple(r.accepted) for t, r in pairs)
            found.append(
                {"set": name, "k": k, "prompts": len(pairs), "same": same, "rounds": ours.rounds}
                | {"engine": list(ours.accepted_at), "replay": list(theirs.accepted_at)}
                | {"accept_length": ours.accept_length, "replayed_accept_length": theirs.accept_length}
            )
            print(found[-1], flush=True)
    about = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.processor()}
    document = {
        "rows": found,
        "max_new_tokens": args.max_new_tokens,
        "seconds": round(time.monotonic() - began),
        **about,
    }
    if args.out:
        args.out.write_text(json.dumps(document, indent=1))
    return 0 if all(row["same"] == row["prompts"] for row in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
