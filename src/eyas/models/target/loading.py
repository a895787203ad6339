"""A target's folder as a `transformers` model, its parts found and every weight of its text part accounted for.

A model's own Python code (`auto_map`) is never run: what transformers has no class for is loaded as the text model that
its config nests, where that one is known, or refused. Parts are found by attribute search, not by a list of models:
nested and multimodal wrappers (`model.language_model`, ...) are searched for a module with exactly the configured
number of decoder layers. A part that is not found is named.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from eyas.contract.files.read_checkpoint import CheckpointNotFound, read_checkpoint
from eyas.contract.spec.target_parts import FINAL_NORMS, TargetPartMissing
from eyas.contract.spec.target_size import TargetSize, size_of_counts
from eyas.contract.spec.target_spec import TargetConfigIncomplete, TargetSpec, read_target
from eyas.errors import EyasError
from eyas.models.placement import Placement
from eyas.models.target.text_model import text_model_options

_LAYER_LISTS = ("layers", "h", "blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetParts:
    """The text model inside a target and its pieces.

    Attributes:
        text_model: reads token ids, gives the state after the final norm.
        path: its attribute path, such as "model.language_model".
        layers: its decoder layers, first to last.
        embedding: [V, Ht].
        final_norm: maps the state at boundary N to what the head reads.
        head: [V, Ht] (the embedding itself when tied).
    """

    text_model: nn.Module
    path: str
    layers: nn.ModuleList
    embedding: Tensor
    final_norm: nn.Module
    head: Tensor


def find_target_parts(model: PreTrainedModel) -> TargetParts:
    """The parts of `model`.

    Raises:
        TargetPartMissing: one of them was not found; the message lists what was.
    """
    num_layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    for path, module in model.named_modules():
        layers = _layer_list(module, num_layers)
        if layers is None:
            continue
        norm = next((n for name in FINAL_NORMS if isinstance(n := getattr(module, name, None), nn.Module)), None)
        if norm is None:
            raise _missing(model, "final norm", f"{path or 'the model'} has none of {', '.join(FINAL_NORMS)}")
        return TargetParts(
            text_model=module,
            path=path,
            layers=layers,
            embedding=_embedding(model, module),
            final_norm=norm,
            head=_head(model),
        )
    found = [f"{p}: {len(m)} x {type(m[0]).__name__}" for p, m in model.named_modules() if _is_list(m)]
    raise _missing(model, f"list of {num_layers} decoder layers", f"the lists found are {found[:8]}")


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList) and len(module) > 0


def _layer_list(module: nn.Module, num_layers: int) -> nn.ModuleList | None:
    for name in _LAYER_LISTS:
        layers = getattr(module, name, None)
        # A vision tower may be as deep as the text model, but only a text model embeds tokens.
        if isinstance(layers, nn.ModuleList) and len(layers) == num_layers and _own_embedding(module) is not None:
            return layers
    return None


def _own_embedding(module: nn.Module) -> nn.Embedding | None:
    for name in ("embed_tokens", "wte", "word_embeddings", "embeddings"):
        if isinstance(found := getattr(module, name, None), nn.Embedding):
            return found
    return None


def _embedding(model: PreTrainedModel, text_model: nn.Module) -> Tensor:
    found = _own_embedding(text_model)
    if found is None:
        raise _missing(model, "token embedding", "the text model has no embed_tokens")
    return found.weight


def _head(model: PreTrainedModel) -> Tensor:
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor):
        raise _missing(model, "output head", "get_output_embeddings() gives no weight")
    return weight


def _missing(model: PreTrainedModel, part: str, why: str) -> TargetPartMissing:
    return TargetPartMissing(
        f"the target has no {part} that eyas finds",
        type(model).__name__,
        why,
        "report the model class: this version cannot evaluate or train drafts for it",
    )


_EMBEDDING = "embed_tokens.weight"
_Loaded = tuple[PreTrainedModel, Mapping[str, Any]]


class TargetUnloadable(EyasError):
    """transformers cannot load the folder as a language model, or its weights are not all there."""

    code = "target-unloadable"


def load_target_model(folder: Path, placement: Placement) -> PreTrainedModel:
    """The model in `folder`, on the placement's device, in its dtype.

    Raises:
        TargetUnloadable: transformers says no, it has no class for it, or weights of the text model are missing.
        TargetPartMissing: the model has no part that a draft needs.
    """
    options: dict[str, Any] = {
        "dtype": placement.dtype,
        "local_files_only": True,
        "trust_remote_code": False,
        "output_loading_info": True,
    }
    with _quiet():
        try:
            model, info = _from_pretrained(folder, options)
        except Exception as error:  # a config from outside meets a library of others: any kind comes
            raise _unloadable(
                folder, f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
            ) from error
    _require_weights(model, info.get("missing_keys", ()), folder)
    return model.to(placement.device)


def _from_pretrained(folder: Path, options: Mapping[str, Any]) -> _Loaded:
    path = folder / "config.json"
    kind = json.loads(path.read_text(encoding="utf-8")).get("model_type") if path.is_file() else None
    if kind not in CONFIG_MAPPING and (found := _text_only(folder)) is not None:
        return cast(_Loaded, AutoModelForCausalLM.from_pretrained(folder, **options, **found))
    try:
        return cast(_Loaded, AutoModelForCausalLM.from_pretrained(folder, **options))
    except ValueError:  # a multimodal config: no causal class of its own
        return cast(_Loaded, AutoModelForImageTextToText.from_pretrained(folder, **options))


def _text_only(folder: Path) -> dict[str, Any] | None:
    """What loads the text model inside a wrapper without a class: its config, and how its tensors are renamed.

    None where the text model has no class either.
    """
    try:
        spec = read_target(folder)
    except (CheckpointNotFound, TargetConfigIncomplete):
        return None
    kind, text_options = text_model_options(spec)
    if kind not in CONFIG_MAPPING:
        return None
    config = AutoConfig.for_model(kind, **text_options)
    names = [n for n in read_checkpoint(folder).tensors if n.endswith(_EMBEDDING)]
    prefix = min(names, key=len).removesuffix(_EMBEDDING) if names else "model."
    # `language_model.model.embed_tokens` has its head beside the inner `model`, `model.language_model.…` at the top.
    outer = prefix.removesuffix("model.") if prefix.endswith("model.") else ""
    mapping = {f"^{re.escape(prefix)}": "model."} | ({f"^{re.escape(outer)}lm_head": "lm_head"} if outer else {})
    return {"config": config, "key_mapping": mapping}


def _require_weights(model: PreTrainedModel, missing: Any, folder: Path) -> None:
    """Raise where a weight of the text model was not in the files: transformers fills it with random numbers."""
    parts = find_target_parts(model)
    ours = {id(parameter) for parameter in (*parts.text_model.parameters(), parts.head)}
    named = dict(model.named_parameters())
    absent = sorted(name for name in missing if name in named and id(named[name]) in ours)
    if absent:
        listed = f"{', '.join(absent[:4])}{' and others' if len(absent) > 4 else ''}"
        raise _unloadable(folder, f"{len(absent)} weights of the text model are not in its files: {listed}")


def _unloadable(folder: Path, why: str) -> TargetUnloadable:
    return TargetUnloadable(
        f"cannot load the target {folder}",
        str(folder),
        why,
        (
            "check the folder with `eyas header`, or upgrade transformers",
            "let an engine hold it: `eyas serve --capture STORE`, then `eyas train --hidden-states STORE`",
        ),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' own progress bars off: `Talk` is how eyas speaks."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()


def size_of_config(spec: TargetSpec, *, bytes_per_parameter: float = 2.0) -> TargetSize:
    """The text model that `spec` describes: seconds for a trillion parameters.

    Args:
        bytes_per_parameter: as it would be stored; 2 for bf16.

    Raises:
        TargetUnloadable: transformers has no class for it.
    """
    kind, options = text_model_options(spec)
    if kind not in CONFIG_MAPPING:
        raise TargetUnloadable(
            f"the size of a {kind} is not known",
            spec.where,
            "its weights are missing, and transformers has no class for it",
            "give the folder with the weights",
        )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options))
    counted = [(name, parameter.numel()) for name, parameter in model.named_parameters()]
    return size_of_counts(spec, counted, num_bytes=int(bytes_per_parameter * sum(count for _, count in counted)))
