"""The draft before the first step: a new one, or the one that `--init-from` names."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement
from eyas.models.stored_tensors import stored_tensors
from eyas.models.target import FrozenParts
from eyas.talk import Talk
from eyas.train.config import TrainConfig, TrainConfigInvalid
from eyas.train.preflight.train_plan import TrainPlan
from eyas.train.request import TrainRequest

# Of the linear layers; what Llama and the EAGLE code start from.
_INIT_STD = 0.02


def starting_draft(
    request: TrainRequest, config: TrainConfig, plan: TrainPlan, teacher: FrozenParts, talk: Talk
) -> Eagle3Draft:
    """The draft in fp32 on the teacher's device, in training mode; the same on every rank."""
    embedding, head = teacher.embedding, teacher.head
    if request.init_from is not None:
        draft = load_draft(
            request.init_from,
            Placement(torch.float32, teacher.device),
            target_spec=plan.target,
            target_embedding=embedding,
            target_head=head,
            talk=talk,
        )
        return freeze(draft, config).train()
    assert plan.vocabulary is not None, "a new draft has a new vocabulary"
    draft = Eagle3Draft(plan.spec, target_embedding=embedding, target_head=head).to(teacher.device)
    draft.set_vocab_map(torch.tensor(plan.vocabulary.ids, device=teacher.device))
    initialise(draft, teacher, config.seed)
    if config.init_layer is not None:
        layers = range(config.init_layer, config.init_layer + len(draft.layers))
        start_from_layers(draft, [layer_tensors(request.target, number) for number in layers], config.init_layer)
    return freeze(draft, config).train()


@torch.no_grad()
def initialise(draft: Eagle3Draft, teacher: FrozenParts, seed: int) -> None:
    """Fill a new draft in place: normal weights, norms of one; its own head and embedding from the target's rows.

    The head keeps the directions of the target's and is scaled down to the spread of the other weights: at full size it
    is confidently wrong at first (on SmolLM2 the first loss is 72 instead of 32, and learning starts later).
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    for parameter in draft.parameters():
        if parameter.ndim >= 2:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * _INIT_STD)
    if draft.embed_tokens is not None:
        draft.embed_tokens.weight.copy_(teacher.embedding.to(draft.embed_tokens.weight.dtype))
    if draft.lm_head is not None:
        offered = draft.to_target_ids(torch.arange(draft.spec.draft_vocab_size, device=teacher.device))
        rows = teacher.head[offered].to(draft.lm_head.weight.dtype)
        draft.lm_head.weight.copy_(rows * (_INIT_STD / rows.std()))


def layer_tensors(folder: Path, number: int) -> dict[str, Tensor]:
    """The tensors of one decoder layer of the target in `folder`, by their names within the layer."""
    checkpoint = read_checkpoint(folder)
    within = re.compile(rf"(?:^|\.)layers\.{number}\.(.+)$")
    wanted = {name: info for name, info in checkpoint.tensors.items() if within.search(name)}
    found = stored_tensors(checkpoint.root or folder, wanted)
    return {match[1]: tensor for name, tensor in found if (match := within.search(name))}


@torch.no_grad()
def start_from_layers(draft: Eagle3Draft, layers: Sequence[Mapping[str, Tensor]], first: int) -> None:
    """Copy decoder layers of the target into the draft's.

    `fc` passes on the tapped state that stands nearest below the first, which is what it is used to. Layer 0's q, k
    and v read the embedding as they read the state; both halves are scaled so that their sum keeps its size.

    Args:
        layers: `layer_tensors`, one for each layer of the draft.
        first: the number of the first.

    Raises:
        TrainConfigInvalid: the layers have other shapes.
    """
    width, boundaries = draft.spec.hidden_size, draft.spec.aux_boundaries or ()
    if draft.spec.target_hidden_size != width:
        raise _other_shape(first, f"the draft is {width} wide, the target {draft.spec.target_hidden_size}")
    nearest = max((n for n in range(len(boundaries)) if boundaries[n] <= first), default=0)
    draft.fc.weight[:, nearest * width : (nearest + 1) * width] = torch.eye(width)
    for layer, source in zip(draft.layers, layers, strict=True):
        for name, parameter in layer.named_parameters():
            found = source.get("input_layernorm.weight" if name == "hidden_norm.weight" else name)
            if found is not None and parameter.shape == (found.shape[0], 2 * width) != found.shape:
                found = torch.cat((found, found), 1) * 0.5**0.5
            if found is None or found.shape != parameter.shape:
                shape = "nothing" if found is None else tuple(found.shape)
                raise _other_shape(first, f"{name} is {tuple(parameter.shape)} in the draft, {shape} in the target")
            parameter.copy_(found)


def _other_shape(layer: int, why: str) -> TrainConfigInvalid:
    return TrainConfigInvalid(
        "the draft cannot start from a layer of the target",
        f"--init-layer {layer}",
        why,
        "leave --init-layer out, or leave out the options that give the draft another shape",
    )


def freeze(draft: Eagle3Draft, config: TrainConfig) -> Eagle3Draft:
    """`draft` with the parts frozen that `config` names; `freeze_notes` has refused what cannot be frozen."""
    if config.freeze_head and draft.lm_head is not None:
        draft.lm_head.requires_grad_(False)
    if config.freeze_embedding and draft.embed_tokens is not None:
        draft.embed_tokens.requires_grad_(False)
    return draft
