"""One training step of other projects' EAGLE-3, from states in memory; driven by train_h200.py.

Each is built from its own classes and run as its own trainer runs it (precision, optimiser, clipping, fused loss), with
random weights and states of the shape asked for. Two things are not its defaults: the head is trained (speculators
freezes it), and every row is as long as the others, so that nothing is padded.
"""

import argparse
import sys
import types
from typing import Any

import torch


def without_compile(args: argparse.Namespace) -> None:
    """--no-compile and the CPU: what is decorated with torch.compile runs as it is."""
    if args.no_compile or args.device == "cpu":
        import torch._dynamo

        torch._dynamo.config.disable = True


def states_for(args: argparse.Namespace, shape: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Rows as train_h200.make_rows has them, and states at the spread of a target's: [R, S, ...]."""
    num, device = max(1, args.tokens_per_step // args.seq), args.device
    generator = torch.Generator(device=device).manual_seed(0)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator, device=device, dtype=dtype)

    return {
        "ids": torch.randint(0, shape.vocab, (num, args.seq), generator=generator, device=device),
        "aux": random(num, args.seq, 3 * shape.hidden),
        "last": random(num, args.seq, shape.hidden),
        "mask": (torch.arange(args.seq, device=device) >= args.seq // 2).expand(num, -1).contiguous(),
    }


def llama_layer_config(args: argparse.Namespace, shape: Any) -> Any:
    """transformers' LlamaConfig of the draft's one layer."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=1,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocab,
        max_position_embeddings=max(args.seq + args.ttt_steps, 8192),
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        rms_norm_eps=1e-5,
        pad_token_id=0,
    )


def offsets(offered: torch.Tensor, shape: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """t2d [V] bool and d2t [D] of the draft vocabulary."""
    t2d = torch.zeros(shape.vocab, dtype=torch.bool, device=offered.device)
    t2d[offered] = True
    return t2d, offered - torch.arange(len(offered), device=offered.device)


def randomised(module: torch.nn.Module) -> None:
    """Deviation 0.02 for matrices, ones for norms, whatever was there (speculators starts some at NaN)."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.02)
            else:
                parameter.fill_(1.0)


def speculators_step(args: argparse.Namespace, shape: Any, offered: torch.Tensor, dtype: torch.dtype) -> Any:
    """A function that does one optimiser step, and the number of tokens of it.

    As `speculators.train.trainer`: fp32 masters under bf16 autocast, torch.optim.AdamW, clipping at 1, rows packed into
    one sequence with a block mask, its fused kl loss. `speculators.train.data` (which wants openai, datasets and a
    transfer library to fetch states) is stubbed: the model only takes a type's name from it.
    """
    without_compile(args)
    data = types.ModuleType("speculators.train.data")
    data.BatchType = dict  # type: ignore[attr-defined]
    sys.modules["speculators.train.data"] = data
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.losses import resolve_loss_config
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    layer = llama_layer_config(args, shape)
    layer._attn_implementation = "eager" if args.device == "cpu" else "simple_flex_attention"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=shape.draft_vocab,
        eagle_aux_hidden_state_layer_ids=list(shape.boundaries),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=args.ttt_steps)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
    )
    model = Eagle3DraftModel(config).to(args.device)
    randomised(model)
    model.load_vocab_mappings(*offsets(offered, shape))
    model.lm_head.weight.requires_grad_(True)
    model.train()
    given = states_for(args, shape, dtype)
    num = len(given["ids"])

    def flat(x: torch.Tensor, begin: int, end: int | None) -> torch.Tensor:
        return x[:, begin:end].flatten(0, 1)[None]

    batch = {  # shifted as `shift_batch` does: token t + 1, state t, teacher t + 1
        "input_ids": flat(given["ids"], 1, None),
        "hidden_states": flat(given["aux"], 0, -1),
        "verifier_last_hidden_states": flat(given["last"], 1, None),
        "loss_mask": flat(given["mask"], 1, None),
        "position_ids": torch.arange(1, args.seq, device=args.device).repeat(num)[None],
        "document_ids": torch.arange(num, device=args.device).repeat_interleave(args.seq - 1)[None],
    }
    del given
    # Its collator fills up to the model's fixed length, a multiple of the flex kernel's blocks; -1 is no document.
    missing = -batch["input_ids"].shape[1] % 128
    for name, x in batch.items():
        filling = x.new_full((1, missing, *x.shape[2:]), -1 if name == "document_ids" else 0)
        batch[name] = torch.cat((x, filling), 1)
    fused_outside_of_compile()
    loss_name = {"kl": "kl_div", "ce": "ce", "tv": "tv"}[args.loss]
    losses = resolve_loss_config(loss_name, "eager" if args.device == "cpu" else "fused")
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def step(_: int) -> torch.Tensor:
        with torch.autocast(args.device.split(":")[0], dtype=torch.bfloat16, enabled=args.device != "cpu"):
            _, loss, _ = model(**batch, ttt_steps=args.ttt_steps, ttt_step_loss_decay=0.8, loss_config=losses)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        found: torch.Tensor = loss.detach()
        return found

    return step, num * args.seq


def fused_outside_of_compile() -> None:
    """speculators' fused losses run between what torch.compile compiles, not within.

    torch 2.11 cannot trace the backward of its autotuned Triton kernel ("ListVariable is already tracked for
    mutation"), so that a step would end in an error; the kernels stay the same.
    """
    from speculators.losses import fused

    for name in [name for name in vars(fused) if name.startswith("fused_")]:
        setattr(fused, name, torch.compiler.disable(getattr(fused, name)))


def specforge_step(args: argparse.Namespace, shape: Any, offered: torch.Tensor, dtype: torch.dtype) -> Any:
    """A function that does one optimiser step, and the number of tokens of it.

    As `specforge.training`: bf16 draft with fp32 masters in `BF16Optimizer`, flex attention, rows as a batch, its
    Triton log-softmax loss, and the compact teacher (off by default there; with it no [B, T, V] of the target is held).
    """
    without_compile(args)
    from specforge.algorithms.eagle3.model import OnlineEagle3Model
    from specforge.modeling.draft import LlamaForCausalLMEagle3
    from specforge.optimizer import BF16Optimizer

    backend = "sdpa" if args.device == "cpu" else "flex_attention"
    config = llama_layer_config(args, shape)
    config.draft_vocab_size, config.target_hidden_size = shape.draft_vocab, shape.hidden
    config.rope_theta, config.rope_scaling, config.pretraining_tp = shape.theta, None, 1
    draft = LlamaForCausalLMEagle3(config, attention_backend=backend).to(args.device)
    randomised(draft)
    draft.t2d, draft.d2t = offsets(offered, shape)
    draft = draft.to(dtype).train()
    draft.embed_tokens.weight.requires_grad_(False)
    model = OnlineEagle3Model(draft, length=args.ttt_steps, attention_backend=backend)
    given = states_for(args, shape, dtype)
    ids, aux, last, mask = (given[name] for name in ("ids", "aux", "last", "mask"))
    head = torch.empty(shape.vocab, shape.hidden, device=args.device, dtype=dtype).normal_(0.0, 0.02)
    optimiser = BF16Optimizer(draft, lr=1e-4, total_steps=1000)

    def left(x: torch.Tensor) -> torch.Tensor:
        """Shifted by one, zeros at the end, as TargetHead.preprocess does."""
        return torch.cat((x[:, 1:], torch.zeros_like(x[:, :1])), 1)

    batch = {
        "input_ids": left(ids),
        "attention_mask": torch.ones_like(ids),
        "loss_mask": mask.long()[..., None] if mask.ndim == 2 else mask,
        "hidden_states": aux,
        "target_hidden_for_compact": left(last),
        "target_head_weight": head,
        "target": None,
    }

    def step(_: int) -> torch.Tensor:
        losses, *_rest = model(**batch)
        loss = sum(0.8**j * step_loss for j, step_loss in enumerate(losses))
        assert isinstance(loss, torch.Tensor), "seven steps have losses"
        loss.backward()
        optimiser.step()
        found: torch.Tensor = loss.detach()
        return found

    return step, ids.numel()
