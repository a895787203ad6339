"""SGLang's side of the conformance run: its own config, registry, constructor and `load_weights`; no server."""

import inspect
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SGLANG_LOG_LEVEL", "error")

import parameter_probe
import sglang
import torch
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_loader.loader import DefaultModelLoader, _initialize_model
from sglang.srt.model_loader.utils import get_model_architecture, set_default_torch_dtype
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def versions() -> dict[str, Any]:
    """What was run."""
    import transformers

    return {
        "engine": "sglang",
        "version": sglang.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name(0) if DEVICE == "cuda" else "cpu",
    }


def start(target: Path) -> SimpleNamespace:
    """One process group of one, and the global server arguments that the models look at."""
    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.dp_attention import initialize_dp_attention

    arguments = ServerArgs(
        model_path=str(target),
        device=DEVICE,
        skip_tokenizer_init=True,
        disable_cuda_graph=True,
        attention_backend="triton" if DEVICE == "cuda" else "torch_native",
        sampling_backend="pytorch",
        mem_fraction_static=0.3,
        speculative_draft_model_quantization="unquant",
    )
    set_global_server_args_for_scheduler(arguments)
    init_distributed_environment(
        world_size=1,
        rank=0,
        local_rank=0,
        distributed_init_method="tcp://127.0.0.1:29672",
        backend="nccl" if DEVICE == "cuda" else "gloo",
    )
    # 0.5.20+ takes widths and ranks from the published context
    by_argument = "tensor_model_parallel_size" in inspect.signature(initialize_model_parallel).parameters
    if not by_argument:
        _state_single_rank()
    initialize_model_parallel(**({"tensor_model_parallel_size": 1} if by_argument else {}))
    wants_model = "model_config" in inspect.signature(initialize_dp_attention).parameters
    initialize_dp_attention(arguments, *([ModelConfig.from_server_args(arguments)] if wants_model else []))
    return SimpleNamespace(arguments=arguments)


def _state_single_rank() -> None:
    """What a launcher would publish for the only rank there is."""
    from sglang.srt.runtime_context import get_parallel

    ranks = ("tp_rank", "pp_rank", "attn_dp_rank", "attn_tp_rank", "attn_cp_rank", "moe_ep_rank")
    sizes = (
        "pp_size",
        "attn_dp_size",
        "attn_tp_size",
        "attn_cp_size",
        "attn_dcp_size",
        "moe_ep_size",
        "moe_dp_size",
        "moe_tp_size",
    )
    get_parallel().override_permanently(**dict.fromkeys(ranks, 0), **dict.fromkeys(sizes, 1))


def load(session: SimpleNamespace, draft: Path, found: dict[str, Any]) -> None:
    """Load one draft as the draft worker's loader does; fills `found` as far as it comes."""
    model_config = ModelConfig.from_server_args(session.arguments, model_path=str(draft), is_draft_model=True)
    model_class, _ = get_model_architecture(model_config)
    found["class"] = model_class.__name__
    found["stage"] = "construct"
    load_config = LoadConfig()
    with set_default_torch_dtype(torch.bfloat16):
        with torch.device(DEVICE):
            model = _initialize_model(model_config, load_config, None)
        found["initial"] = parameter_probe.initial_states(model)
        parameter_probe.poison(model)
        found["stage"] = "load"
        loader = DefaultModelLoader(load_config)
        model.load_weights(loader._get_all_weights(model_config, model))
    found["stage"] = "loaded"
    found["parameters"] = parameter_probe.written_shares(model)
    found["zeros"] = parameter_probe.zero_shares(model)
    found["flags"] = {
        "hot_token_id": getattr(model, "hot_token_id", None) is not None,
        "load_lm_head_from_target": bool(getattr(model, "load_lm_head_from_target", False)),
        "aux": _aux(model_config),
    }


def _aux(model_config: Any) -> list[int] | None:
    """Layers that a Llama target of 30 layers would be tapped before, by SGLang's own hook."""
    from sglang.srt.models.llama import LlamaForCausalLM

    try:
        eagle = getattr(model_config.hf_config, "eagle_config", None)
        ids = eagle["eagle_aux_hidden_state_layer_ids"]
    except (KeyError, TypeError):
        ids = None
    stub = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=30),
        model=SimpleNamespace(layers_to_capture=None),
        capture_aux_hidden_states=False,
    )
    LlamaForCausalLM.set_eagle3_layers_to_capture(stub, ids)
    return stub.model.layers_to_capture
