"""EAGLE-3 training once more, in 77 plain lines that share nothing with `eyas.train`: what the trainer must equal.

One row at a time, dense attention masks, logits of all positions, `torch.optim.AdamW`, sums written out. It uses the
draft's own weights and the target as transformers gives it, but neither our teacher, losses, batches nor unrolling.
"""

import torch
import torch.nn.functional as F


def rope(x, positions, theta):
    width = x.shape[-1]
    angle = positions[:, None] * theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angle = torch.cat([angle, angle], -1)
    turned = torch.cat([-x[..., width // 2 :], x[..., : width // 2]], -1)
    return x * angle.cos() + turned * angle.sin()


def unrolled(draft, embedding, ids, aux, num_steps):
    """Logits [T, D] per step: keys of step 0 seen causally, those of later steps by their own index alone."""
    layer, spec, num = draft.layers[0], draft.spec, len(ids)
    attention, g = layer.self_attn, F.linear(aux, draft.fc.weight)
    keys, values, groups = [], [], spec.num_heads // spec.num_kv_heads
    for j in range(num_steps):
        tokens = torch.cat([ids[1 + j :], torch.zeros(min(num, 1 + j), dtype=ids.dtype)])
        x = torch.cat([layer.input_layernorm(embedding[tokens]), layer.hidden_norm(g)], -1)
        q, k, v = (F.linear(x, p.weight).view(num, -1, spec.head_dim).transpose(0, 1) for p in
                   (attention.q_proj, attention.k_proj, attention.v_proj))  # fmt: skip
        positions = torch.arange(num) + j
        keys.append(rope(k, positions, spec.rope.theta).repeat_interleave(groups, 0))
        values.append(v.repeat_interleave(groups, 0))
        scores = torch.cat([rope(q, positions, spec.rope.theta) @ k.transpose(1, 2) for k in keys], -1)
        causal, diagonal = torch.ones(num, num).tril().bool(), torch.eye(num).bool()
        seen = torch.cat([causal, *[diagonal] * j], -1)
        weights = (scores / spec.head_dim**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
        mixed = (weights @ torch.cat(values, 1)).transpose(0, 1).flatten(1)
        g = g + F.linear(mixed, attention.o_proj.weight)
        normed = layer.post_attention_layernorm(g)
        gated = F.silu(F.linear(normed, layer.mlp.gate_proj.weight)) * F.linear(normed, layer.mlp.up_proj.weight)
        g = g + F.linear(gated, layer.mlp.down_proj.weight)
        yield F.linear(draft.norm(g), draft.lm_head.weight)


def loss_of(draft, model, rows, num_steps, decay):
    """The weighted loss of a batch, and per step (right, counted) by the honest definition."""
    offered = torch.arange(draft.spec.draft_vocab_size) + draft.d2t
    counted, total, right = torch.zeros(num_steps), [torch.tensor(0.0)] * num_steps, torch.zeros(num_steps)
    for ids, supervised in rows:
        out = model(ids[None], output_hidden_states=True)
        aux = torch.cat([out.hidden_states[b][0] for b in draft.spec.aux_boundaries], -1).detach()
        target = out.logits[0].detach()
        steps = list(unrolled(draft, model.get_input_embeddings().weight.detach(), ids, aux, num_steps))
        for j, logits in enumerate(steps):
            for t in range(len(ids) - 2 - j):
                if not supervised[t + 2 + j]:
                    continue
                best = target[t + 1 + j].argmax()
                counted[j] += 1
                right[j] += offered[logits[t].argmax()] == best
                if best in offered:
                    p = target[t + 1 + j][offered].softmax(-1)
                    total[j] = total[j] + (p * (p.log() - logits[t].log_softmax(-1))).sum()
    loss = sum(decay**j * total[j] / counted[j] for j in range(num_steps) if counted[j])
    return loss, right, counted


def train_plainly(draft, model, batches, *, num_steps, decay, lrs, clip):
    """Loss, accuracy and gradient norm of each batch."""
    optimiser = torch.optim.AdamW(draft.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    for rows, lr in zip(batches, lrs, strict=True):
        loss, right, counted = loss_of(draft, model, rows, num_steps, decay)
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(draft.parameters(), clip)
        optimiser.param_groups[0]["lr"] = lr
        optimiser.step()
        yield float(loss.detach()), (right / counted).tolist(), float(norm)
