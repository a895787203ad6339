"""Finds the parts of a target that a draft touches, whatever wrapper they sit in: layers, embedding, norm, head.

By attribute search, not by a list of models: nested and multimodal wrappers (`model.language_model`, ...) are searched
for a module with exactly the configured number of decoder layers. A part that is not found is named.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

from eyas.errors import EyasError

_LAYER_LISTS = ("layers", "h", "blocks")
_FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f", "embedding_norm")


class TargetPartMissing(EyasError):
    """The target has no layers, embedding, final norm or head where one can be found."""

    code = "target-part-missing"


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
        norm = next((n for name in _FINAL_NORMS if isinstance(n := getattr(module, name, None), nn.Module)), None)
        if norm is None:
            raise _missing(model, "final norm", f"{path or 'the model'} has none of {', '.join(_FINAL_NORMS)}")
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
