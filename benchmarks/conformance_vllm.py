"""vLLM's side of the conformance run: its own config, class choice, constructor and weight loader, on CPU or CUDA."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

import parameter_probe
import torch
import vllm
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype


def versions() -> dict[str, Any]:
    """What was run."""
    import transformers

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return {
        "engine": "vllm",
        "version": vllm.__version__.split("+")[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": device,
    }


def start(target: Path) -> SimpleNamespace:
    """One process group of one, for all rows."""
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    config = _config(target, None)
    with set_current_vllm_config(config):
        init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method="tcp://127.0.0.1:29671",
            backend="nccl" if torch.cuda.is_available() else "gloo",
        )
        initialize_model_parallel(1, 1)
    return SimpleNamespace(target=target)


def load(session: SimpleNamespace, draft: Path, found: dict[str, Any]) -> None:
    """Load one draft as the drafter's loader does; fills `found` as far as it comes."""
    config = _config(session.target, draft)
    speculative = config.speculative_config
    model_config = speculative.draft_model_config
    found["stage"] = "construct"
    found["class"] = model_config.architectures[0]
    # the draft is built under the target's dtype. Source: vllm/v1/spec_decode/llm_base_proposer.py load_model
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with set_current_vllm_config(config), set_default_torch_dtype(config.model_config.dtype), device:
        model = initialize_model(vllm_config=config, model_config=model_config)
        found["class"] = type(model).__name__
        found["initial"] = parameter_probe.initial_states(model)
        parameter_probe.poison(model)
        found["stage"] = "load"
        loader = get_model_loader(config.load_config)
        loader.load_weights(model, model_config)
    found["stage"] = "loaded"
    found["parameters"] = parameter_probe.written_shares(model)
    found["zeros"] = parameter_probe.zero_shares(model)
    found["flags"] = {
        "has_own_lm_head": bool(getattr(model, "has_own_lm_head", False)),
        "has_own_embed_tokens": bool(getattr(model, "has_own_embed_tokens", False)),
        **_aux(speculative),
    }


def _aux(speculative: Any) -> dict[str, Any]:
    """The layer ids that each runner takes from the draft's config, None = the target's default."""
    found: dict[str, Any] = {}
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    stub = SimpleNamespace(speculative_config=speculative)
    ids = GPUModelRunner._get_eagle3_aux_layers_from_config(stub)
    found["aux_v1"] = None if ids is None else sorted(set(ids))
    from vllm.v1.worker.gpu.spec_decode.eagle import eagle3_utils

    ids = eagle3_utils.get_eagle3_aux_layers_from_config(speculative)
    found["aux_v2"] = None if ids is None else sorted(set(ids))
    return found


def _config(target: Path, draft: Path | None) -> Any:
    speculative = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 3} if draft else None
    return EngineArgs(
        model=str(target),
        dtype="bfloat16",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=512,
        speculative_config=speculative,
    ).create_engine_config()
