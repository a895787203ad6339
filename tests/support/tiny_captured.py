"""A tiny Llama and a tiny draft over so few tokens that random drafts are accepted now and then."""

from dataclasses import fields, replace

import torch

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.engine.llama.llama_weights import BlockWeights, LlamaShape, LlamaWeights
from eyas.models.draft import Eagle3Draft

HIDDEN, INNER, HEADS, KV_HEADS, WIDTH, VOCAB, OFFERED, LAYERS = 48, 64, 4, 2, 16, 5, 4, 3
BOUNDARIES = (1, 2, 3)


def tiny_weights(seed: int = 0, **changes: torch.Tensor) -> LlamaWeights:
    """fp32, random; `changes` replace fields of each block."""
    draw = torch.Generator().manual_seed(seed)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw) * 0.3 + (len(shape) == 1)

    def block() -> BlockWeights:
        return BlockWeights(
            input_norm=tensor(HIDDEN),
            qkv=tensor((HEADS + 2 * KV_HEADS) * WIDTH, HIDDEN),
            qkv_bias=changes.get("qkv_bias"),
            q_norm=changes.get("q_norm"),
            k_norm=changes.get("k_norm"),
            o=tensor(HIDDEN, HEADS * WIDTH),
            post_norm=tensor(HIDDEN),
            gate_up=tensor(2 * INNER, HIDDEN),
            down=tensor(HIDDEN, INNER),
        )

    embedding = tensor(VOCAB, HIDDEN)
    return LlamaWeights(
        shape=LlamaShape(
            hidden=HIDDEN,
            in_width=HIDDEN,
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=WIDTH,
            rotary_dim=WIDTH,
            intermediate=INNER,
            eps=1e-5,
        ),
        embedding=embedding,
        blocks=tuple(block() for _ in range(LAYERS)),
        norm=tensor(HIDDEN),
        head=embedding,
        inverse_frequencies=1 / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH),
        rope_scale=1.0,
    )


def on_gpu(weights: LlamaWeights) -> LlamaWeights:
    """The same on the first CUDA device."""
    blocks = tuple(
        replace(b, **{f.name: x.cuda() for f in fields(b) if isinstance(x := getattr(b, f.name), torch.Tensor)})
        for b in weights.blocks
    )
    embedding = weights.embedding.cuda()
    return replace(weights, embedding=embedding, blocks=blocks, norm=weights.norm.cuda(), head=embedding)


def tiny_spec(**changes: object) -> DraftSpec:
    """Of a draft for `tiny_weights`."""
    sizes: dict[str, object] = {
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_dim": WIDTH,
        "vocab_size": VOCAB,
        "draft_vocab_size": OFFERED,
        "rms_norm_eps": 1e-5,
    }
    return DraftSpec(**(sizes | changes))  # type: ignore[arg-type]


def tiny_module(weights: LlamaWeights, seed: int = 1, **changes: object) -> Eagle3Draft:
    """A random draft of `tiny_spec`, its vocabulary map not the identity."""
    draft = Eagle3Draft(tiny_spec(**changes), target_embedding=weights.embedding, target_head=weights.head)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3 + (parameter.dim() == 1))
    if draft.spec.has_vocab_map:
        draft.set_vocab_map(torch.tensor([0, 1, 3, 4]))
    return draft.eval()
