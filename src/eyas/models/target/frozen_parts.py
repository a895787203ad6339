"""What a draft needs of its target besides states: embedding, final norm and head, with the scaling of the logits.

They are three tensors. From a checkpoint they are read by name, and nothing else of it: a target of 600 GB takes
seconds. No model is built and no code of the model's own is run; sizes and scaling come from the config.

Shapes: Ht target hidden, V target vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.spec.target_parts import PartNames, TargetPartMissing, name_parts
from eyas.contract.spec.target_spec import TargetSpec, target_spec
from eyas.models.placement import Placement
from eyas.models.stored_tensors import stored_tensors
from eyas.models.target.final_norm import final_norm
from eyas.models.target.text_model import text_model_options


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitScaling:
    """What a model does between its head and its logits.

    Attributes:
        factor: the head's output is multiplied by it.
        cap: then it is bent to lie within ± cap; None for no soft cap.
    """

    factor: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, text_config: Any) -> "LogitScaling":
        """That of a transformers config of the text model."""
        factor = 1.0 / (getattr(text_config, "logits_scaling", None) or 1.0)
        for name in ("logit_scale", "lm_head_multiplier"):
            if (value := getattr(text_config, name, None)) is not None:
                factor *= value
        return cls(factor=factor, cap=getattr(text_config, "final_logit_softcapping", None))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenParts:
    """The parts of a target that training reads and never changes.

    Attributes:
        name: the target's folder or class, for messages.
        num_layers: decoder layers, N.
        embedding: [V, Ht] as stored: what a model multiplies its embedding with is not in it.
        head: [V, Ht]; the embedding itself when tied.
        final_norm: the state at boundary N [..., Ht] -> what the head reads.
        scaling: of the logits.
    """

    name: str
    num_layers: int
    embedding: Tensor
    head: Tensor
    final_norm: Callable[[Tensor], Tensor]
    scaling: LogitScaling = LogitScaling()

    @classmethod
    def load(cls, folder: Path, placement: Placement) -> "FrozenParts":
        """The parts of the target in `folder`, read by name.

        Raises:
            TargetPartMissing: one is not in the files or is quantised, or the kind of the final norm is not known.
            What `read_checkpoint` and `target_spec` raise.
        """
        checkpoint = read_checkpoint(folder)
        spec = target_spec(checkpoint)
        names, config = name_parts(spec, checkpoint.tensors), _text_config(spec)
        wanted = {name: checkpoint.tensors[name] for name in _all_of(names)}
        read = {
            name: tensor.to(placement.device, placement.dtype)
            for name, tensor in stored_tensors(checkpoint.root or folder, wanted)
        }
        bias = None if names.norm_bias is None else read[names.norm_bias]
        return cls(
            name=str(folder),
            num_layers=spec.num_layers,
            embedding=read[names.embedding],
            head=read[names.head],
            final_norm=final_norm(spec, config, read[names.norm], bias),
            scaling=LogitScaling.of(config),
        )

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, padding included, V."""
        return len(self.embedding)

    @property
    def hidden_size(self) -> int:
        """Width of a state, Ht."""
        return int(self.embedding.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the parts are."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the parts, in which the teacher is computed."""
        return self.embedding.dtype

    @torch.no_grad()
    def logits(self, last: Tensor) -> Tensor:
        """[..., V] from states after the final norm."""
        logits = F.linear(last, self.head)
        if self.scaling.factor != 1.0:
            logits = logits * self.scaling.factor
        if (cap := self.scaling.cap) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits


def _all_of(names: PartNames) -> list[str]:
    return [name for name in (names.embedding, names.norm, names.norm_bias, names.head) if name is not None]


def _text_config(spec: TargetSpec) -> Any:
    """transformers' config of the text model: what a config leaves out has its class' default."""
    kind, options = text_model_options(spec)
    if kind in CONFIG_MAPPING:
        return AutoConfig.for_model(kind, **options)
    raise TargetPartMissing(
        f"the final norm of a {kind} is not known",
        spec.where,
        f"transformers has no class for {kind}, so what its config leaves out is not known",
        "upgrade transformers, or report the model class",
    )
