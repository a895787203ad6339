"""Largest difference between each kernel and its plain twin, as one line of JSON. Needs TRITON_INTERPRET=1 on a CPU;
on a GPU (`python interpreted.py cuda`) the compiled kernels run, at the sizes of a real draft too."""

import json
import math
import sys

import torch
from torch import Tensor

from eyas.train.step.distributions import DistributionOps, DraftVocabulary, ReferenceDistributions, TritonDistributions
from eyas.train.step.row_ops import ROWS, Angles, HeadCounts, RowOps

SMALL = {
    "T": 5,
    "H": 24,
    "I": 20,
    "heads": HeadCounts(num_query=6, num_kv=2, width=16),
    "J": 3,
    "V": 70,
    "D": 37,
    "C": 3,
}
LLAMA = {
    "T": 333, "H": 4096, "I": 14336, "heads": HeadCounts(num_query=32, num_kv=8, width=128), "J": 6, "V": 128256,
    "D": 32000, "C": 9,
}  # fmt: skip
SMOLLM2 = {
    "T": 333, "H": 576, "I": 1536, "heads": HeadCounts(num_query=9, num_kv=3, width=64), "J": 6, "V": 49152, "D": 8192,
    "C": 9,
}  # fmt: skip


class Source:
    """Random numbers, the same for both twins."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._device, self._dtype = device, dtype

    def __call__(self, *shape: int, wide: bool = False) -> Tensor:
        x = torch.randn(*shape, generator=self._generator)
        return x.to(self._device, torch.float32 if wide else self._dtype)


def row_results(ops: RowOps, sizes: dict, random: Source) -> dict[str, Tensor]:
    num, width, heads, kv = sizes["T"], sizes["H"], sizes["heads"], sizes["heads"].num_kv
    x, residual, grad, besides = (random(num, width) for _ in range(4))
    weight = random(width, wide=True)
    total, normed = ops.norm(x, residual, weight, 1e-5)
    grad_x, grad_weight = ops.norm_backward(total, weight, grad, besides, 1e-5)
    alone = ops.norm(x, None, weight, 1e-5)[1]
    grad_alone, _ = ops.norm_backward(x, weight, grad, None, 1e-5)
    gate_up, grad_inner = random(num, 2 * sizes["I"]), random(num, sizes["I"])
    inner, grad_gate_up = ops.swiglu_backward(gate_up, grad_inner)
    angles = random(num + 9, heads.width // 2, wide=True)
    angles = Angles(cos=angles.cos().contiguous(), sin=angles.sin().contiguous())
    positions = torch.arange(num, dtype=torch.int32, device=x.device)
    query, key_value = ops.rope(random(num, heads.total * heads.width), angles, positions, 2, heads)
    grad_q, grad_kv = random(num, heads.num_query, heads.width), random(num, 2 * kv, heads.width)
    grad_qkv = ops.rope_backward(grad_q, grad_kv, angles, positions, 2, heads)
    diagonal, out = random(sizes["J"], num, 2 * kv, heads.width), random(num, heads.num_query, heads.width)
    lse = random(heads.num_query, num, wide=True)
    merged, merged_lse = ops.merge(query, diagonal, out.clone(), lse.clone(), 0.25)
    merged_grads = ops.merge_backward(query, diagonal, merged, merged_lse, grad_q, grad_q.clone(), 0.25)
    return {
        "norm": torch.stack((total, normed, alone)), "norm grad": torch.stack((grad_x, grad_alone)),
        "norm weight": grad_weight, "swiglu": torch.stack((ops.swiglu(gate_up), inner)), "swiglu grad": grad_gate_up,
        "rope": query, "rope kv": key_value, "rope grad": grad_qkv, "merge": merged, "merge lse": merged_lse,
        "merge grad q": merged_grads[0], "merge grad kv": merged_grads[1],
    }  # fmt: skip


def distribution_results(ops: DistributionOps, sizes: dict, random: Source) -> dict[str, Tensor]:
    num, steps, size, vocab = sizes["C"], 2, sizes["D"], sizes["V"]
    logits = random(num, vocab).mul(2)
    offered = torch.arange(vocab, device=logits.device)[:: vocab // size][:size].contiguous()
    draft_ids = torch.full((vocab,), -1, device=logits.device)
    draft_ids[offered] = torch.arange(size, device=logits.device)
    # A row that is all but sure, and others whose first choice the draft can say: only those have a loss.
    logits[0, offered[4]] = 30.0
    logits[1::2, offered[7]] = 2.0 + math.log(vocab)  # about as likely as all others together
    teacher = ops.reduce(logits, DraftVocabulary(offered=offered, draft_ids=draft_ids))
    whole = ops.reduce(logits, DraftVocabulary(offered=None, draft_ids=torch.arange(vocab, device=logits.device)))
    found = {
        "teacher": teacher.log_probs, "mass": torch.cat((teacher.log_mass, whole.log_mass)),
        "argmax": torch.cat((teacher.argmax_ids, whole.argmax_ids)), "argmax draft": teacher.argmax_draft,
    }  # fmt: skip
    weights = random(steps * num, wide=True).abs()
    weights[1] = 0.0
    weights = torch.where((teacher.argmax_draft >= 0).repeat(steps), weights, 0.0)
    for name in ("kl", "ce", "tv", "lk", "jeffreys"):
        drafts = (random(steps * num, size) + teacher.logits.repeat(steps, 1)).to(logits.dtype)
        rows = ops.losses(drafts.clone(), teacher, weights, name)
        found |= {name: rows.losses, f"{name} grad": rows.grad * size**0.5, f"{name} drafted": rows.drafted}
    return found


def errors(sizes: dict, device: str, dtype: torch.dtype) -> dict[str, float]:
    """Relative to the largest of each result."""
    pairs = [
        (f(plain, sizes, Source(device, dtype)), f(fused, sizes, Source(device, dtype)))
        for f, plain, fused in (
            (row_results, ROWS.reference, ROWS.triton),
            (distribution_results, ReferenceDistributions(), TritonDistributions()),
        )
    ]
    found = {}
    for plain, fused in pairs:
        for name, wanted in plain.items():
            gap = (fused[name].double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp(min=1e-9)
            found[name] = float(gap) if torch.isfinite(gap) else 1e9
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["cuda"]:
        for label, sizes in (("small", SMALL), ("llama8b", LLAMA), ("smollm2", SMOLLM2)):
            for dtype in (torch.float32, torch.bfloat16):
                print(label, dtype, json.dumps(errors(sizes, "cuda", dtype)))
    else:
        print(json.dumps(errors(SMALL, "cpu", torch.float32)))
