"""On a GPU the fused step of a small model in bf16 stays close to the same step in fp32 on the CPU."""

import copy

import pytest
import torch

from eyas.models.target import Target
from eyas.train.config import TrainConfig
from eyas.train.rows.packing import pack
from eyas.train.step.packed_attention import attend_rows, attend_rows_backward
from live_trainer import live_trainer
from tiny_draft import tiny_draft
from tiny_target import tiny_target
from token_rows import rows_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_flash_over_packed_rows_equals_each_row_alone():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    rows = rows_of(70, 5, 200, 1, 33)
    packed, on_gpu = pack(rows, 2, cpu, multiple=256), pack(rows, 2, gpu, multiple=256)
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(packed.length, n, 64, generator=generator) for n in (6, 2, 2, 6))
    half = [x.bfloat16().cuda() for x in (q, k, v, grad)]
    exact = [x.bfloat16().float() for x in (q, k, v, grad)]

    out, lse = attend_rows(*exact[:3], packed, 0.125)
    got, got_lse = attend_rows(*half[:3], on_gpu, 0.125)
    grads = attend_rows_backward(exact[3], *exact[:3], out, lse, packed, 0.125)
    got_grads = attend_rows_backward(half[3], *half[:3], got, got_lse, on_gpu, 0.125)

    torch.testing.assert_close(got_lse.cpu(), lse, rtol=1e-3, atol=1e-3)
    for mine, wanted in zip((got, *got_grads), (out, *grads), strict=True):
        torch.testing.assert_close(mine.cpu().float(), wanted, rtol=0.03, atol=0.03)


def test_a_step_in_bf16_on_the_gpu_is_close_to_the_step_in_fp32_on_the_cpu():
    sizes = {"target_hidden_size": 32, "embedding": "target", "vocab_size": 64}
    losses, weights = [], []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        target = Target(copy.deepcopy(tiny_target("llama", seed=3)).to(device, dtype))
        draft = tiny_draft(**sizes)
        draft._shared = (target.parts.embedding, target.parts.head)
        trainer = live_trainer(
            draft.to(device),
            target,
            TrainConfig(ttt_steps=4),
            lr=1e-3,
            num_steps=10,
        )
        losses.append([trainer.train_step(rows_of(40, 90, 7), step).loss for step in range(3)])
        weights.append({name: p.grad.cpu() for name, p in draft.named_parameters()})

    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    for name, grad in weights[0].items():
        assert (weights[1][name] - grad).norm() < 0.2 * grad.norm(), name
