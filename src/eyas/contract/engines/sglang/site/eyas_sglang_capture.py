"""Lets an unmodified SGLang server hand over states. Runs in its scheduler processes; imports nothing of eyas.

The target's own hook (`set_eagle3_layers_to_capture`) makes the model pass its aux states to `LogitsProcessor.forward`,
where the last state after the final norm arrives too, with the batch. There, and nowhere earlier: under tensor
parallelism a layer's output may be a partial sum. The call continues without aux states, so replies stay small.

Source: srt/layers/logits_processor.py, srt/model_executor/{model_runner,forward_batch_info}.py of 0.5.9 ... 0.5.23.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_RUNNER = "sglang.srt.model_executor.model_runner"
_FORWARD = ("self", "input_ids", "hidden_states", "lm_head", "logits_metadata", "aux_hidden_states")
_BATCH_FIELDS = ("rids", "input_ids", "forward_mode", "extend_seq_lens_cpu", "extend_prefix_lens_cpu")
_LAYERS = "layers_to_capture"


class CaptureRefused(RuntimeError):
    """This server cannot be captured from."""

    def __init__(self, why: str) -> None:
        super().__init__(f"eyas-capture: {why}")


def install() -> None:
    """Wrap what is needed as soon as SGLang's model runner is imported, before any weight is read."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the model runner's module as Python does, and wraps it after it has run."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _RUNNER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _WrappingLoader(spec.loader)
        return spec


class _WrappingLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        wrap(module)


def wrap(runner: ModuleType) -> None:
    """Wrap `ModelRunner.load_model` and `LogitsProcessor.forward`; refuse a version that has others."""
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    check_entry_points(runner.ModelRunner, LogitsProcessor, ForwardBatch)
    wanted = json.loads(os.environ["EYAS_CAPTURE"])
    original: Callable[..., Any] = runner.ModelRunner.load_model

    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not self.is_draft_worker:
            _start(self, wanted, LogitsProcessor)
        return result

    runner.ModelRunner.load_model = load_model


def check_entry_points(runner: Any, processor: Any, batch: Any) -> None:
    """Raise `CaptureRefused` unless names and signatures are those that this module was written against."""
    found = tuple(inspect.signature(processor.forward).parameters)
    if found[: len(_FORWARD)] != _FORWARD:
        raise CaptureRefused(f"LogitsProcessor.forward takes {found}, expected {_FORWARD}")
    if tuple(inspect.signature(runner.load_model).parameters) != ("self",):
        raise CaptureRefused("ModelRunner.load_model takes arguments that eyas does not know")
    if "is_draft_worker" not in inspect.signature(runner.__init__).parameters:
        raise CaptureRefused("ModelRunner does not say whether it is a draft's")
    fields = getattr(batch, "__dataclass_fields__", {})
    missing = [name for name in _BATCH_FIELDS if name not in fields]
    if missing:
        raise CaptureRefused(f"ForwardBatch has no {', '.join(missing)}: rows cannot be told apart")


def _start(runner: Any, wanted: dict[str, Any], processor: Any) -> None:
    model = runner.model
    hook = getattr(model, "set_eagle3_layers_to_capture", None)
    if hook is None:
        raise CaptureRefused(f"{type(model).__name__} has no set_eagle3_layers_to_capture")
    hook(wanted["layer_ids"])
    boundaries = wanted["boundaries"]
    for set_to in _layers_of(model):
        if sorted(set_to) != boundaries:
            raise CaptureRefused(f"{type(model).__name__} captures before layers {set_to}, expected {boundaries}")
    from sglang.srt.distributed import get_tensor_model_parallel_rank

    spool = _open_spool(runner, wanted) if get_tensor_model_parallel_rank() == 0 else None
    if not getattr(processor.forward, "is_eyas", False):
        processor.forward = _wrapped(processor.forward, spool, len(boundaries))


def _layers_of(model: Any) -> Iterator[list[int]]:
    for module in model.modules():
        layers = getattr(module, _LAYERS, None)
        if isinstance(layers, list | tuple | set) and layers:
            yield list(layers)


def _open_spool(runner: Any, wanted: dict[str, Any]) -> Any:
    import sglang
    from eyas_spool import Spool

    config = runner.model_config
    version = f"sglang=={sglang.__version__}"
    about = {"boundaries": json.dumps(wanted["boundaries"]), "last": "post-norm", "source": version}
    spool = Spool(wanted["spool"], wanted["limit"], about)
    sizes = {"hidden_size": config.hidden_size, "context_length": config.context_len}
    dtype = str(config.dtype).removeprefix("torch.")
    spool.announce({**about, "boundaries": wanted["boundaries"], "dtype": dtype, "limit": wanted["limit"], **sizes})
    return spool


def _wrapped(original: Callable[..., Any], spool: Any, num_aux: int) -> Callable[..., Any]:
    import torch

    def forward(
        self: Any,
        input_ids: Any,
        hidden_states: Any,
        lm_head: Any,
        logits_metadata: Any,
        aux_hidden_states: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        mode = logits_metadata.forward_mode
        is_capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if spool is not None and not is_capturing and (mode.is_extend() and not mode.is_target_verify()):
            pieces = list(_pieces(logits_metadata))
            if pieces:
                parts = _parts(aux_hidden_states, hidden_states, num_aux)
                end = max(piece.start + piece.num for piece in pieces)
                # a multimodal wrapper gives its language model embeddings instead of ids
                ids = logits_metadata.input_ids if input_ids is None else input_ids
                if min(len(ids), len(hidden_states)) < end:
                    raise CaptureRefused(f"{len(hidden_states)} states came for {end} tokens: they are split over GPUs")
                spool.put(pieces, parts, ids)
        return original(self, input_ids, hidden_states, lm_head, logits_metadata, None, *args, **kwargs)

    forward.is_eyas = True  # type: ignore[attr-defined]
    return forward


def _pieces(batch: Any) -> Iterator[Any]:
    """What an extend pass holds of rows; nothing of requests that are not rows."""
    from eyas_spool import Piece, row_of

    rids = getattr(batch, "rids", None)
    if not rids or batch.extend_seq_lens_cpu is None:
        return
    start = 0
    # a padded batch has lengths without a request at its end
    for rid, count, first in zip(rids, batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu, strict=False):
        row = row_of(rid)
        if row is not None and count:
            yield Piece(row[0], row[1], int(first), start, int(count))
        start += int(count)


def _parts(aux: Any, last: Any, num_aux: int) -> list[Any]:
    """Aux states in the order of the layers, then the last one, each [T, width]."""
    if aux is None:
        raise CaptureRefused("the model passes no aux states on")
    parts = list(aux) if isinstance(aux, list | tuple) else list(aux.reshape(len(aux), num_aux, -1).unbind(1))
    if len(parts) != num_aux:
        raise CaptureRefused(f"{len(parts)} aux states came, {num_aux} were asked for")
    return [*parts, last]
